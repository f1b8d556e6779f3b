"""`clamp`: clamping between two bounds, with gradient 1 on the bounds too."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.elementwise import Elementwise
from fullgrad._core.function import pure
from fullgrad._core.shards import elementwise_code
from fullgrad._core.windows import where_between

Bound = Tensor | float | None


def clamp(x: Tensor, min_value: Bound = None, max_value: Bound = None) -> Tensor:
    r"""Clamp to :math:`[l, h]`, with derivative 1 inside, both bounds included.

    .. math::
        y = \min(\max(x, l), h), \qquad
        D_x = [\,l \le x \le h\,], \quad D_l = [\,x < l \le h\,], \quad D_h = [\,x > h \text{ or } l > h\,]

    The value is that of :func:`torch.clamp`, bit for bit. A tensor bound that requires a gradient receives the gradient of the
    elements beyond it. Where ``min_value`` is above ``max_value`` the value is ``max_value``, as in torch, and gets the gradient.
    A NaN in ``x`` or in a bound gives NaN and no gradient; infinite ``x`` inside an infinite bound counts as inside. Higher
    derivatives are 0. Saved: ``x``, and the bounds that are tensors; nothing beyond inputs.

    Args:
        x: Any shape; floating, or integer (floating bounds give the default dtype).
        min_value: Lower bound, a number or a tensor that broadcasts with ``x``; None for none. A number is rounded to the dtype
            of ``x``.
        max_value: Upper bound, likewise. One of the two must be given.

    Returns:
        A tensor of the broadcast shape.

    Raises:
        TypeError: ``x`` is not a real tensor, or a bound is neither a number, nor a real tensor, nor None.
        ValueError: Both bounds are None.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([-2.0, -1.0, 0.5, 3.0])
        >>> fullgrad.clamp(x, -1.0, 1.0)
        tensor([-1.0000, -1.0000,  0.5000,  1.0000])
        >>> torch.func.vmap(torch.func.grad(fullgrad.clamp), in_dims=(0, None, None))(x, -1.0, 1.0)
        tensor([0., 1., 1., 0.])

    Source: ``spikingjelly.activation_based.quantize.clamp``; for tensor bounds, :func:`torch.clamp`.
    """
    checks.real_tensor("clamp", "x", x)
    if not (min_value.__class__ is float and max_value.__class__ is float):
        _check_bounds("clamp", min_value, max_value)
    return Clamp.apply(x, min_value, max_value)


def clamp_backward(grad_output: Tensor, x: Tensor, min_value: Bound = None, max_value: Bound = None) -> Tensor:
    r"""The gradient that :func:`clamp` passes to ``x``, as a function: linear in ``grad_output``, with no derivative in the rest.

    .. math::
        g\, [\,l \le x \le h\,]

    It is 0 outside even where ``grad_output`` is infinite or NaN, and 0 where ``x`` is NaN.

    Args:
        grad_output: The gradient of the clamped tensor, of the shape of ``x``.
        x: The input of the clamp, floating.
        min_value: Lower bound, a number or a tensor that broadcasts with ``x``; None for none.
        max_value: Upper bound, likewise. One of the two must be given.

    Returns:
        A tensor of the shape and dtype of ``grad_output``.

    Raises:
        TypeError: ``grad_output`` or ``x`` is not a real tensor, or a bound is neither a number, nor a real tensor, nor None.
        ValueError: Both bounds are None.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.clamp_backward(torch.ones(3), torch.tensor([-1.0, 0.5, 3.0]), -1.0, 1.0)
        tensor([1., 1., 0.])

    Source: ``spikingjelly.activation_based.quantize.clamp_backward``.
    """
    checks.real_tensor("clamp_backward", "grad_output", grad_output)
    checks.real_tensor("clamp_backward", "x", x)
    _check_bounds("clamp_backward", min_value, max_value)
    return elementwise_code("clamp_backward", where_between, grad_output, x, min_value, max_value)


class Clamp(Elementwise):
    """The operator of :func:`clamp`."""

    in_pieces = "half"
    reads = {0: (0, 1, 2), 1: (0, 1, 2), 2: (0, 1, 2)}

    @staticmethod
    @pure
    def forward(x: Tensor, min_value: Bound = None, max_value: Bound = None) -> Tensor:
        alike = min_value.__class__ is max_value.__class__ or isinstance(min_value, Tensor) == isinstance(max_value, Tensor)
        if alike or min_value is None or max_value is None:
            return torch.clamp(x, min_value, max_value)  # pyright: ignore[reportCallIssue, reportArgumentType]
        # torch takes two numbers or two tensors.
        return torch.clamp(torch.clamp(x, min=min_value), max=max_value)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Tensor, min_value: Bound, max_value: Bound) -> Tensor:
        if i == 0:
            return where_between(v, x, min_value, max_value)
        return torch.where((_below if i == 1 else _above)(x, min_value, max_value), v, 0)


def _below(x: Tensor, low: Any, high: Any) -> Tensor:
    """The mask of the elements whose value is the lower bound and follows it."""
    return x < low if high is None else (x < low) & (low <= high)


def _above(x: Tensor, low: Any, high: Any) -> Tensor:
    """The mask of the elements whose value is the upper bound and follows it, crossed bounds included."""
    return x > high if low is None else (x > high) | ((x == x) & (low > high))


def _check_bounds(name: str, low: Any, high: Any) -> None:
    if low is None and high is None:
        raise ValueError(f"{name}: `min_value` or `max_value` must be given, got None for both.")
    if low is not None:
        checks.real_number_or_tensor(name, "min_value", low)
    if high is not None:
        checks.real_number_or_tensor(name, "max_value", high)
