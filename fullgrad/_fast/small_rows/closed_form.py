r"""The relaxations of small rows in closed form, with first derivatives that record nothing.

For small rows (`rows`) whose derivative is not differentiated again: a value and a gradient take forty kernels, a recorded
relaxation takes two hundred. Everything else is computed by the general method, which agrees up to rounding.

Rows are standardized, :math:`h = (x - \mu) / \sigma,\ z = 1 / (1 + e^{-h}),\ u = z / s`, and place :math:`i` has the
weights :math:`P_i = \Pi(S_i)` of the scores :math:`S_i`. With the cotangent :math:`G_i` of :math:`P_i`:

.. math::
    \bar S_i = w_i \Big(G_i - \frac{\langle w_i, G_i \rangle}{\sum w_i}\Big), \qquad
    \bar x = \frac{\bar h - \operatorname{mean}(\bar h) - h \operatorname{mean}(h \bar h)}{\sigma}, \quad
    \bar h = \frac{z (1 - z)}{s} \bar u

where :math:`w = P` in smooth mode, and the slope of the power in the others (`projections.simplex`).
"""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core.opmath import cast
from fullgrad._fast.small_rows.rows import SmallRows, looks_at_numbers, rows_of, to_input
from fullgrad._fast.small_rows.scores import sum_of_places
from fullgrad.soft.order._numbers import POWERS, power
from fullgrad.soft.order._operators.rank import hard_rank
from fullgrad.soft.order.methods._method import has_mass
from fullgrad.soft.order.projections.simplex import power_slopes, simplex_excess

_softmax_backward = torch.ops.aten._softmax_backward_data.default


def _project(scores: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    """The weights, and the tensor that `_project_derivative` reads."""
    if mode == "smooth":
        p = torch.softmax(scores, -1)
        return p, p
    t = simplex_excess(scores, POWERS[mode])
    return power(t, POWERS[mode]), t


def _project_derivative(g: Tensor, kept: Tensor, mode: str) -> Tensor:
    """The derivative of the weights times ``g``, as a fresh tensor: the matrix is symmetric."""
    if mode == "smooth":
        return _softmax_backward(g, kept, -1, kept.dtype)
    w = power_slopes(kept, POWERS[mode])
    mean = (w * g).sum(-1, keepdim=True) / w.sum(-1, keepdim=True)
    return (g - mean).mul_(w).mul_(POWERS[mode])


class Weights:
    """The weights of places (…, k, n), or of one place (…, n), and weighted sums.

    Values have their places at the dimension ``at``. ``mix`` (k, places) combines the weights of places. ``returned`` holds the
    weights in smooth mode, if the operator has returned them.
    """

    def __init__(
        self, rows: SmallRows, scores: Any, dim: int, at: int | None, mix: Tensor | None = None, returned: Tensor | None = None
    ) -> None:
        self.rows, self.scores, self.dim, self.at, self.mix = rows, scores, dim, at, mix
        if returned is not None:
            self.p = self.kept = returned if at in (None, -1) else returned.movedim(at - 1, -2)
            return
        self.p, self.kept = _project(scores.scores(), rows.options[0])
        if mix is not None:
            self.p = self._mixed(self.p)

    def _mixed(self, p: Tensor) -> Tensor:
        """The weights (…, k, n) of the combined places."""
        assert self.mix is not None
        # So few rows are no work for a matrix product, and these products fuse.
        return (self.mix.unsqueeze(-1) * p.unsqueeze(-3)).sum(-2)

    def outputs(self) -> Any:
        """The outputs of the operator."""
        return self._returned(self.p, None if self.rows.options[4] == "weights" else self._averages())

    def _sums(self, weights: Tensor, values: Tensor) -> Tensor:
        return (weights * (values if self.at is None else values.unsqueeze(-2))).sum(-1)

    def _averages(self) -> Tensor:
        y, origin = self._sums(self.p, self.rows.values), self.rows.origin
        return y if origin is None else y + (origin.squeeze(-1) if self.at is None else origin)

    def _returned(self, weights: Tensor, values: Tensor | None) -> Any:
        """The values, the weights or both, as the operator returns them, with the places in their dimension."""
        at, dtype, outputs = self.at, self.rows.dtype, self.rows.options[4]
        if values is not None:
            values = cast(values if at in (None, -1) else values.movedim(-1, at), dtype)
            if "weights" not in outputs:
                return values
        weights = cast(weights if at in (None, -1) else weights.movedim(-2, at - 1), dtype)
        return weights if values is None else (values, weights)

    def gradient(self, *cotangents: Tensor) -> Tensor:
        """The gradient of x."""
        rows, p, at = self.rows, self.p, self.at
        g, direct = None, None
        mode, _, _, gated, outputs, _ = rows.options
        if "weights" in outputs:
            g = cast(cotangents[-1], p.dtype)
            g = g if at in (None, -1) else g.movedim(at - 1, -2)
        if outputs != "weights":
            v = cast(cotangents[0], p.dtype)
            v = v if at in (None, -1) else v.movedim(at, -1)
            direct = p * v.unsqueeze(-1) if at is None else sum_of_places(v, p)
            if gated:
                outer = v.unsqueeze(-1) * (rows.values if at is None else rows.values.unsqueeze(-2))
                g = outer if g is None else outer.add_(g)
        u = None
        if gated and g is not None:
            g = g if self.mix is None else (self.mix.mT.unsqueeze(-1) * g.unsqueeze(-3)).sum(-2)
            u = self.scores.pull(_project_derivative(g, self.kept, mode))
        return to_input(rows.pull(u, direct), rows, self.dim)

    def tangent(self, t: Tensor) -> Any:
        """The tangent of the outputs, from the tangent of x."""
        rows, p = self.rows, self.p
        mode, _, _, gated, outputs, _ = rows.options
        t = rows_of(t, rows, self.dim)
        if gated:
            moved = _project_derivative(self.scores.push(rows.push(t)), self.kept, mode)
            moved = moved if self.mix is None else self._mixed(moved)
        else:
            moved = torch.zeros_like(p)
        values = None if outputs == "weights" else self._sums(p, rows.direct(t)) + self._sums(moved, rows.values)
        return self._returned(moved, values)


class Ranks:
    r"""The ranks :math:`R_j = \sum_i r_i P_{ij} / \sum_i P_{ij}` of all elements."""

    def __init__(self, rows: SmallRows, scores: Any, dim: int, descending: bool) -> None:
        self.rows, self.scores, self.dim, n = rows, scores, dim, rows.n
        self.numbers = numbers = rows.arange(n, -1, n) if descending else rows.arange(1, 1, n)
        p, self.kept = _project(scores.scores(), rows.options[0])
        self.mass = p.sum(-2)
        self.ranks, self.lacks = sum_of_places(numbers, p), None
        lacks = ~has_mass(self.mass)
        if not looks_at_numbers(rows.x) or lacks.any():  # they have their hard rank
            self.lacks = lacks
            self.mass = torch.where(self.lacks, 1, self.mass)
            self.ranks = torch.where(self.lacks, hard_rank(rows.x, -1, descending), self.ranks)
        self.ranks = self.ranks / self.mass

    def outputs(self) -> Tensor:
        """The outputs of the operator."""
        return to_input(self.ranks, self.rows, self.dim)

    def gradient(self, g: Tensor) -> Tensor:
        """The gradient of x."""
        rows = self.rows
        g = rows_of(g, rows, self.dim) / self.mass
        g = g if self.lacks is None else torch.where(self.lacks, 0, g)
        numbers = self.numbers.unsqueeze(-1) - self.ranks.unsqueeze(-2)
        g = numbers.mul_(g.unsqueeze(-2))
        u = self.scores.pull(_project_derivative(g, self.kept, rows.options[0])) if rows.options[3] else None
        return to_input(rows.pull(u, None), rows, self.dim)

    def tangent(self, t: Tensor) -> Tensor:
        """The tangent of the outputs, from the tangent of x."""
        rows = self.rows
        t = rows_of(t, rows, self.dim)
        if not rows.options[3]:
            return to_input(torch.zeros_like(t), rows, self.dim)
        p = _project_derivative(self.scores.push(rows.push(t)), self.kept, rows.options[0])
        moved = (sum_of_places(self.numbers, p) - self.ranks * p.sum(-2)) / self.mass
        return to_input(moved if self.lacks is None else torch.where(self.lacks, 0, moved), rows, self.dim)
