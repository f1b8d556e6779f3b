"""Sums over all pairs of a row: the ranks that a soft comparison of every pair gives, and the soft distances to all others.

Source of the ranks: Qin, Liu, Li, https://doi.org/10.1007/s10791-009-9124-x.
"""

from torch import Tensor

from fullgrad._autocast import matmul
from fullgrad.soft import _curves as curves
from fullgrad.soft._abs import Abs
from fullgrad.soft._sigmoidal import Sigmoidal
from fullgrad.soft.order._rows import Rows
from fullgrad.soft.order.kernels.blocks import Block, Formula, blocked
from fullgrad.soft.order.methods._method import Method


class PairwiseSigmoid(Method):
    r"""Ranks count softly how many elements are smaller: :math:`R_j = 1/2 + \sum_k S(u_j - u_k)`.

    An element counts itself by a half.
    """

    has_weights = has_values = values_are_weighted_sums = False

    def ranks(self, rows: Rows) -> Tensor:
        return blocked(Steps, rows.mode, rows.u, rows.u)[0] + 0.5


def distances(u: Tensor, mode: str) -> Tensor:
    r"""The sum of the soft distances from each element to all, :math:`A_j = \sum_k A(u_j - u_k)`. Rows of softness 1."""
    return blocked(Distances, mode, u, u)[0]


class Steps(Formula):
    r""":math:`y_j = \sum_k S(r_j - v_k)`."""

    inputs = ("row", "column")
    outputs = ("row",)

    @staticmethod
    def value(mode: str, block: Block, *args: Tensor) -> tuple[Tensor]:
        return (Sigmoidal.apply(_differences(*args), 1.0, mode, False).sum(-1),)

    @staticmethod
    def fast(mode: str, block: Block, *args: Tensor) -> tuple[Tensor]:
        return (curves.sigmoid(_differences(*args), 1.0, mode).sum(-1),)

    @staticmethod
    def pull(mode: str, block: Block, *args: Tensor) -> tuple[Tensor, Tensor]:
        r, v, g = args
        return _pulled(curves.slope(_differences(r, v), 1.0, mode), g)


class Distances(Formula):
    r""":math:`y_j = \sum_k A(r_j - v_k)`."""

    inputs = ("row", "column")
    outputs = ("row",)

    @staticmethod
    def value(mode: str, block: Block, *args: Tensor) -> tuple[Tensor]:
        return (Abs.apply(_differences(*args), 1.0, mode, False).sum(-1),)

    @staticmethod
    def fast(mode: str, block: Block, *args: Tensor) -> tuple[Tensor]:
        return (curves.absolute(_differences(*args), 1.0, mode).sum(-1),)

    @staticmethod
    def pull(mode: str, block: Block, *args: Tensor) -> tuple[Tensor, Tensor]:
        r, v, g = args
        return _pulled(curves.absolute_slope(_differences(r, v), 1.0, mode), g)


def _differences(r: Tensor, v: Tensor) -> Tensor:
    return r.unsqueeze(-1) - v.unsqueeze(-2)


def _pulled(slopes: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of a sum over pairs, from the slope of each pair."""
    return g * slopes.sum(-1), -matmul(g.unsqueeze(-2), slopes).squeeze(-2)
