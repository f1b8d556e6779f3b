r"""Sums over a row, :math:`\sum_k v_k f(u_j - u_k)`, of the soft distance and its slope, in time O(n) for each row.

On an interval the distance of two numbers is a sum of products of polynomials, :math:`f(x - y) = \sum_{pq} M_{pq} T_p(x) T_q(y)`
with those of Chebyshev. The sums over a row are then moments :math:`\sum_k v_k T_q(u_k)`, a matrix, and values of polynomials.
f is analytic where :math:`|\operatorname{Im} x| < \pi`: its poles are those of the sigmoid. So m polynomials on the interval
from -a to a are off by about :math:`\rho^{-m}` with :math:`\rho = \pi / a + \sqrt{1 + (\pi / a)^2}`. For a softness of 0.1, where
a is 5, 30 are enough in float32.
"""

import functools
import math

import torch
from torch import Tensor

from fullgrad._core.autocast import matmul
from fullgrad.soft import _curves as curves


class Expansion:
    """The distances of numbers from -end to end."""

    def __init__(self, u: Tensor, end: float) -> None:
        self.basis = polynomials(u / end, terms(end, u.dtype))
        self.distance, self.slope = matrices(end, u.dtype)

    def distances(self, v: Tensor) -> Tensor:
        r"""The sums :math:`\sum_k v_k A(u_j - u_k)` of vectors (…, r, n)."""
        return matmul(matmul(matmul(v, self.basis.mT), self.distance), self.basis)

    def slopes(self, v: Tensor) -> Tensor:
        r"""The sums :math:`\sum_k v_k A'(u_j - u_k)` of vectors (…, r, n)."""
        return matmul(matmul(matmul(v, self.basis.mT), self.slope), self.basis)


def polynomials(t: Tensor, count: int) -> Tensor:
    """The first Chebyshev polynomials (…, m, n) of numbers (…, n) from -1 to 1, by their recurrence."""
    found, twice = t.new_empty(count, *t.shape), 2 * t
    found[0], found[1] = 1, t
    for k in range(2, count):
        torch.mul(twice, found[k - 1], out=found[k]).sub_(found[k - 2])
    return found.movedim(0, -2)


def terms(end: float, dtype: torch.dtype) -> int:
    """How many polynomials there must be, so that their sums are off by less than the numbers are rounded."""
    return max(2, math.ceil(math.log(4 / torch.finfo(dtype).eps) / math.asinh(math.pi / end)))


@functools.lru_cache(maxsize=64)
def matrices(end: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The coefficients of the distance and of its slope, from their values at Chebyshev's nodes, on the CPU."""
    m = terms(end, dtype)
    order = torch.arange(m, dtype=torch.float64, device="cpu")
    angle = math.pi / m * (order + 0.5)
    x, to_coefficients = end * angle.cos(), 2 / m * torch.cos(order.unsqueeze(-1) * angle)
    to_coefficients[0] /= 2
    d = x - x.unsqueeze(-1)
    found = [to_coefficients @ f(d, 1.0, "smooth") @ to_coefficients.mT for f in (curves.absolute, curves.absolute_slope)]
    return found[0].to(dtype), found[1].to(dtype)
