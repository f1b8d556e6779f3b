"""The kernels of bounded support over a sorted row: c0, c1, c2. The support is a window, and sums use prefix sums of powers."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core.recomputed import saved_inputs
from fullgrad.soft.order._numbers import RowFunction, group_sums, middle
from fullgrad.soft.order.kernels.prefix_sums import power_sums, radii, signed


def averages(a: Tensor, h: Tensor, ties: tuple[Tensor, Tensor], alpha: int) -> Tensor:
    r"""The averages :math:`\sum_j [c_i - |a_i - a_j|]_+^\alpha h_j` of an ascending row, whose weights sum to 1; ``ties`` are
    the `tie_bounds` of its equal elements.
    """
    first, last = ties
    c, start, stop, column_start, column_stop = Radius.apply(a, first, last, alpha)
    offset = middle(h)
    h = h - offset
    ends = torch.stack((a - c, a + c))
    left, right = PowerSums.apply(ends, a, h, start, stop, column_start, column_stop, alpha).unbind(0)
    return signed(left, alpha) + right + c**alpha * group_sums(h, first) + offset


class PowerSums(RowFunction):
    r"""Sums of a power over a window of an ascending row ``y``.

    .. math::
        s_i = \sum_{j = \mathrm{start}_i}^{\mathrm{stop}_i - 1} (x_i - y_j)^\beta f_j

    The windows are constant, and ascend with ``i``; the windows of the transpose, over ``i`` for each ``j``, are ``column_start``
    and ``column_stop``. ``x`` ascends too, and in a window ``x`` and ``y`` lie less than 2 apart. The family is closed:

    .. math::
        ds = \beta\,dx\,s^{(\beta - 1)} - \beta\,s^{(\beta - 1)}(dy\,f) + s(df)

    and the transpose exchanges ``x`` and ``y``. All arguments broadcast. Saved: the inputs.
    """

    saves = range(8)

    @staticmethod
    def forward(
        x: Tensor, y: Tensor, f: Tensor, start: Tensor, stop: Tensor, column_start: Tensor, column_stop: Tensor, beta: int
    ) -> Tensor:
        return power_sums(x, y, f, start, stop, beta)

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, y, f, start, stop, column_start, column_stop, beta = saved_inputs(ctx)
        transposed = y, x, g, column_start, column_stop, start, stop
        for_x = for_y = for_f = None
        if ctx.needs_input_grad[0] and beta:
            for_x = g * beta * PowerSums.apply(x, y, f, start, stop, column_start, column_stop, beta - 1)
        if ctx.needs_input_grad[1] and beta:
            for_y = f * signed(beta * PowerSums.apply(*transposed, beta - 1), beta)
        if ctx.needs_input_grad[2]:
            for_f = signed(PowerSums.apply(*transposed, beta), beta)
        return for_x, for_y, for_f, None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, dx: Any, dy: Any, df: Any, *_: Any) -> Tensor:
        x, y, f, *windows, beta = saved_inputs(ctx)
        dx, dy, df = [torch.zeros_like(v) if d is None else d for d, v in ((dx, x), (dy, y), (df, f))]
        by_f = PowerSums.apply(x, y, df, *windows, beta)
        if beta == 0:
            return by_f
        by_x, by_y = (PowerSums.apply(x, y, h, *windows, beta - 1) for h in (f, dy * f))
        return beta * (dx * by_x - by_y) + by_f


class Radius(RowFunction):
    r"""The radius of the support around each element of an ascending row ``a``, and the windows of that support.

    .. math::
        \sum_j [c_i - |a_i - a_j|]_+^\alpha = 1, \qquad
        dc_i = \frac{\sum_j \omega_{ij} \operatorname{sgn}(a_i - a_j) (da_i - da_j)}{\sum_j \omega_{ij}}, \qquad
        \omega = [c_i - |a_i - a_j|]_+^{\alpha - 1}

    The windows of `PowerSums` are constant; entry 0 of each holds the strictly smaller elements of the support, entry 1 the
    strictly larger ones. Saved: the inputs and outputs.
    """

    out_dims = (0, 1, 1, 1, 1)
    saves = range(9)

    forward = staticmethod(radii)

    @staticmethod
    def vjp(ctx: Any, g: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        a, first, last, alpha, c, *windows = saved_inputs(ctx)
        beta = alpha - 1
        ends, left, right, total = _omega(a, first, last, c, windows, beta)
        v = g / total
        from_left, from_right = PowerSums.apply(a, ends, v, *windows[2:], *windows[:2], beta).unbind(0)
        return v * (left - right) - from_left + signed(from_right, beta), None, None, None

    @staticmethod
    def jvp(ctx: Any, da: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        a, first, last, alpha, c, *windows = saved_inputs(ctx)
        beta = alpha - 1
        ends, left, right, total = _omega(a, first, last, c, windows, beta)
        moved_left, moved_right = PowerSums.apply(ends, a, da, *windows, beta).unbind(0)
        dc = (da * (left - right) - signed(moved_left, beta) + moved_right) / total
        return dc, None, None, None, None


def _omega(a: Tensor, first: Tensor, last: Tensor, c: Tensor, windows: list[Tensor], beta: int) -> tuple[Tensor, ...]:
    """The ends of the support, and the sums of omega over its left, its right and all of it."""
    ends = torch.stack((a - c, a + c))
    left, right = PowerSums.apply(ends, a, torch.ones_like(a), *windows, beta).unbind(0)
    left = signed(left, beta)
    return ends, left, right, left + right + (last - first + 1) * c**beta
