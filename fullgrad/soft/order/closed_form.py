r"""The relaxations of small rows in closed form, with first derivatives that record nothing.

For plain rows on the CPU whose derivative is not differentiated again: a value and a gradient are twenty kernels, where a
recorded relaxation takes a hundred. Everything else takes the general path through `Method`, which agrees to rounding.

Rows are standardized, :math:`h = (x - \mu) / \sigma,\ z = 1 / (1 + e^{-h}),\ u = z / s`, and a place :math:`i` of them has the
weights :math:`P_i = \Pi(S_i)`. With the cotangent :math:`G_i` of :math:`P_i`:

.. math::
    \bar S_i = w_i \Big(G_i - \frac{\langle w_i, G_i \rangle}{\sum w_i}\Big), \qquad
    \bar x = \frac{\bar h - \operatorname{mean}(\bar h) - h \operatorname{mean}(h \bar h)}{\sigma}, \quad
    \bar h = \frac{z (1 - z)}{s} \bar u

with :math:`w = P` in smooth mode, and :math:`\Pi'` of `projections.simplex` in the others.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullgrad._autocast import matmul
from fullgrad._dispatch import can_reuse_buffers
from fullgrad.soft import _curves as curves
from fullgrad.soft.order._numbers import POWERS, power, weighted
from fullgrad.soft.order._rows import EPSILON
from fullgrad.soft.order.projections.simplex import simplex_excess

# Matrices of weights up to this many elements. Measured by `python -m fullgrad bench softtorch`.
LARGEST = 2**20
# Up to this |u|, exp(2 |u|) does not overflow in float32, and a sigmoid of a difference is a quotient of exponentials.
_FAR = 40.0

_sigmoid_backward = torch.ops.aten.sigmoid_backward.default
_layer_norm_backward = torch.ops.aten.native_layer_norm_backward.default


class SmallRows(NamedTuple):
    """Rows along the last dimension: values x, and u around 0."""

    x: Tensor
    u: Tensor
    z: Tensor
    mean: Tensor
    rstd: Tensor
    scale: float
    mode: str
    gated: bool
    dtype: torch.dtype


def small_rows(x: Tensor, softness: Any, dim: int, options: Any, places: int) -> SmallRows | None:
    """The rows, if closed forms are for them: ``places`` is how many places of a row have weights."""
    mode, _, standardize, gated, *_ = options
    if (
        not standardize
        or softness.__class__ is not float
        or x.device.type != "cpu"
        or not 0 < x.numel() * places <= LARGEST
        or not can_reuse_buffers()
    ):
        return None
    dtype = x.dtype
    if dim != -1:
        x = x.movedim(dim, -1)
    x = x.detach() if dtype is torch.float32 or dtype is torch.float64 else x.detach().float()
    h, mean, rstd = torch.native_layer_norm(x, x.shape[-1:], None, None, EPSILON)
    # Infinities, NaN, and squares that overflow.
    if not rstd.min().item() > 0:
        return None
    z = h.sigmoid_()
    scale = 1 / softness
    return SmallRows(x, (z - 0.5).mul_(scale), z, mean, rstd, scale, mode, gated, dtype)


def project(scores: Tensor, mode: str) -> tuple[Tensor, Any]:
    """The weights of rows of scores, and what `pull_projection` reads."""
    if mode == "smooth":
        p = torch.softmax(scores, -1)
        return p, p
    t = simplex_excess(scores, POWERS[mode])
    return power(t, POWERS[mode]), t


def pull_projection(g: Tensor, kept: Tensor, mode: str) -> Tensor:
    """The gradient of the scores."""
    if mode == "smooth":
        return torch._softmax_backward_data(g, kept, -1, g.dtype)
    w = (kept > 0).to(g.dtype) if mode == "c0" else kept * 2 if mode == "c1" else (kept * kept).mul_(3)
    mean = (w * g).sum(-1, keepdim=True).div_(w.sum(-1, keepdim=True))
    return (g - mean).mul_(w)


def pull_rows(rows: SmallRows, g: Tensor | None, direct: Tensor | None) -> Tensor:
    """The gradient of x from that of u, and what it gets as the values of weighted sums."""
    if g is None:
        assert direct is not None
        return direct
    g = _sigmoid_backward(g.mul_(rows.scale), rows.z)
    g = _layer_norm_backward(g, rows.x, rows.x.shape[-1:], rows.mean, rows.rstd, None, None, [True, False, False])[0]
    return g if direct is None else g.add_(direct)


class NeuralScores:
    r""":math:`S_{ij} = c_i u_j - A_j,\ c_i = 2i - n - 1,\ A_j = \sum_k A(u_j - u_k)`.

    In smooth mode :math:`A(d) = d\,(2R - 1)` with :math:`R_{jk} = w_j / (w_j + w_k),\ w = e^u`: a row takes n exponentials, and
    the sums over k are products of R and of :math:`K = R (1 - R)` with vectors.
    """

    def __init__(self, rows: SmallRows, c: Tensor) -> None:
        u, mode = rows.u, rows.mode
        self.u, self.c, self.mode = u, c, mode
        self.ratio = self.differences = None
        if mode == "smooth" and rows.scale <= 2 * _FAR:
            w = u.exp()
            self.ratio = r = w.unsqueeze(-1) / (w.unsqueeze(-1) + w.unsqueeze(-2))
            both = matmul(r, torch.stack((torch.ones_like(u), u), -1))
            # The sum of 2R - 1 = R_jk - R_kj over k, times u_j, less that with u_k.
            n = u.shape[-1]
            minus_a = (both[..., 1].mul_(2).sub_(u.sum(-1, keepdim=True))).addcmul_(u, both[..., 0].mul_(2).sub_(n), value=-1)
        else:
            self.differences = d = u.unsqueeze(-1) - u.unsqueeze(-2)
            minus_a = curves.absolute(d, 1.0, mode).sum(-1).neg_()
        self.scores = torch.addcmul(minus_a.unsqueeze(-2), c.unsqueeze(-1), u.unsqueeze(-2))

    def pull(self, delta: Tensor) -> Tensor:
        r"""The gradient of u: :math:`\sum_i c_i \bar S_{im} + \sum_k A'(u_m - u_k) (a_m + a_k),\ a_j = -\sum_i \bar S_{ij}`."""
        u, n = self.u, self.u.shape[-1]
        both = matmul(torch.stack((self.c, torch.full_like(self.c, -1.0))), delta)
        g, a = both[..., 0, :], both[..., 1, :]
        if self.ratio is not None:
            # A' = 2R - 1 + 2 (u_m - u_k) K.
            r = self.ratio
            first = matmul(r, torch.stack((torch.ones_like(u), a), -1))
            k = torch.addcmul(r, r, r, value=-1)
            ua = u * a
            sums = matmul(k, torch.stack((torch.ones_like(u), a, u, ua), -1))
            g = g + (first[..., 0] * 2 - n) * a + first[..., 1] * 2 - a.sum(-1, keepdim=True)
            return g + 2 * (ua * sums[..., 0] + u * sums[..., 1] - a * sums[..., 2] - sums[..., 3])
        assert self.differences is not None
        slopes = curves.absolute_slope(self.differences, 1.0, self.mode)
        return slopes.mul_(a.unsqueeze(-1) + a.unsqueeze(-2)).sum(-1).add_(g)


class OwnScores:
    """The elements themselves: the largest of softsort, of which the weights are one row."""

    def __init__(self, rows: SmallRows, sign: float) -> None:
        self.sign = sign
        self.scores = (rows.u if sign > 0 else -rows.u).unsqueeze(-2)

    def pull(self, delta: Tensor) -> Tensor:
        g = delta.squeeze(-2)
        return g if self.sign > 0 else g.neg()


class Weights:
    """The weights of k places in rows, sums with them, and first derivatives.

    ``mix`` (k, places) combines places. Outputs have the places at ``dim``, or not at all where there is one and ``dim`` is None.
    """

    def __init__(self, rows: SmallRows, scores: Any, dim: int, at: int | None, mix: Tensor | None = None) -> None:
        self.rows, self.scores, self.dim, self.at, self.mix = rows, scores, dim, at, mix
        p, self.kept = project(scores.scores, rows.mode)
        self.p = p if mix is None else matmul(mix, p)

    def outputs(self, outputs: str) -> Any:
        """What the operator returns."""
        weights = self._to_place(self.p, 2) if "weights" in outputs else None
        if outputs == "weights":
            return weights
        values = self._to_place(weighted(self.p, self.rows.x), 1)
        return values if weights is None else (values, weights)

    def _to_place(self, y: Tensor, count: int) -> Tensor:
        at = self.at
        y = y.squeeze(-count) if at is None else y if at == -1 else y.movedim(-count, at + 1 - count)
        return y if y.dtype == self.rows.dtype else y.to(self.rows.dtype)

    def gradient(self, outputs: str, *cotangents: Tensor) -> Tensor:
        """The gradient of x."""
        rows, cotangents = self.rows, (*cotangents,)
        g_values = None if outputs == "weights" else self._from_place(cotangents[0], 1)
        g = self._from_place(cotangents[-1], 2) if "weights" in outputs else None
        direct = None if g_values is None else matmul(g_values.unsqueeze(-2), self.p).squeeze(-2)
        u = None
        if rows.gated:
            if g_values is not None:
                outer = g_values.unsqueeze(-1) * rows.x.unsqueeze(-2)
                g = outer if g is None else g + outer
            if self.mix is not None:
                g = matmul(self.mix.mT, g)
            u = self.scores.pull(pull_projection(g, self.kept, rows.mode))
        elif direct is None:
            direct = torch.zeros_like(rows.x)
        return from_rows(pull_rows(rows, u, direct), rows, self.dim)

    def _from_place(self, g: Tensor, count: int) -> Tensor:
        at = self.at
        g = g.unsqueeze(-count) if at is None else g if at == -1 else g.movedim(at + 1 - count, -count)
        return g if g.dtype == self.rows.x.dtype else g.to(self.rows.x.dtype)


class Ranks:
    r"""The ranks :math:`R_j = \sum_i r_i P_{ij} / \sum_i P_{ij}` of all elements, and first derivatives."""

    def __init__(self, rows: SmallRows, scores: Any, dim: int, numbers: Tensor) -> None:
        self.rows, self.scores, self.dim, self.numbers = rows, scores, dim, numbers
        p, self.kept = project(scores.scores, rows.mode)
        both = matmul(torch.stack((numbers, torch.ones_like(numbers))), p)
        self.mass = both[..., 1, :].clamp(min=1e-10)
        self.ranks = both[..., 0, :] / self.mass

    def outputs(self, outputs: str) -> Tensor:
        return from_rows(self.ranks, self.rows, self.dim)

    def gradient(self, outputs: str, g: Tensor) -> Tensor:
        rows = self.rows
        g = (g if self.dim == -1 else g.movedim(self.dim, -1)).to(rows.x.dtype) / self.mass
        # An element without weight anywhere keeps its mass, 1e-10.
        rank = torch.where(self.mass > 1e-10, self.ranks, 0)
        g_weights = (self.numbers.unsqueeze(-1) - rank.unsqueeze(-2)) * g.unsqueeze(-2)
        return from_rows(
            pull_rows(rows, self.scores.pull(pull_projection(g_weights, self.kept, rows.mode)), None), rows, self.dim
        )


def from_rows(y: Tensor, rows: SmallRows, dim: int) -> Tensor:
    """Rows in the layout and dtype of the input."""
    y = y if dim == -1 else y.movedim(-1, dim)
    return y if y.dtype == rows.dtype else y.to(rows.dtype)
