"""The scores of the places of small rows, with their derivatives."""

import functools

import torch
from torch import Tensor

from fullgrad._core.autocast import matmul
from fullgrad._fast.small_rows.expansion import Expansion, terms
from fullgrad._fast.small_rows.rows import SmallRows, looks_at_numbers
from fullgrad.soft import _curves as curves

# From this many pairs of elements on, a sigmoid of each difference costs more than exponentials of the row and sums of them.
MANY = 2**13
# From this many pairs, and elements for each polynomial, on, sums over rows are expanded in polynomials.
_EXPANDED, _FOR_EACH_TERM = 2**18, 2
# Matrices of more pairs leave the cache: 64 rows of 500 take 1,305 ms in c1, of which blocks take 170.
_MOST = 2**22
# Up to here exp(u) neither overflows nor underflows in float32.
_FAR = 80.0

_silu_backward = torch.ops.aten.silu_backward.default


class IdentityScores:
    """The scores u, or -u, of the last or the first place of softsort."""

    def __init__(self, rows: SmallRows, largest: bool) -> None:
        self.factor = 1.0 if largest else -1.0
        self.rows = rows

    def scores(self) -> Tensor:
        """The scores of the place."""
        return self.rows.z * (self.factor * self.rows.scale)

    def pull(self, delta: Tensor) -> Tensor:
        """The gradient of u, from the gradient of the scores, a fresh tensor."""
        return delta if self.factor > 0 else delta.neg_()

    push = pull


class SoftScores:
    """The scores :math:`S_{ij} = -|a_i - u_j|` of the last places of softsort, the last one first, with a the row in order."""

    def __init__(self, rows: SmallRows, k: int) -> None:
        self.rows, self.order = rows, _last_places(rows.z, k)
        self.a = rows.z.gather(-1, self.order)

    def scores(self) -> Tensor:
        """The scores of all places."""
        return self._differences().abs_().mul_(-self.rows.scale)

    def pull(self, delta: Tensor) -> Tensor:
        """The gradient of u, from the gradient of the scores, a fresh tensor."""
        delta = delta.mul_(self._differences().sgn_())
        return delta.sum(-2).scatter_add_(-1, self.order, delta.sum(-1).neg_())

    def push(self, t: Tensor) -> Tensor:
        """The tangent of the scores, from the tangent of u."""
        return self._differences().sgn_().mul_(t.unsqueeze(-2) - t.gather(-1, self.order).unsqueeze(-1))

    def _differences(self) -> Tensor:
        return self.a.unsqueeze(-1) - self.rows.z.unsqueeze(-2)


def _last_places(z: Tensor, k: int) -> Tensor:
    """The elements in the last k places of a stable order, the last one first."""
    if looks_at_numbers(z):  # the selection costs little, but puts equal elements in any order
        a, order = torch.topk(z, k)
        if (a[..., 1:] < a[..., :-1]).all() and (z >= a[..., -1:]).sum() == order.numel():
            return order
    return torch.sort(z, stable=True).indices[..., -k:].flip(-1)


class NeuralScores:
    r"""The scores :math:`S_{ij} = c_i u_j - A_j` with :math:`c_i = 2i - n - 1` and :math:`A_j = \sum_k A(u_j - u_k)`.

    In smooth mode :math:`A(d) = 2 d \sigma(d) - d`. For many pairs :math:`\sigma(u_j - u_k) = w_j / (w_j + w_k) = R_{jk}` with
    :math:`w = e^u`, and sums over k are products of R, and in the derivative of :math:`K = R (1 - R)`, with vectors. Sums over
    long rows are expanded in polynomials.
    """

    def __init__(self, rows: SmallRows, c: Tensor, single: bool = False) -> None:
        """``single``: scores of one place, without a dimension for it."""
        self.rows, self.mode = rows, rows.options[0]
        # Centered at 0, where differences lose the least.
        self.u = (rows.z - 0.5).mul_(rows.scale)
        self.c, self.single = c, single
        self.expands = expands(rows)
        self.by_ratio = self.mode == "smooth" and rows.scale < _FAR and rows.n * rows.x.numel() >= MANY

    def scores(self) -> Tensor:
        """The scores of all places."""
        u, c, minus_a = self.u, self.c, self._minus_a()
        if self.single:
            return torch.addcmul(minus_a, c, u)
        return torch.addcmul(minus_a.unsqueeze(-2), c.unsqueeze(-1), u.unsqueeze(-2))

    def pull(self, delta: Tensor) -> Tensor:
        r"""The gradient of u: :math:`\sum_i c_i \bar S_{im} - \sum_k A'(u_m - u_k) (v_m + v_k),\ v_j = \sum_i \bar S_{ij}`."""
        v, g = (delta, self.c * delta) if self.single else (delta.sum(-2), sum_of_places(self.c, delta))
        return g - self._slope_sums(v, 1)

    def push(self, t: Tensor) -> Tensor:
        r"""The tangent of the scores: :math:`c_i \dot u_j - \sum_k A'(u_j - u_k) (\dot u_j - \dot u_k)`."""
        a = self._slope_sums(t, -1)
        return self.c * t - a if self.single else self.c.unsqueeze(-1) * t.unsqueeze(-2) - a.unsqueeze(-2)

    def _minus_a(self) -> Tensor:
        u = self.u
        if self.expands:
            return self._expansion.distances(torch.ones_like(u).unsqueeze(-2)).squeeze(-2).neg_()
        if self.by_ratio:
            # Products from the left are ten times as fast as from the right; R + R^T is 1.
            sums = matmul(torch.stack((torch.ones_like(u), u), -2), self._ratio).mul_(2)
            return (u.sum(-1, keepdim=True) - sums[..., 1, :]).addcmul_(u, sums[..., 0, :].sub_(u.shape[-1]))
        d = self._differences
        if self.mode == "smooth":
            return torch.sub(d, torch.nn.functional.silu(d), alpha=2).sum(-1)
        return curves.absolute(d, 1.0, self.mode).sum(-1).neg_()

    def _slope_sums(self, v: Tensor, sign: int) -> Tensor:
        r"""The sums :math:`\sum_k A'(u_j - u_k) (v_j \pm v_k)`; A' is odd."""
        u, n = self.u, self.u.shape[-1]
        if self.expands:
            own, others = self._expansion.slopes(torch.stack((torch.ones_like(v), v), -2)).unbind(-2)
            own = own * v
        elif self.by_ratio:
            # A' = 2R - 1 + 2 (u_j - u_k) K.
            r, uv, one = self._ratio, u * v, torch.ones_like(u)
            first = matmul(torch.stack((one, v), -2), r).mul_(2)
            sums = matmul(torch.stack((one, v, u, uv), -2), torch.addcmul(r, r, r, value=-1)).mul_(2)
            own = (n - first[..., 0, :]) * v + uv * sums[..., 0, :] - v * sums[..., 2, :]
            others = v.sum(-1, keepdim=True) - first[..., 1, :] + u * sums[..., 1, :] - sums[..., 3, :]
        elif self.mode == "smooth":
            d = self._differences
            t = _silu_backward(v.unsqueeze(-1).expand_as(d), d).mul_(2)
            own, others = t.sum(-1).sub_(v, alpha=n), v.sum(-1, keepdim=True) - t.sum(-2)
        else:
            slopes = curves.absolute_slope(self._differences, 1.0, self.mode)
            own, others = slopes.sum(-1).mul_(v), matmul(v.unsqueeze(-2), slopes).squeeze(-2).neg_()
        return own.add_(others, alpha=sign)

    @functools.cached_property
    def _expansion(self) -> Expansion:
        """The expansion of the differences."""
        return Expansion(self.u, self.rows.scale / 2)

    @functools.cached_property
    def _ratio(self) -> Tensor:
        """The matrix R."""
        w = self.u.exp()
        r = w.unsqueeze(-1) + w.unsqueeze(-2)
        return torch.div(w.unsqueeze(-1), r, out=r)

    @functools.cached_property
    def _differences(self) -> Tensor:
        """The differences u_j - u_k."""
        return self.u.unsqueeze(-1) - self.u.unsqueeze(-2)


def expands(rows: SmallRows) -> bool:
    """Whether sums over pairs are expanded: on the CPU, where the matrices of an expansion are kept. Elements are from minus half
    of the scale to half of it.
    """
    many = rows.options[0] == "smooth" and rows.n * rows.x.numel() >= _EXPANDED
    return many and rows.x.is_cpu and _FOR_EACH_TERM * terms(rows.scale / 2, rows.x.dtype) <= rows.n


def has_few_pairs(rows: SmallRows) -> bool:
    """Whether their matrices are small, or are not needed."""
    return not rows.x.is_cpu or rows.n * rows.x.numel() <= _MOST or expands(rows)


def sum_of_places(c: Tensor, p: Tensor) -> Tensor:
    r"""The rows :math:`\sum_i c_i P_{ij}` of numbers (…, k) and matrices (…, k, n)."""
    return matmul(c, p) if c.ndim == 1 else matmul(c.unsqueeze(-2), p).squeeze(-2)
