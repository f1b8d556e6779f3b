"""Losses of sparse weights: their common rules, and how targets and reductions are read."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.opmath import to_opmath
from fullgrad._core.recomputed import saved_inputs
from fullgrad._dispatch import has_shape
from fullgrad.soft.order._numbers import RowFunction
from fullgrad.soft.simplex._entmax import rows_and_exponent

REDUCTIONS = ("none", "mean", "sum")


class FenchelYoung(RowFunction):
    r"""The loss :math:`\langle x, p - y \rangle - \Omega(p) + \Omega(y)` of rows of scores x, targets y and their weights p.

    .. math::
        D_x = p - y, \qquad D_y = \nabla \Omega(y) - x, \qquad D_\alpha = \partial_\alpha \Omega(y) - \partial_\alpha \Omega(p),
        \qquad D_p = 0

    p is an operator of x and :math:`\alpha`. The loss has no derivative through p, which maximizes it; higher derivatives go
    through p. A subclass defines :math:`\Omega`. Saved: x, p and y.
    """

    saves = range(4)
    omega: ClassVar[Callable[..., Tensor]]
    omega_slope: ClassVar[Callable[..., Tensor]]
    omega_by_exponent: ClassVar[Callable[..., Tensor]]

    @classmethod
    def value(cls, x: Tensor, p: Tensor, y: Tensor, alpha: Tensor | float) -> Tensor:
        """The loss, from scores less the mean score of the target, which changes nothing where both sum to 1: a confident row
        gives 0, not the rounding of its scores. Classes of weight 0 are left out, as they may be at minus infinity.
        """
        mean = (torch.where(y == 0, 0, x) * y).sum(-1, keepdim=True)
        d = p - y
        product = (torch.where(d == 0, 0, x - mean) * d).sum(-1, keepdim=True) + mean * (1 - y.sum(-1, keepdim=True))
        return product - cls.omega(p, alpha) + cls.omega(y, alpha)

    @classmethod
    def _slopes(cls, ctx: Any, needed: tuple[bool, ...]) -> list[Tensor | None]:
        x, p, y, alpha = saved_inputs(ctx)
        return [
            p - y if needed[0] else None,
            None,
            cls.omega_slope(y, alpha) - x if needed[2] else None,
            cls.omega_by_exponent(y, alpha) - cls.omega_by_exponent(p, alpha) if needed[3] else None,
        ]

    @classmethod
    def vjp(cls, ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        return tuple([None if d is None else g * d for d in cls._slopes(ctx, ctx.needs_input_grad)])

    @classmethod
    def jvp(cls, ctx: Any, *tangents: Tensor | None) -> Tensor | None:
        slopes = cls._slopes(ctx, tuple([t is not None for t in tangents]))
        total: Any = None
        for t, d in zip(tangents, slopes, strict=True):
            if t is not None and d is not None:
                # The slope is infinite at a target of 0; a target that stays there does not see it.
                part = (t * torch.where((t == 0) & d.isinf(), 0, d)).sum(-1, keepdim=True)
                total = part if total is None else total + part
        return total


def fenchel_young(
    name: str,
    loss: type[FenchelYoung],
    weights: Callable[..., Tensor],
    x: Tensor,
    target: Any,
    alpha: Tensor | float,
    dim: int,
    ignore_index: int,
    reduction: str,
) -> Tensor:
    """The loss of checked scores, reduced as :func:`torch.nn.functional.cross_entropy` does."""
    checks.choice(name, "reduction", reduction, REDUCTIONS)
    checks.real_tensor(name, "target", target)
    x = x if x.ndim else x.reshape(1)
    rows, alpha = rows_and_exponent(name, x, alpha, dim)
    counted: Tensor | None = None
    if target.is_floating_point():
        if not has_shape(target.shape, x.shape):
            raise ValueError(f"{name}: `target` must have the shape {tuple(x.shape)} of `x`, got {tuple(target.shape)}.")
        y = to_opmath(target)[0].movedim(dim, -1)
    else:
        shape = rows.shape[:-1]
        if not has_shape(target.shape, shape):
            raise ValueError(
                f"{name}: `target` must have the shape {tuple(shape)} of `x` without `dim`, got {tuple(target.shape)}."
            )
        if not isinstance(ignore_index, (int, torch.SymInt)):
            raise TypeError(f"{name}: `ignore_index` must be an integer, got {ignore_index!r}.")
        counted = kept = target != ignore_index
        y = torch.zeros_like(rows).scatter(-1, torch.where(kept, target, 0).long().unsqueeze(-1), 1.0)
    losses = loss.apply(rows, weights(rows, alpha), y, alpha).squeeze(-1)
    if counted is not None:
        losses = torch.where(counted, losses, 0)
    if reduction == "mean":
        count = losses.numel() if counted is None else counted.sum()
        return (losses.sum() / count).to(x.dtype)
    return (losses.sum() if reduction == "sum" else losses).to(x.dtype)
