"""The kernels of bounded support over a sorted row: c0, c1, c2. The support is a window, its sums are prefix sums of powers."""

import math
from typing import Any

import torch
from torch import Tensor

from fullgrad._batching import aligned
from fullgrad._function import Function
from fullgrad._inputs import sum_to
from fullgrad._machinery import has_data, tracing
from fullgrad.soft.order._exponential import tie_bounds, tie_sums

__all__ = ["PowerSums", "Radius", "averages"]

# Newton's method on a radius needs about 4 rounds from a neighbour's radius and 15 from nothing.
_ROUNDS = 80
# The radii of every eighth row are found first, and are where those between them start.
_COARSER = 8


def averages(a: Tensor, h: Tensor, alpha: int) -> Tensor:
    r"""The averages :math:`\sum_j [c_i - |a_i - a_j|]_+^\alpha h_j` of an ascending row, whose weights sum to 1."""
    first, last = tie_bounds(a)
    c, start, stop, column_start, column_stop = Radius.apply(a, first, last, alpha)
    offset = h.detach().mean(-1, keepdim=True)
    h = h - offset
    ends = torch.stack((a - c, a + c))
    left, right = PowerSums.apply(ends, a, h, start, stop, column_start, column_stop, alpha).unbind(0)
    return _signed(left, alpha) + right + c**alpha * tie_sums(h, first) + offset


class PowerSums(Function):
    r"""Sums of a power over a window of an ascending row ``y``.

    .. math::
        s_i = \sum_{j = \mathrm{start}_i}^{\mathrm{stop}_i - 1} (x_i - y_j)^\beta f_j

    The windows are constant, and ascend with ``i``; those of the transpose, over ``i`` for each ``j``, are ``column_start`` and
    ``column_stop``. ``x`` ascends too, and in a window ``x`` and ``y`` lie less than 2 apart. The family is closed:

    .. math::
        ds = \beta\,dx\,s^{(\beta - 1)} - \beta\,s^{(\beta - 1)}(dy\,f) + s(df)

    and the transpose exchanges ``x`` and ``y``. All arguments broadcast. Saved: the inputs.
    """

    @staticmethod
    def forward(
        x: Tensor, y: Tensor, f: Tensor, start: Tensor, stop: Tensor, column_start: Tensor, column_stop: Tensor, beta: int
    ) -> Tensor:
        return (_power_sums if tracing() else power_sums)(x, y, f, start, stop, beta)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:-1])
        ctx.save_for_forward(*inputs[:-1])
        ctx.beta = inputs[-1]

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, y, f, start, stop, column_start, column_stop = ctx.saved_tensors
        beta = ctx.beta
        transposed = y, x, g, column_start, column_stop, start, stop
        for_x = for_y = for_f = None
        if ctx.needs_input_grad[0] and beta:
            for_x = sum_to(g * beta * PowerSums.apply(x, y, f, start, stop, column_start, column_stop, beta - 1), x.shape)
        if ctx.needs_input_grad[1] and beta:
            for_y = sum_to(f * _signed(beta * PowerSums.apply(*transposed, beta - 1), beta), y.shape)
        if ctx.needs_input_grad[2]:
            for_f = sum_to(_signed(PowerSums.apply(*transposed, beta), beta), f.shape)
        return for_x, for_y, for_f, None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, dx: Any, dy: Any, df: Any, *_: Any) -> Tensor:
        x, y, f, *windows = ctx.saved_tensors
        beta = ctx.beta
        parts = []
        if beta and dx is not None:
            parts.append(beta * dx * PowerSums.apply(x, y, f, *windows, beta - 1))
        if beta and dy is not None:
            parts.append(-beta * PowerSums.apply(x, y, dy * f, *windows, beta - 1))
        if df is not None:
            parts.append(PowerSums.apply(x, y, df, *windows, beta))
        return sum(parts[1:], parts[0]) if parts else PowerSums.apply(x, y, torch.zeros_like(f), *windows, beta)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        return PowerSums.apply(*aligned(in_dims, args)), 0


class Radius(Function):
    r"""The radius of the support around each element of an ascending row ``a``, and the windows of that support.

    .. math::
        \sum_j [c_i - |a_i - a_j|]_+^\alpha = 1, \qquad
        dc_i = \frac{\sum_j \omega_{ij} \operatorname{sgn}(a_i - a_j) (da_i - da_j)}{\sum_j \omega_{ij}}, \qquad
        \omega = [c_i - |a_i - a_j|]_+^{\alpha - 1}

    The windows of `PowerSums` are constant; entry 0 of each is that of the strictly smaller elements in the support, entry 1 that
    of the strictly larger ones. Saved: the inputs and outputs.
    """

    @staticmethod
    def forward(a: Tensor, first: Tensor, last: Tensor, alpha: int) -> tuple[Tensor, ...]:
        if tracing() or not has_data(a):
            return _radii(a, first, last, alpha)
        return radii(a, first, last, alpha)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:3], *output)
        ctx.save_for_forward(*inputs[:3], *output)
        ctx.alpha = inputs[3]
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def vjp(ctx: Any, g: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        a, first, last, c, *windows = ctx.saved_tensors
        beta = ctx.alpha - 1
        ends, left, right, total = _omega(a, first, last, c, windows, beta)
        v = g / total
        from_left, from_right = PowerSums.apply(a, ends, v, *windows[2:], *windows[:2], beta).unbind(0)
        return v * (left - right) - from_left + _signed(from_right, beta), None, None, None

    @staticmethod
    def jvp(ctx: Any, da: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        a, first, last, c, *windows = ctx.saved_tensors
        beta = ctx.alpha - 1
        ends, left, right, total = _omega(a, first, last, c, windows, beta)
        moved_left, moved_right = PowerSums.apply(ends, a, da, *windows, beta).unbind(0)
        dc = (da * (left - right) - _signed(moved_left, beta) + moved_right) / total
        return dc, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        return Radius.apply(*aligned(in_dims, args)), (0, 1, 1, 1, 1)


def _omega(
    a: Tensor, first: Tensor, last: Tensor, c: Tensor, windows: list[Tensor], beta: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The ends of the support, and the sums of omega over its left, its right and all of it."""
    ends = torch.stack((a - c, a + c))
    left, right = PowerSums.apply(ends, a, torch.ones_like(a), *windows, beta).unbind(0)
    left = _signed(left, beta)
    return ends, left, right, left + right + (last - first + 1) * c**beta


def _signed(x: Tensor, power: int) -> Tensor:
    return -x if power % 2 else x


# --- The value of PowerSums -------------------------------------------------------------------------------------------


def power_sums(x: Tensor, y: Tensor, f: Tensor, start: Tensor, stop: Tensor, beta: int) -> Tensor:
    """The value of `PowerSums`, by prefix sums of powers relative to the middle of a cell of width 2."""
    shape = torch.broadcast_shapes(x.shape, y.shape, f.shape, start.shape)
    if shape[-1] == 0:
        return f.new_zeros(shape)
    return _Prefix(y, f, beta).window(x, start, stop, shape)(beta)


class _Prefix:
    """Prefix sums of ``f`` times the powers of ``y``. Every power is at most 1, however far the row reaches."""

    def __init__(self, y: Tensor, f: Tensor, degree: int) -> None:
        n = y.shape[-1]
        # A row that is narrow lies in one cell, around its middle. The cells ascend even where rounding makes y descend.
        origin = y[..., n // 2, None]
        cell = torch.cummax(torch.round((y - origin) * 0.5), -1).values
        self.middle = origin + cell * 2
        edge = torch.cat((torch.ones_like(cell[..., :1], dtype=torch.bool), cell[..., 1:] != cell[..., :-1]), -1)
        self.begin = torch.cummax(torch.where(edge, torch.arange(n, device=y.device), 0), -1).values
        u = y - self.middle
        # Infinities are in nobody's window.
        u = torch.where(u.abs() <= 2, u, 0.0)
        self.sums = []
        for m in range(degree + 1):
            f = f if m == 0 else f * u
            self.sums.append(torch.nn.functional.pad(torch.cumsum(f, -1), (1, 0)))

    def window(self, x: Tensor, start: Tensor, stop: Tensor, shape: Any) -> Any:
        """The sums over windows, as a function of the power. A window touches two cells at most."""
        start, stop, x = start.expand(shape), stop.expand(shape), x.expand(shape)
        n = self.middle.shape[-1]
        final = (stop - 1).clamp_min(0)
        source = (*shape[:-1], n)
        cut = torch.minimum(torch.maximum(self.begin.expand(source).gather(-1, final), start), stop)
        middle = self.middle.expand(source)
        p = x - middle.gather(-1, start.clamp_max(n - 1)), x - middle.gather(-1, final)
        parts = []
        for sums in self.sums:
            sums = sums.expand(*shape[:-1], n + 1)
            at = sums.gather(-1, cut)
            parts.append((at - sums.gather(-1, start), sums.gather(-1, stop) - at))

        def power(beta: int) -> Tensor:
            total = None
            for side in (0, 1):
                # Horner's rule in p: sum over m of C(beta, m) p^(beta - m) (-1)^m (the sum of u^m f).
                value = parts[0][side]
                for m in range(1, beta + 1):
                    value = value * p[side] + (-1) ** m * math.comb(beta, m) * parts[m][side]
                total = value if total is None else total + value
            return total  # pyright: ignore[reportReturnType]

        return power


_power_sums: Any = torch.library.custom_op(
    "fullgrad::power_sums",
    power_sums,
    mutates_args=(),
    schema="(Tensor x, Tensor y, Tensor f, Tensor start, Tensor stop, int beta) -> Tensor",
)


@_power_sums.register_fake
def _(x: Tensor, y: Tensor, f: Tensor, start: Tensor, stop: Tensor, beta: int) -> Tensor:
    return f.new_empty(torch.broadcast_shapes(x.shape, y.shape, f.shape, start.shape))


@_power_sums.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
    return _power_sums(*aligned(in_dims, args)), 0


# --- The value of Radius ----------------------------------------------------------------------------------------------


def radii(a: Tensor, first: Tensor, last: Tensor, alpha: int) -> tuple[Tensor, ...]:
    """The value of `Radius`."""
    n = a.shape[-1]
    rows = a.reshape(-1, n).contiguous()
    begin, end = first.reshape(-1, n), last.reshape(-1, n) + 1
    if rows.numel() == 0:
        empty = [torch.zeros((2, *a.shape), dtype=torch.long, device=a.device) for _ in range(4)]
        return torch.ones_like(a), *empty
    c = _solve(rows, end, alpha)
    # A distance that equals the radius up to rounding is outside: the weight there is 0, its slope is not.
    near = 32 * torch.finfo(a.dtype).eps * (1 + rows.abs())
    low = torch.minimum(torch.searchsorted(rows, rows - c + near, right=True), begin)
    high = torch.maximum(torch.searchsorted(rows, rows + c - near), end)
    low, high = torch.cummax(low, -1).values, torch.cummax(high, -1).values
    c = torch.where(rows[:, -1:].isnan(), math.nan, c)
    start, stop = torch.stack((low, end)), torch.stack((begin, high))
    windows = [w.reshape(2, *a.shape) for w in (start, stop, _at_most(stop), _at_most(start))]
    return c.reshape(a.shape), *windows


def _at_most(index: Tensor) -> Tensor:
    """How many of the indices in a row are at most 0, 1, 2, …"""
    n = index.shape[-1]
    counts = torch.zeros((*index.shape[:-1], n + 1), dtype=torch.long, device=index.device)
    return counts.scatter_add_(-1, index, torch.ones_like(index)).cumsum(-1)[..., :n].contiguous()


def _solve(a: Tensor, end: Tensor, alpha: int) -> Tensor:
    """The radii of rows (B, n), from coarse to fine."""
    n = a.shape[-1]
    prefix = _Prefix(a, torch.ones_like(a), alpha)
    stride = _COARSER ** max(0, math.ceil(math.log(n / 64, _COARSER))) if n > 64 else 1
    c: Any = None
    coarse: Any = None
    while True:
        i = torch.arange(0, n, stride, device=a.device)
        if stride > 1:
            i = torch.cat((i, i.new_full((1,), n - 1)))
        x, stop = a[:, i], end[:, i]
        low, high = torch.zeros_like(x), torch.ones_like(x)
        if c is None:
            guess = high
        else:
            # Both ends of the support ascend along the row, and so does what lies between two rows that are known.
            below = i // (stride * _COARSER)
            above = (below + 1).clamp_max(coarse.shape[-1] - 1)
            x0, x1, c0, c1 = coarse[:, below], coarse[:, above], c[:, below], c[:, above]
            slack = 32 * torch.finfo(a.dtype).eps * (1 + x.abs())
            low = torch.maximum(low, torch.maximum(c0 - (x - x0), c1 - (x1 - x)) - slack)
            high = torch.minimum(high, torch.minimum(c0 + (x - x0), c1 + (x1 - x)) + slack)
            part = ((x - x0) / (x1 - x0)).nan_to_num(0.0)
            guess = torch.minimum(torch.maximum(c0 + part * (c1 - c0), low), high)
        c, coarse = _newton(a, prefix, x, stop, guess, low, high, alpha), x
        if stride == 1:
            return c
        stride //= _COARSER


def _newton(a: Tensor, prefix: _Prefix, x: Tensor, stop: Tensor, c: Tensor, low: Tensor, high: Tensor, alpha: int) -> Tensor:
    """Newton's method on the mass to the power 1 / alpha, which is convex in the radius, inside a bracket."""
    c, low, high = c.clone(), low.clone(), high.clone()
    i = torch.arange(x.shape[-1], device=x.device)
    for _ in range(_ROUNDS):
        part, middle, radius = x[:, i], stop[:, i], c[:, i]
        first = torch.minimum(torch.searchsorted(a, part - radius, right=True), middle)
        final = torch.maximum(torch.searchsorted(a, part + radius), middle)
        left = prefix.window(part - radius, first, middle, part.shape)
        right = prefix.window(part + radius, middle, final, part.shape)
        mass = _signed(left(alpha), alpha) + right(alpha)
        slope = _signed(left(alpha - 1), alpha - 1) + right(alpha - 1)
        high[:, i] = torch.where(mass >= 1, radius, high[:, i])
        low[:, i] = torch.where(mass <= 1, radius, low[:, i])
        # From above Newton's steps end above the root, from below they overshoot it: the bracket is all the safeguard needed.
        new = (radius - (mass - mass ** (1 - 1 / alpha)) / slope).clamp(low[:, i], high[:, i])
        c[:, i] = new
        # Every round doubles the digits now: a step of this size was the last. NaN is done, too.
        i = i[((new - radius).abs() > 1e-8 * radius).any(0)]
        if not len(i):
            break
    return c


_radii: Any = torch.library.custom_op(
    "fullgrad::radii",
    radii,
    mutates_args=(),
    schema="(Tensor a, Tensor first, Tensor last, int alpha) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)


@_radii.register_fake
def _(a: Tensor, first: Tensor, last: Tensor, alpha: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    windows = [torch.empty((2, *a.shape), dtype=torch.long, device=a.device) for _ in range(4)]
    return torch.empty_like(a), windows[0], windows[1], windows[2], windows[3]


@_radii.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    return _radii(*aligned(in_dims, args)), (0, 1, 1, 1, 1)
