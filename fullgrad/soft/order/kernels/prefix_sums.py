"""Window sums by prefix sums of powers, and the radii of the windows."""

import math
from typing import Any

import torch
from torch import Tensor

from fullgrad._core.batching import aligned
from fullgrad._dispatch import opaque
from fullgrad.soft.order._numbers import last_marked

# Newton's method on a radius needs about 4 rounds from a neighbor's radius and 15 without a guess.
_ROUNDS = 80
# The radii of every eighth element are found first, and start the search for those between them.
_COARSER = 8


def signed(x: Tensor, power: int) -> Tensor:
    return -x if power % 2 else x


# --- The value of PowerSums -------------------------------------------------------------------------------------------


def _like_power_sums(x: Tensor, y: Tensor, f: Tensor, start: Tensor, stop: Tensor, beta: int) -> Tensor:
    return f.new_empty(torch.broadcast_shapes(x.shape, y.shape, f.shape, start.shape))


@opaque(
    "power_sums",
    fake=_like_power_sums,
    batched=lambda in_dims, args: (aligned(in_dims, args), 0),
    schema="(Tensor x, Tensor y, Tensor f, Tensor start, Tensor stop, int beta) -> Tensor",
)
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
        # A narrow row lies in one cell, around its middle. The cells ascend even where rounding makes y descend.
        origin = y[..., n // 2, None]
        cell = torch.cummax(torch.round((y - origin) * 0.5), -1).values
        self.middle = origin + cell * 2
        edge = torch.cat((torch.ones_like(cell[..., :1], dtype=torch.bool), cell[..., 1:] != cell[..., :-1]), -1)
        self.begin = last_marked(edge)
        u = y - self.middle
        # No window holds an infinity.
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
            # Horner's rule in p: sum over m of C(beta, m) p^(beta - m) (-1)^m (the sum of u^m f), in each of the two cells.
            one, other = parts[0]
            for m in range(1, beta + 1):
                factor = (-1) ** m * math.comb(beta, m)
                one, other = one * p[0] + factor * parts[m][0], other * p[1] + factor * parts[m][1]
            return one + other

        return power


# --- The value of Radius ----------------------------------------------------------------------------------------------


def _like_radii(a: Tensor, first: Tensor, last: Tensor, alpha: int) -> tuple[Tensor, ...]:
    return torch.empty_like(a), *[torch.empty((2, *a.shape), dtype=torch.long, device=a.device) for _ in range(4)]


@opaque(
    "radii",
    fake=_like_radii,
    batched=lambda in_dims, args: (aligned(in_dims, args), (0, 1, 1, 1, 1)),
    schema="(Tensor a, Tensor first, Tensor last, int alpha) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    reads_values=True,
)
def radii(a: Tensor, first: Tensor, last: Tensor, alpha: int) -> tuple[Tensor, ...]:
    """The value of `Radius`."""
    n = a.shape[-1]
    rows = a.reshape(-1, n).contiguous()
    begin, end = first.reshape(-1, n), last.reshape(-1, n) + 1
    if rows.numel() == 0:
        return _like_radii(a, first, last, alpha)
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
    """The number of indices in a row that are at most 0, 1, 2, …"""
    n = index.shape[-1]
    counts = torch.zeros((*index.shape[:-1], n + 1), dtype=torch.long, device=index.device)
    return counts.scatter_add_(-1, index, torch.ones_like(index)).cumsum(-1)[..., :n].contiguous()


def _solve(a: Tensor, end: Tensor, alpha: int) -> Tensor:
    """The radii of rows (B, n), from coarse to fine."""
    n = a.shape[-1]
    prefix = _Prefix(a, torch.ones_like(a), alpha)
    c: Any = None
    coarse: Any = None
    for level in range(max(0, math.ceil(math.log(n / 64, _COARSER))), -1, -1):
        stride = _COARSER**level
        i = torch.arange(0, n, stride, device=a.device)
        if stride > 1:
            i = torch.cat((i, i.new_full((1,), n - 1)))
        x, stop = a[:, i], end[:, i]
        low, high = torch.zeros_like(x), torch.ones_like(x)
        if c is None:
            guess = high
        else:
            # Both ends of the support ascend along the row, so two known radii bound those between them.
            below = i // (stride * _COARSER)
            x0, x1, c0, c1 = coarse[:, below], coarse[:, below + 1], c[:, below], c[:, below + 1]
            slack = 32 * torch.finfo(a.dtype).eps * (1 + x.abs())
            low = torch.maximum(low, torch.maximum(c0 - (x - x0), c1 - (x1 - x)) - slack)
            high = torch.minimum(high, torch.minimum(c0 + (x - x0), c1 + (x1 - x)) + slack)
            part = ((x - x0) / (x1 - x0)).nan_to_num(0.0)
            guess = torch.minimum(torch.maximum(c0 + part * (c1 - c0), low), high)
        c, coarse = _newton(a, prefix, x, stop, guess, low, high, alpha), x
    return c


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
        mass = signed(left(alpha), alpha) + right(alpha)
        slope = signed(left(alpha - 1), alpha - 1) + right(alpha - 1)
        high[:, i] = torch.where(mass >= 1, radius, high[:, i])
        low[:, i] = torch.where(mass <= 1, radius, low[:, i])
        # From above Newton's steps end above the root, from below they overshoot it: the bracket is all the safeguard needed.
        new = (radius - (mass - mass ** (1 - 1 / alpha)) / slope).clamp(low[:, i], high[:, i])
        c[:, i] = new
        # Every round doubles the digits by now: a step this small is the last. NaN is done, too.
        i = i[((new - radius).abs() > 1e-8 * radius).any(0)]
        if not len(i):
            break
    return c
