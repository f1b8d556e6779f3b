"""Sums over all pairs of a row: the ranks by soft comparison of every pair, and the soft distances to all others.

Source of the ranks: Qin, Liu, Li, https://doi.org/10.1007/s10791-009-9124-x.
"""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from fullgrad._core.autocast import matmul
from fullgrad.soft import _curves as curves
from fullgrad.soft._abs import Abs
from fullgrad.soft._relaxation import Relaxation
from fullgrad.soft._sigmoidal import Sigmoidal
from fullgrad.soft.order._rows import Rows
from fullgrad.soft.order.kernels.blocks import Block, Formula, blocked
from fullgrad.soft.order.kernels.exponential import laplace_sums
from fullgrad.soft.order.methods._method import Method


class PairwiseSigmoid(Method):
    r"""Ranks count softly how many elements are smaller: :math:`R_j = 1/2 + \sum_k S(u_j - u_k)`.

    An element counts itself by a half.
    """

    values_are_weighted_sums = False

    def ranks(self, rows: Rows) -> Tensor:
        if rows.mode == "laplace":
            return laplace_sums(rows.z, rows.softness) + 0.5
        u = rows.u
        return blocked(Steps, rows.mode, u, u)[0] + 0.5


def distances(u: Tensor, mode: str) -> Tensor:
    r"""The sum of the soft distances from each element to all, :math:`A_j = \sum_k A(u_j - u_k)`, for softness 1."""
    return blocked(Distances, mode, u, u)[0]


class SumOfPairs(Formula):
    r"""The sums :math:`y_j = \sum_k f(r_j - v_k)` of a curve f, given with its slope and its operator."""

    inputs = ("row", "column")
    outputs = ("row",)
    operator: ClassVar[type[Relaxation]]
    curve: ClassVar[Callable[[Tensor, float, str], Tensor]]
    slope: ClassVar[Callable[[Tensor, float, str], Tensor]]

    @classmethod
    def value(cls, mode: str, block: Block, *args: Tensor) -> tuple[Tensor]:
        d = _without_own(block, _differences(*args))
        return (cls.operator.apply(d, 1.0, mode, False).sum(-1),)

    @classmethod
    def fast(cls, mode: str, block: Block, *args: Tensor) -> tuple[Tensor]:
        return (cls.curve(_differences(*args), 1.0, mode).sum(-1),)

    @classmethod
    def pull(cls, mode: str, block: Block, *args: Tensor) -> tuple[Tensor, Tensor]:
        r, v, g = args
        slopes = _without_own(block, cls.slope(_differences(r, v), 1.0, mode))
        return g * slopes.sum(-1), -matmul(g.unsqueeze(-2), slopes).squeeze(-2)


class Steps(SumOfPairs):
    """The sums of the sigmoid."""

    operator, curve, slope = Sigmoidal, staticmethod(curves.sigmoid), staticmethod(curves.slope)


class Distances(SumOfPairs):
    """The sums of the soft absolute value."""

    operator, curve, slope = Abs, staticmethod(curves.absolute), staticmethod(curves.absolute_slope)


def _without_own(block: Block, pairs: Tensor) -> Tensor:
    """Pairs with 0 where an element meets itself, which has no derivative: its two slopes would take the digits of small ones."""
    offset = block.top - block.left
    own = torch.zeros_like(pairs.diagonal(offset, -2, -1))
    return torch.diagonal_scatter(pairs, own, offset, -2, -1)


def _differences(r: Tensor, v: Tensor) -> Tensor:
    return r.unsqueeze(-1) - v.unsqueeze(-2)
