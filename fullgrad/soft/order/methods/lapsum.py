r"""LapSum: the values at which a sum of soft steps has the height of each place; O(n log n) time and O(n) memory.

Source: Struski et al., https://arxiv.org/abs/2503.06242.
"""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core.opmath import wide
from fullgrad._dispatch import opaque
from fullgrad.soft.order._numbers import RowFunction, tie_bounds
from fullgrad.soft.order._rows import Rows
from fullgrad.soft.order.kernels.exponential import cross_sums, decayed_sums, laplace_sums
from fullgrad.soft.order.methods._method import Method


class LapSum(Method):
    r"""Values :math:`y_i` with :math:`\sum_j S(y_i - u_j) = i - 1/2`, S the step of a Laplace distribution; ranks
    :math:`1/2 + \sum_k S(u_j - u_k)`.
    """

    values_are_weighted_sums = False

    def values(self, rows: Rows) -> Tensor:
        y = Quantiles.apply(wide(rows.z) / rows.softness) * rows.softness
        return rows.restore(y.to(rows.z.dtype))

    def ranks(self, rows: Rows) -> Tensor:
        return laplace_sums(rows.z, rows.softness) + 0.5


class Quantiles(RowFunction):
    r"""The values of rows, with softness 1.

    .. math::
        D\, t = \frac{W t}{W 1}, \qquad W_{ij} = e^{-|y_i - u_j|}

    Saved: the row and the output.
    """

    saves = (0, 1)

    @staticmethod
    @opaque("laplace_quantiles", fake=lambda u: torch.empty_like(u, memory_format=torch.contiguous_format))
    def forward(u: Tensor) -> Tensor:
        r"""The value. Between two elements the sum of steps is :math:`l - \frac12 A / E + \frac12 B e^{-\delta} E`
        with :math:`E = e^{y - a_l}` and the gap :math:`\delta`: a quadratic equation, solved in logarithms.
        """
        n = u.shape[-1]
        if n == 0:
            return u.clone()
        a = u.sort(-1).values
        first, last = tie_bounds(a)
        ones = torch.ones_like(a)
        left, right = decayed_sums(a, first, last, ones, ones)
        count = (last - first + 1).to(a.dtype)
        heights = first + (count + right - left) / 2
        places = torch.arange(n, dtype=a.dtype, device=a.device).expand(a.shape) + 0.5
        # The number of elements at or below each value, and the sums on both sides of the gap around it.
        below = torch.searchsorted(heights.contiguous(), places.contiguous(), right=True)
        low, high = (below - 1).clamp(min=0), below.clamp(max=n - 1)
        log_a, log_b = torch.log(left + count).gather(-1, low), torch.log(right + count).gather(-1, high)
        gap = a.gather(-1, high) - a.gather(-1, low)
        b = below - places
        root = torch.sqrt(b * b + torch.exp(log_a + log_b - gap))
        # The root without cancellation; beyond the ends one side has no elements.
        inside = torch.where(b > 0, log_a - torch.log(b + root), torch.log(root - b) - log_b + gap)
        before_all = torch.log(2 * places) - log_b
        after_all = log_a - torch.log(2 * (n - places))
        return a.gather(-1, low) + torch.where(below == 0, before_all, torch.where(below == n, after_all, inside))

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> Tensor:
        u, y = ctx.saved_tensors
        return cross_sums(u, y, g / cross_sums(y, u, torch.ones_like(u)))

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        u, y = ctx.saved_tensors
        return cross_sums(y, u, t) / cross_sums(y, u, torch.ones_like(u))
