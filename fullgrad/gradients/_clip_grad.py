"""`clip_grad`: every element of the gradient within bounds."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.function import alias, is_identity
from fullgrad._core.neighbors import rounded
from fullgrad._core.recomputed import save_inputs, saved_inputs
from fullgrad._dispatch import is_float
from fullgrad.gradients._cotangent_map import CotangentMap


def clip_grad(x: Tensor, max_value: Tensor | float) -> Tensor:
    r"""The input itself, whose gradient is clipped element by element.

    .. math::
        y = x, \qquad \mathrm{vjp}(g) = \min(\max(g, -m), m), \qquad \mathrm{jvp}(t) = t

    for ``max_value`` :math:`m`. NaN stays NaN. The map is not linear, so ``jvp`` is not its adjoint but the identity; double
    backward differentiates the map as it is, bounds included. Saved: ``max_value`` if it is a tensor.

    Args:
        x: Any shape; floating, or integer (without a gradient).
        max_value: The largest absolute value, a positive number or a tensor of positive numbers that broadcasts to the shape of
            ``x``.

    Returns:
        ``x`` as a view.

    Raises:
        TypeError: ``x`` is not a real tensor, or ``max_value`` is neither a number nor a real tensor.
        ValueError: ``max_value`` is not positive and finite, or has a shape that does not broadcast to that of ``x``.
        RuntimeError: ``max_value`` is on another device.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([0.1, -2.0, 30.0])
        >>> torch.func.grad(lambda x: (fullgrad.clip_grad(x, 1.0) ** 2).sum())(x)
        tensor([ 0.2000, -1.0000,  1.0000])

    Source: :func:`torch.nn.utils.clip_grad_value_`, anywhere in a network.
    """
    checks.real_tensor("clip_grad", "x", x)
    checks.positive_number_or_tensor("clip_grad", "max_value", max_value)
    checks.broadcasts_to("clip_grad", "max_value", max_value, "x", x.shape)
    checks.on_device("clip_grad", "max_value", max_value, x)
    return ClipGrad.apply(x, max_value)


class ClipGrad(CotangentMap):
    """The operator of :func:`clip_grad`."""

    whole_dims = 0

    @staticmethod
    @is_identity
    def forward(x: Tensor, max_value: Tensor | float) -> Tensor:
        return alias(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        save_inputs(ctx, (None, inputs[1]))

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        m: Any = saved_inputs(ctx)[1]
        if is_float(m) and m > torch.finfo(g.dtype).max:
            m = rounded(m, g.dtype)  # torch refuses numbers beyond the dtype
        return torch.clamp(g, -m, m).to(g.dtype), None
