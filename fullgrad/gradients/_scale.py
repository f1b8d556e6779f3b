"""`scale`, `scale_fwd`, `scale_bwd`: one factor for the value, another for the gradient."""

from typing import Any

from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.batching import elementwise
from fullgrad._core.elementwise import Elementwise
from fullgrad._core.function import alias, pure
from fullgrad._dispatch import surely
from fullgrad.gradients._cotangent_map import per_sample

Factor = Tensor | float


def scale(x: Tensor, forward: Factor = 1.0, backward: Factor = 1.0) -> Tensor:
    r"""Multiply the value by one factor and the gradient by another.

    .. math::
        y = f\, x, \qquad D_x = b, \quad D_f = x

    for ``forward`` :math:`f` and ``backward`` :math:`b`. The map is linear: ``jvp`` multiplies the tangent by :math:`b`. A tensor
    ``forward`` gets its true gradient; the value does not depend on ``backward``, which gets a gradient from second derivatives
    only. Where ``forward`` is the number 1 the value is the input itself, not a copy. Saved: factors that are tensors, and ``x``
    if ``forward`` needs a gradient; nothing beyond inputs.

    Args:
        x: Any shape; floating, or integer (without a gradient).
        forward: A number, or a tensor that broadcasts with ``x``.
        backward: A number, or a tensor that broadcasts to the shape of the output.

    Returns:
        A tensor of the broadcast shape of ``x`` and ``forward``.

    Raises:
        TypeError: ``x`` is not a real tensor, or a factor is neither a number nor a real tensor.
        ValueError: ``backward`` has a shape that does not broadcast to that of the output.
        RuntimeError: ``backward`` is on another device.

    Example:
        >>> import torch, fullgrad
        >>> torch.func.jvp(lambda x: fullgrad.scale(x, 2.0, 0.5), (torch.tensor(3.0),), (torch.tensor(1.0),))
        (tensor(6.), tensor(0.5000))

    Source: ``unit_scaling.scale``.
    """
    checks.real_tensor("scale", "x", x)
    checks.real_number_or_tensor("scale", "forward", forward)
    checks.real_number_or_tensor("scale", "backward", backward)
    if backward.__class__ is not float and isinstance(backward, Tensor):
        shape = checks.broadcast_shape(x.shape, forward.shape) if isinstance(forward, Tensor) else x.shape
        checks.broadcasts_to("scale", "backward", backward, "the output", shape)
    return Scale.apply(x, forward, backward)


def scale_fwd(input: Tensor, scale: Factor) -> Tensor:
    r"""Multiply the value and leave the gradient as it is.

    .. math::
        y = s\, x, \qquad D_x = 1, \quad D_s = x

    for ``input`` :math:`x`. It is :func:`scale` with ``forward=scale``, and saves the same.

    Args:
        input: Any shape; floating, or integer (without a gradient).
        scale: A number, or a tensor that broadcasts with ``input``, which gets its own gradient.

    Returns:
        A tensor of the broadcast shape.

    Raises:
        TypeError: ``input`` is not a real tensor, or ``scale`` is neither a number nor a real tensor.

    Example:
        >>> import torch, fullgrad
        >>> torch.func.grad_and_value(lambda x: fullgrad.scale_fwd(x, 10.0))(torch.tensor(3.0))
        (tensor(1.), tensor(30.))

    Source: ``unit_scaling.scale.scale_fwd``.
    """
    checks.real_tensor("scale_fwd", "input", input)
    checks.real_number_or_tensor("scale_fwd", "scale", scale)
    return Scale.apply(input, scale, 1.0)


def scale_bwd(input: Tensor, scale: Factor) -> Tensor:
    r"""Multiply the gradient and leave the value as it is.

    .. math::
        y = x, \qquad D_x = s

    for ``input`` :math:`x`. It is :func:`scale` with ``backward=scale``: the value is the input itself, not a copy. Saved:
    ``scale`` if it is a tensor. A number is multiplied in full precision; the source rounds it to the dtype of ``input`` first.

    Args:
        input: Any shape; floating, or integer (without a gradient).
        scale: A number, or a tensor that broadcasts to the shape of ``input``.

    Returns:
        ``input`` as a view.

    Raises:
        TypeError: ``input`` is not a real tensor, or ``scale`` is neither a number nor a real tensor.
        ValueError: ``scale`` has a shape that does not broadcast to that of ``input``.
        RuntimeError: ``scale`` is on another device.

    Example:
        >>> import torch, fullgrad
        >>> torch.func.grad_and_value(lambda x: fullgrad.scale_bwd(x, 10.0))(torch.tensor(3.0))
        (tensor(10.), tensor(3.))

    Source: ``unit_scaling.scale.scale_bwd``.
    """
    checks.real_tensor("scale_bwd", "input", input)
    checks.real_number_or_tensor("scale_bwd", "scale", scale)
    checks.broadcasts_to("scale_bwd", "scale", scale, "the output", input.shape)
    return Scale.apply(input, 1.0, scale)


class Scale(Elementwise):
    """The operator of :func:`scale`."""

    in_pieces = True
    reads = {0: (2,), 1: (0,), 2: ()}

    @staticmethod
    @pure
    def forward(x: Tensor, forward: Factor = 1.0, backward: Factor = 1.0) -> Tensor:
        number = forward.__class__ is float or not isinstance(forward, Tensor)
        return alias(x) if number and surely(forward == 1) else x * forward

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Any, forward: Any, backward: Any) -> Tensor | None:
        if i == 0:
            return v if backward.__class__ is float and backward == 1.0 else v * backward
        return v * x if i == 1 else None  # the value does not depend on backward

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int | None]:
        return elementwise(Scale, *per_sample(info, in_dims, args))
