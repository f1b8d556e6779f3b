r"""NeuralSort: soft sorting by the weights :math:`P_i = \Pi(-(c_i u + A))`.

:math:`c_i = n + 1 - 2i` for the i-th smallest of n, :math:`A_j = \sum_k A(u_j - u_k)` with the soft absolute value, and
:math:`\Pi` the projection onto the simplex. All functions take rows u of softness 1, in ascending order. The descending order is
the order of -u: its scores in the i-th row are the scores of u in the (n + 1 - i)-th.

Source: Grover et al., https://arxiv.org/abs/1903.08850.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from fullgrad._core.autocast import matmul
from fullgrad.soft.order._numbers import POWERS, weighted
from fullgrad.soft.order._rows import Rows
from fullgrad.soft.order.kernels.blocks import Block, Formula, blocked, one_block
from fullgrad.soft.order.methods._method import Method, has_mass
from fullgrad.soft.order.methods.pairwise_sigmoid import distances
from fullgrad.soft.order.projections.simplex import Excess, power_slopes, project

# At least this many rows share a search for their window, which costs two rows.
ROWS = 32


class NeuralSort(Method):
    r"""The weights :math:`P_i = \Pi((2i - n - 1) u - A)`."""

    def weights(self, rows: Rows, places: Tensor | None = None) -> Tensor:
        u = _centered(rows.u)
        places = torch.arange(rows.n, device=u.device) if places is None else places
        return rows.project(_scores_at(places, rows.n, u, distances(u, rows.mode)))

    def values(self, rows: Rows) -> Tensor:
        u, x = _centered(rows.u), rows.x
        if not one_block(u, x):
            u, order = u.sort(-1)
            x = x.gather(-1, order)
        return rows.moved_back(blocked(Values, rows.mode, u, distances(u, rows.mode), x)[0])

    def ranks(self, rows: Rows) -> Tensor:
        r"""The ranks :math:`\sum_i i P_{ij} / \sum_i P_{ij}`; an element that has no weight anywhere has its hard rank."""
        u, order = torch.sort(_centered(rows.u), dim=-1, stable=True)
        # Places are counted from the hard rank: the difference is small where the weight is not, and nothing cancels.
        rank = rows.numbers(u)
        moment, mass = blocked(Moments, rows.mode, u, distances(u, rows.mode), rank)
        ahead = torch.where(has_mass(mass), moment, 0) / torch.where(has_mass(mass), mass, 1)
        return (rank + ahead).gather(-1, order.argsort(-1))


def _centered(u: Tensor) -> Tensor:
    """The row less its mean, a constant that changes no weight but would cost digits."""
    return u - u.detach().mean(-1, keepdim=True)


class WeightFormula(Formula):
    """A function of u, A and one more row, through the weights P."""

    inputs = ("column", "column", "column")

    @classmethod
    def blocks(cls, mode: str, size: int, *args: Tensor) -> Iterable[Block]:
        r"""Blocks that hold every weight of ascending rows: elements far from the i-th have no weight in the i-th row.

        A score is linear in the coefficient c of the row and the largest score of a row is convex, so their difference f(c) is
        concave and below its tangents at the first and the last row of a block:
        :math:`f(c + d) \le f(c) + d\,(u^* - u)`, with :math:`u^*` the element of the largest score at c.
        """
        (u, a), shape = args[:2], torch.broadcast_shapes(*[v.shape for v in args])
        n, batch = shape[-1], math.prod(shape[:-1])
        if batch == 0:
            return
        limits = torch.finfo(u.dtype)
        # A score lower by this much has the weight 0: its exponential underflows, or it is below any threshold.
        beyond = 1.0 if mode in POWERS else 1.0 - math.log(limits.smallest_normal) - math.log(limits.eps)
        # The rounding error of scores.
        slack = 16 * limits.eps * (n * u.abs().amax(-1, keepdim=True) + a.abs().amax(-1, keepdim=True))
        least = -beyond - slack
        step = max(ROWS, n // 256, size // math.prod(shape))

        def edge(position: int) -> tuple[Tensor, Tensor]:
            scores = torch.addcmul(-a, torch.full((), 2.0 * position + 1 - n, dtype=u.dtype, device=u.device), u)
            largest, place = scores.max(-1, keepdim=True)
            return scores - largest, u - u.gather(-1, place)

        before = edge(0)
        for top in range(0, n, step):
            bottom = min(top + step, n)
            after, gain = edge(bottom), 2.0 * (bottom - top)
            out = (before[0] + gain * before[1].clamp(min=0) < least) | (after[0] - gain * after[1].clamp(max=0) < least)
            columns = (~out).reshape(-1, n).any(0).nonzero()
            left, right = int(columns[0]), int(columns[-1]) + 1
            rows = max(1, size // (batch * (right - left)))
            for first in range(top, bottom, rows):
                yield Block(first, min(first + rows, bottom), left, right, n)
            before = after


class Values(WeightFormula):
    """The product P x, from u, A and x."""

    outputs = ("row",)

    @classmethod
    def value(cls, mode: str, block: Block, *args: Tensor) -> tuple[Tensor]:
        u, a, x = args
        return (weighted(project(_scores(block, u, a), mode), x),)

    @classmethod
    def pull(cls, mode: str, block: Block, *args: Tensor) -> list[Tensor]:
        u, a, x, g = args
        p, slopes, total = _weights_and_slopes(mode, _scores(block, u, a))
        mean = weighted(slopes, x) / total
        from_x = matmul(g.unsqueeze(-2), p).squeeze(-2)
        # Products with g come first: differences of the largest numbers overflow.
        moved = g.unsqueeze(-1) * x.unsqueeze(-2) - (g * mean).unsqueeze(-1)
        return [*_pulled(block, slopes * moved), from_x]


class Moments(WeightFormula):
    r"""The sums :math:`\sum_i (i - r_j) P_{ij}` and :math:`\sum_i P_{ij}`, from u, A and constants r."""

    outputs = ("column", "column")

    @classmethod
    def value(cls, mode: str, block: Block, *args: Tensor) -> tuple[Tensor, Tensor]:
        u, a, r = args
        p = project(_scores(block, u, a), mode)
        return (_ahead(block, r) * p).sum(-2), p.sum(-2)

    @classmethod
    def pull(cls, mode: str, block: Block, *args: Tensor) -> list[Tensor]:
        u, a, r, g_moment, g_mass = args
        _, slopes, total = _weights_and_slopes(mode, _scores(block, u, a))
        g = _ahead(block, r) * g_moment.unsqueeze(-2) + g_mass.unsqueeze(-2)
        mean = (slopes * g).sum(-1) / total
        return _pulled(block, slopes * (g - mean.unsqueeze(-1)))


def _scores(block: Block, u: Tensor, a: Tensor) -> Tensor:
    """The scores of a block."""
    return _scores_at(torch.arange(block.top, block.bottom, device=u.device), block.n, u, a)


def _scores_at(positions: Tensor, n: int, u: Tensor, a: Tensor) -> Tensor:
    """The scores of rows at some positions, counted from 0."""
    return torch.addcmul(-a.unsqueeze(-2), (2 * positions + (1 - n)).to(u.dtype).unsqueeze(-1), u.unsqueeze(-2))


def _ahead(block: Block, r: Tensor) -> Tensor:
    """The positions, counted from 1, less r."""
    return torch.arange(block.top + 1, block.bottom + 1, dtype=r.dtype, device=r.device).unsqueeze(-1) - r.unsqueeze(-2)


def _weights_and_slopes(mode: str, scores: Tensor) -> tuple[Tensor, Tensor, Tensor | float]:
    """The weights p of rows, and w and its sum, where the derivative is w (t - <w, t> / sum w)."""
    if mode == "smooth":
        p = torch.softmax(scores, -1)
        return p, p, 1.0
    power = POWERS[mode]
    t = Excess.apply(scores, power)
    w = power * power_slopes(t, power)
    return t**power, w, w.sum(-1)


def _pulled(block: Block, delta: Tensor) -> list[Tensor]:
    """The gradients of u and A, from the gradient of the scores."""
    c = torch.arange(block.top, block.bottom, dtype=delta.dtype, device=delta.device) * 2 + (1 - block.n)
    return list(matmul(torch.stack([c, -torch.ones_like(c)]), delta).unbind(-2))
