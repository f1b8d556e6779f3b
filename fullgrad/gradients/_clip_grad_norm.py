"""`clip_grad_norm`: the norm of the gradient within a bound."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.batching import aligned
from fullgrad._core.function import alias, is_identity
from fullgrad._core.neighbors import rounded
from fullgrad._core.pieces import pointwise
from fullgrad._core.recomputed import save_inputs, saved_inputs
from fullgrad._core.shards import elementwise_code
from fullgrad._dispatch import is_float, surely
from fullgrad.gradients._cotangent_map import CotangentMap, per_sample
from fullgrad.gradients._magnitude import Dim, behind_batch, dims_of, norm


def clip_grad_norm(x: Tensor, max_norm: Tensor | float, dim: Dim = None, norm_type: float = 2.0) -> Tensor:
    r"""The input itself, whose gradient is scaled down where its norm exceeds a bound.

    .. math::
        y = x, \qquad \mathrm{vjp}(g) = g\, \min\left(1, \frac{m}{\lVert g \rVert_p}\right), \qquad \mathrm{jvp}(t) = t

    for ``max_norm`` :math:`m` and ``norm_type`` :math:`p`, with the norm over ``dim``. A gradient within the bound is unchanged,
    to the last bit. Under ``vmap`` each sample has a norm of its own. The norm is computed in float32 at least and neither
    overflows nor underflows. A NaN makes all elements that share its norm NaN; an infinite element becomes NaN, and finite ones
    that share its norm 0. The map is not linear, so ``jvp`` is not its adjoint but the identity; double backward differentiates
    the map as it is. Saved: ``max_norm`` if it is a tensor.

    Args:
        x: Any shape, empty ones too; floating, or integer (without a gradient).
        max_norm: The largest norm, a positive number, or a tensor of positive numbers that broadcasts to the shape of ``x`` with
            the dimensions in ``dim`` of size 1.
        dim: The dimensions that share a norm, an int or several; None for all.
        norm_type: The order of the norm, positive; ``float("inf")`` for the largest absolute value.

    Returns:
        ``x`` as a view.

    Raises:
        TypeError: ``x`` is not a real tensor, ``max_norm`` is neither a number nor a real tensor, ``norm_type`` is not a
            number, or ``dim`` is not an integer.
        IndexError: ``x`` has no such dimension.
        ValueError: ``max_norm`` or ``norm_type`` is not positive, ``max_norm`` has a shape that does not broadcast, or ``dim``
            is empty or names a dimension twice.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
        >>> torch.func.grad(lambda x: (fullgrad.clip_grad_norm(x, 1.0, dim=1) ** 2 / 2).sum())(x)
        tensor([[0.6000, 0.8000],
                [0.3000, 0.4000]])

    Source: :func:`torch.nn.utils.clip_grad_norm_`, applied anywhere in a network, without its 1e-6 in the denominator.
    """
    checks.real_tensor("clip_grad_norm", "x", x)
    checks.positive_number_or_tensor("clip_grad_norm", "max_norm", max_norm)
    checks.dim("clip_grad_norm", dim, x.ndim)
    checks.positive_number("clip_grad_norm", "norm_type", norm_type, finite=False)
    if max_norm.__class__ is not float and isinstance(max_norm, Tensor):
        named = dims_of(dim, x.ndim)
        shape = [1 if d in named else n for d, n in enumerate(x.shape)]
        checks.broadcasts_to("clip_grad_norm", "max_norm", max_norm, "x with `dim` reduced", shape)
    return ClipGradNorm.apply(x, max_norm, dim, norm_type)


class ClipGradNorm(CotangentMap):
    """The operator of :func:`clip_grad_norm`."""

    @staticmethod
    @is_identity
    def forward(x: Tensor, max_norm: Tensor | float, dim: Dim = None, norm_type: float = 2.0) -> Tensor:
        return alias(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, max_norm, ctx.dim, ctx.norm_type = inputs
        save_inputs(ctx, (max_norm,))

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None]:
        if surely(g.numel() == 0):
            return g, None, None, None
        (m,) = saved_inputs(ctx)
        n, u = norm(g, dims_of(ctx.dim, g.ndim), ctx.norm_type)
        return elementwise_code("clip_grad_norm", _clipped, g, n, u, m), None, None, None

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        in_dims, (x, max_norm, dim, norm_type) = per_sample(info, in_dims, args)
        x, max_norm = aligned(in_dims[:2], (x, max_norm))
        return cls.apply(x, max_norm, behind_batch(dim, x.ndim), norm_type), 0


def _clipped(g: Tensor, n: Tensor, u: Tensor, m: Tensor | float) -> Tensor:
    """The gradient within the bound ``m``, given its norm divided by a unit, and the unit."""
    if not isinstance(m, Tensor):  # a number divided by a tensor is multiplied by its rounded reciprocal
        m = torch.full_like(u, rounded(m, u.dtype) if is_float(m) else m)
    within = n <= m / u
    # Without a division by a norm that is 0, whose derivative is NaN even where it is not taken.
    factor = torch.where(within, 1, m / torch.where(within, 1, n))
    return _rescaled(g, torch.where(within, 1, u), factor)


@pointwise
def _rescaled(g: Tensor, unit: Tensor, factor: Tensor) -> Tensor:
    """``g / unit * factor``, in the dtype of ``g``."""
    return (g / unit * factor).to(g.dtype)
