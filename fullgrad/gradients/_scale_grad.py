"""`scale_grad`: the gradient divided by its largest absolute value."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.function import alias, is_identity
from fullgrad._dispatch import surely
from fullgrad.gradients._cotangent_map import CotangentMap
from fullgrad.gradients._magnitude import Dim, behind_batch, dims_of, largest


def scale_grad(x: Tensor, dim: Dim = None) -> Tensor:
    r"""The input itself, whose gradient is divided by its largest absolute value.

    .. math::
        y = x, \qquad \mathrm{vjp}(g) = \frac{g}{\max_{\mathrm{dim}} |g|}, \qquad \mathrm{jvp}(t) = t

    Where the maximum is 0 or NaN the gradient is unchanged; where it is infinite, infinite elements become NaN and finite ones 0.
    Under ``vmap`` each sample has a maximum of its own. The map is not linear, so ``jvp`` is not its adjoint but the identity;
    double backward differentiates the map as it is, where ties share the derivative, and its own cotangent is normalized in turn.
    Nothing is saved.

    Args:
        x: Any shape, empty ones too; floating, or integer (without a gradient).
        dim: The dimensions that share a maximum, an int or several; None for all. With a batch in front, every other
            dimension gives one maximum per sample.

    Returns:
        ``x`` as a view.

    Raises:
        TypeError: ``x`` is not a tensor, or is bool or complex; ``dim`` is not an integer.
        IndexError: ``x`` has no such dimension.
        ValueError: ``dim`` is empty or names a dimension twice.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([[1.0, -2.0], [30.0, 40.0]], requires_grad=True)
        >>> torch.autograd.grad((fullgrad.scale_grad(x) ** 2).sum(), x)
        (tensor([[ 0.0250, -0.0500],
                [ 0.7500,  1.0000]]),)
        >>> torch.autograd.grad((fullgrad.scale_grad(x, dim=1) ** 2).sum(), x)
        (tensor([[ 0.5000, -1.0000],
                [ 0.7500,  1.0000]]),)

    Source: ``shok.utils.functions.ScaleGrad``.
    """
    checks.real_tensor("scale_grad", "x", x)
    checks.dim("scale_grad", dim, x.ndim)
    return ScaleGrad.apply(x, dim)


class ScaleGrad(CotangentMap):
    """The operator of :func:`scale_grad`."""

    @staticmethod
    @is_identity
    def forward(x: Tensor, dim: Dim = None) -> Tensor:
        return alias(x)

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        if surely(g.numel() == 0):
            return g, None
        (dim,) = ctx.parameters
        m = largest(g, dims_of(dim, g.ndim))
        return g / torch.where(m > 0, m, 1), None

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], x: Tensor, dim: Dim = None) -> tuple[Tensor, int]:
        return cls.apply(x.movedim(in_dims[0] or 0, 0), behind_batch(dim, x.ndim)), 0
