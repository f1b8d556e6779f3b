r"""The relaxations of small rows in closed form, with first derivatives that record nothing.

For plain rows on the CPU whose derivative is not differentiated again: a value and a gradient are forty kernels, where a
relaxation that is recorded takes two hundred. All else takes the general path, through `Method`, which agrees to rounding.

Rows are standardized, :math:`h = (x - \mu) / \sigma,\ z = 1 / (1 + e^{-h}),\ u = z / s`, and place :math:`i` of them has the
weights :math:`P_i = \Pi(S_i)`, of scores :math:`S_i` of the row. With the cotangent :math:`G_i` of :math:`P_i`:

.. math::
    \bar S_i = w_i \Big(G_i - \frac{\langle w_i, G_i \rangle}{\sum w_i}\Big), \qquad
    \bar x = \frac{\bar h - \operatorname{mean}(\bar h) - h \operatorname{mean}(h \bar h)}{\sigma}, \quad
    \bar h = \frac{z (1 - z)}{s} \bar u

where :math:`w = P` in smooth mode, and the slope of the power in the others (`projections.simplex`).
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullgrad._autocast import matmul
from fullgrad._dispatch import can_reuse_buffers
from fullgrad.soft import _curves as curves
from fullgrad.soft.order._numbers import POWERS, power
from fullgrad.soft.order._rows import EPSILON
from fullgrad.soft.order.projections.simplex import power_slopes, simplex_excess

# Matrices of weights up to this many elements: `python -m fullgrad bench softtorch`.
_LARGEST = 2**20
# From this many pairs of elements on, a sigmoid of each difference costs more than a row's exponentials and sums with them.
_MANY = 2**13
# Up to here exp(u) neither overflows nor underflows in float32.
_FAR = 80.0

_silu_backward = torch.ops.aten.silu_backward.default
_sigmoid_backward = torch.ops.aten.sigmoid_backward.default
_layer_norm_backward = torch.ops.aten.native_layer_norm_backward.default


class SmallRows(NamedTuple):
    """Rows along the last dimension."""

    x: Tensor
    z: Tensor
    mean: Tensor
    rstd: Tensor
    scale: float
    """1 / s."""
    options: Any
    dtype: torch.dtype

    @property
    def n(self) -> int:
        """The length of a row."""
        return self.x.shape[-1]

    def pull(self, u: Tensor | None, x: Tensor | None) -> Tensor:
        """The gradient of x, from that of u, which is overwritten, and what x gets as the values of weighted sums."""
        if u is None:
            return torch.zeros_like(self.x) if x is None else x
        g = self._standardized(_sigmoid_backward(u.mul_(self.scale), self.z))
        return g if x is None else g.add_(x)

    def push(self, t: Tensor) -> Tensor:
        """The tangent of u, from that of x."""
        return _sigmoid_backward(self._standardized(t), self.z).mul_(self.scale)

    def _standardized(self, v: Tensor) -> Tensor:
        """The derivative of h times v: the matrix is symmetric."""
        return _layer_norm_backward(v, self.x, self.x.shape[-1:], self.mean, self.rstd, None, None, [True, False, False])[0]


def small_rows(x: Tensor, softness: Any, dim: int, options: Any, places: int) -> SmallRows | None:
    """The rows where closed forms are for them; ``places``: of how many places weights are computed."""
    plain = options[2] and softness.__class__ is float and x.device.type == "cpu"
    if not plain or not 0 < x.numel() * places <= _LARGEST or not can_reuse_buffers():
        return None
    dtype = x.dtype
    x = x.detach() if dim == -1 else x.detach().movedim(dim, -1)
    if dtype.itemsize == 2:
        x = x.float()
    h, mean, rstd = torch.native_layer_norm(x, x.shape[-1:], None, None, EPSILON)
    # Infinities, and numbers whose squares overflow. A NaN makes its row NaN, here too.
    if not torch.min(rstd).item() > 0 and not (x.isnan().any(-1, keepdim=True) | (rstd > 0)).all():
        return None
    return SmallRows(x, h.sigmoid_(), mean, rstd, 1 / softness, options, dtype)


class OwnScores:
    """u itself, or -u: the weights of the last or the first place of softsort."""

    def __init__(self, rows: SmallRows, largest: bool) -> None:
        self.factor = 1.0 if largest else -1.0
        self.scores = rows.z * (self.factor * rows.scale)

    def pull(self, delta: Tensor) -> Tensor:
        """The gradient of u, from that of the scores."""
        return delta if self.factor > 0 else delta.neg_()

    push = pull


class NeuralScores:
    r""":math:`S_{ij} = c_i u_j - A_j` with :math:`c_i = 2i - n - 1` and :math:`A_j = \sum_k A(u_j - u_k)`.

    In smooth mode :math:`A(d) = 2 d \sigma(d) - d`. For many pairs :math:`\sigma(u_j - u_k) = w_j / (w_j + w_k) = R_{jk}` with
    :math:`w = e^u`, and sums over k are products of R, and in the derivative of :math:`K = R (1 - R)`, with vectors.
    """

    def __init__(self, rows: SmallRows, c: Tensor, single: bool = False) -> None:
        """``single``: of one place, without a dimension for it."""
        mode, n = rows.options[0], rows.n
        # Around 0, where the least is lost of differences.
        self.u = u = (rows.z - 0.5).mul_(rows.scale)
        self.c, self.mode, self.single = c, mode, single
        self.ratio = self.differences = None
        if mode == "smooth" and n * rows.x.numel() >= _MANY and rows.scale < _FAR:
            w = u.exp()
            r = w.unsqueeze(-1) + w.unsqueeze(-2)
            self.ratio = r = torch.div(w.unsqueeze(-1), r, out=r)
            # Products from the left are ten times faster than from the right; R + R^T is 1.
            sums = matmul(torch.stack((torch.ones_like(u), u), -2), r).mul_(2)
            minus_a = (u.sum(-1, keepdim=True) - sums[..., 1, :]).addcmul_(u, sums[..., 0, :].sub_(n))
        else:
            self.differences = d = u.unsqueeze(-1) - u.unsqueeze(-2)
            if mode == "smooth":
                minus_a = torch.sub(d, torch.nn.functional.silu(d), alpha=2).sum(-1)
            else:
                minus_a = curves.absolute(d, 1.0, mode).sum(-1).neg_()
        self.scores = (
            torch.addcmul(minus_a, c, u) if single else torch.addcmul(minus_a.unsqueeze(-2), c.unsqueeze(-1), u.unsqueeze(-2))
        )

    def pull(self, delta: Tensor) -> Tensor:
        r"""The gradient of u: :math:`\sum_i c_i \bar S_{im} - \sum_k A'(u_m - u_k) (v_m + v_k),\ v_j = \sum_i \bar S_{ij}`."""
        v, g = (delta, self.c * delta) if self.single else (delta.sum(-2), matmul(self.c, delta))
        own, others = self._slope_sums(v)
        return g.sub_(own).sub_(others)

    def push(self, t: Tensor) -> Tensor:
        r"""The tangent of the scores: :math:`c_i \dot u_j - \sum_k A'(u_j - u_k) (\dot u_j - \dot u_k)`."""
        own, others = self._slope_sums(t)
        a = own - others
        return self.c * t - a if self.single else self.c.unsqueeze(-1) * t.unsqueeze(-2) - a.unsqueeze(-2)

    def _slope_sums(self, v: Tensor) -> tuple[Tensor, Tensor]:
        r""":math:`\sum_k A'(u_j - u_k)\, v_j` and :math:`\sum_k A'(u_j - u_k)\, v_k`; A' is odd."""
        u, n = self.u, self.u.shape[-1]
        if self.ratio is not None:
            # A' = 2R - 1 + 2 (u_j - u_k) K.
            r, uv, one = self.ratio, u * v, torch.ones_like(u)
            first = matmul(torch.stack((one, v), -2), r).mul_(2)
            sums = matmul(torch.stack((one, v, u, uv), -2), torch.addcmul(r, r, r, value=-1)).mul_(2)
            own = (n - first[..., 0, :]) * v + uv * sums[..., 0, :] - v * sums[..., 2, :]
            return own, v.sum(-1, keepdim=True) - first[..., 1, :] + u * sums[..., 1, :] - sums[..., 3, :]
        d = self.differences
        assert d is not None
        if self.mode == "smooth":
            t = _silu_backward(v.unsqueeze(-1).expand_as(d), d).mul_(2)
            return t.sum(-1).sub_(v, alpha=n), v.sum(-1, keepdim=True) - t.sum(-2)
        slopes = curves.absolute_slope(d, 1.0, self.mode)
        return slopes.sum(-1).mul_(v), matmul(v.unsqueeze(-2), slopes).squeeze(-2).neg_()


def _project(scores: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    """The weights, and what `_project_derivative` reads."""
    if mode == "smooth":
        p = torch.softmax(scores, -1)
        return p, p
    t = simplex_excess(scores, POWERS[mode])
    return power(t, POWERS[mode]), t


def _project_derivative(g: Tensor, kept: Tensor, mode: str) -> Tensor:
    """The derivative of the weights times ``g``: the matrix is symmetric."""
    if mode == "smooth":
        return torch._softmax_backward_data(g, kept, -1, g.dtype)
    w = power_slopes(kept, POWERS[mode])
    mean = (w * g).sum(-1, keepdim=True).div_(w.sum(-1, keepdim=True))
    return (g - mean).mul_(w).mul_(POWERS[mode])


class Weights:
    """The weights of places (…, k, n), and sums with them; or of one place (…, n).

    Outputs have the places at the dimension ``at`` of values. ``mix`` (k, places) has weights that combine those of places.
    """

    def __init__(self, rows: SmallRows, scores: Any, dim: int, at: int | None, mix: Tensor | None = None) -> None:
        self.rows, self.scores, self.dim, self.at, self.mix = rows, scores, dim, at, mix
        p, self.kept = _project(scores.scores, rows.options[0])
        self.p = p if mix is None else matmul(mix, p)

    def outputs(self) -> Any:
        """What the operator returns."""
        return self._returned(self.p, None if self.rows.options[4] == "weights" else self._sums(self.p, self.rows.x))

    def _sums(self, weights: Tensor, x: Tensor) -> Tensor:
        return (weights * (x if self.at is None else x.unsqueeze(-2))).sum(-1)

    def _returned(self, weights: Tensor, values: Tensor | None) -> Any:
        """Those of both that the operator returns, with the places where they belong."""
        at, dtype, outputs = self.at, self.rows.dtype, self.rows.options[4]
        if values is not None:
            values = (values if at in (None, -1) else values.movedim(-1, at)).to(dtype)
            if "weights" not in outputs:
                return values
        weights = (weights if at in (None, -1) else weights.movedim(-2, at - 1)).to(dtype)
        return weights if values is None else (values, weights)

    def gradient(self, *cotangents: Tensor) -> Tensor:
        """That of x."""
        rows, p, at = self.rows, self.p, self.at
        x, g, direct = rows.x, None, None
        mode, _, _, gated, outputs, _ = rows.options
        if "weights" in outputs:
            g = cotangents[-1].to(x.dtype)
            g = g if at in (None, -1) else g.movedim(at - 1, -2)
        if outputs != "weights":
            v = cotangents[0].to(x.dtype)
            v = (v if at in (None, -1) else v.movedim(at, -1)).unsqueeze(-1)
            direct = p * v if at is None else matmul(v.mT, p).squeeze(-2)
            if gated:
                outer = v * (x if at is None else x.unsqueeze(-2))
                g = outer if g is None else outer.add_(g)
        u = None
        if gated and g is not None:
            g = g if self.mix is None else matmul(self.mix.mT, g)
            u = self.scores.pull(_project_derivative(g, self.kept, mode))
        return to_input(rows.pull(u, direct), rows, self.dim)

    def tangent(self, t: Tensor) -> Any:
        """That of the outputs, from that of x."""
        rows, p = self.rows, self.p
        mode, _, _, gated, outputs, _ = rows.options
        t = rows_of(t, rows, self.dim)
        if gated:
            moved = _project_derivative(self.scores.push(rows.push(t)), self.kept, mode)
            moved = moved if self.mix is None else matmul(self.mix, moved)
        else:
            moved = torch.zeros_like(p)
        values = None if outputs == "weights" else self._sums(p, t) + self._sums(moved, rows.x)
        return self._returned(moved, values)


class Ranks:
    r"""The ranks :math:`R_j = \sum_i r_i P_{ij} / \sum_i P_{ij}` of all elements."""

    def __init__(self, rows: SmallRows, scores: Any, dim: int, numbers: Tensor) -> None:
        self.rows, self.scores, self.dim, self.numbers = rows, scores, dim, numbers
        p, self.kept = _project(scores.scores, rows.options[0])
        self.mass = p.sum(-2).clamp_(min=1e-10)
        self.ranks = matmul(numbers, p).div_(self.mass)

    def outputs(self) -> Tensor:
        """What the operator returns."""
        return to_input(self.ranks, self.rows, self.dim)

    def gradient(self, g: Tensor) -> Tensor:
        """That of x."""
        rows = self.rows
        g = rows_of(g, rows, self.dim) / self.mass
        # The mass of an element without weight anywhere is the constant 1e-10.
        rank = torch.where(self.mass > 1e-10, self.ranks, 0)
        g = (self.numbers.unsqueeze(-1) - rank.unsqueeze(-2)).mul_(g.unsqueeze(-2))
        u = self.scores.pull(_project_derivative(g, self.kept, rows.options[0])) if rows.options[3] else None
        return to_input(rows.pull(u, None), rows, self.dim)

    def tangent(self, t: Tensor) -> Tensor:
        """That of the outputs, from that of x."""
        rows = self.rows
        t = rows_of(t, rows, self.dim)
        if not rows.options[3]:
            return to_input(torch.zeros_like(t), rows, self.dim)
        p = _project_derivative(self.scores.push(rows.push(t)), self.kept, rows.options[0])
        rank = torch.where(self.mass > 1e-10, self.ranks, 0)
        return to_input((matmul(self.numbers, p) - rank * p.sum(-2)).div_(self.mass), rows, self.dim)


def rows_of(v: Tensor, rows: SmallRows, dim: int) -> Tensor:
    """A tensor like the input as rows."""
    return (v if dim == -1 else v.movedim(dim, -1)).to(rows.x.dtype)


def to_input(y: Tensor, rows: SmallRows, dim: int) -> Tensor:
    """Rows in the layout and dtype of the input."""
    return (y if dim == -1 else y.movedim(-1, dim)).to(rows.dtype)
