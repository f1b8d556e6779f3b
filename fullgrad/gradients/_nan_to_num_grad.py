"""`nan_to_num_grad`: a gradient without NaN and infinities."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.function import alias, is_identity
from fullgrad.gradients._cotangent_map import CotangentMap


def nan_to_num_grad(x: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    r"""The input itself, whose gradient has numbers instead of NaN and infinities.

    .. math::
        y = x, \qquad \mathrm{vjp}(g) = \operatorname{nan\_to\_num}(g), \qquad \mathrm{jvp}(t) = t

    with :func:`torch.nan_to_num`. The map is not linear, so ``jvp`` is not its adjoint but the identity; double backward
    differentiates the map as it is: 1 where ``g`` is finite, else 0. Nothing is saved.

    Args:
        x: Any shape; floating, or integer (without a gradient).
        nan: The replacement of NaN.
        posinf: The replacement of infinity; None for the largest finite number of the dtype.
        neginf: The replacement of minus infinity; None for the lowest finite number of the dtype.

    Returns:
        ``x`` as a view.

    Raises:
        TypeError: ``x`` is not a real tensor, or a replacement is not a number.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([0.0, 4.0])
        >>> torch.func.grad(lambda x: fullgrad.nan_to_num_grad(x, posinf=0.0).sqrt().sum())(x)
        tensor([0.0000, 0.2500])

    Source: :func:`torch.nan_to_num` on the gradient.
    """
    checks.real_tensor("nan_to_num_grad", "x", x)
    checks.real_number("nan_to_num_grad", "nan", nan)
    if posinf is not None:
        checks.real_number("nan_to_num_grad", "posinf", posinf)
    if neginf is not None:
        checks.real_number("nan_to_num_grad", "neginf", neginf)
    return NanToNumGrad.apply(x, nan, posinf, neginf)


class NanToNumGrad(CotangentMap):
    """The operator of :func:`nan_to_num_grad`."""

    whole_dims = 0

    @staticmethod
    @is_identity
    def forward(x: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
        return alias(x)

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None]:
        return torch.nan_to_num(g, *ctx.parameters), None, None, None
