r"""Isotonic regression: the nonincreasing :math:`v` of a projection onto the permutahedron.

For rows :math:`u, w`, both nonincreasing, the solution is constant on blocks of neighbours, and its value :math:`\gamma` on a
block :math:`B` has excess 0, where the excess of any range :math:`B` is

.. math::
    E_B(\gamma) = \sum_{i \in B} \varphi(u_i - \gamma) - \psi(w_i), \qquad
    \varphi(t) = \operatorname{sgn}(t) |t|^\alpha, \; \psi(w) = w, \qquad \text{smooth: } \varphi = \psi = \exp.

Excesses fall with :math:`\gamma`. A block whose successor has a greater value lies with it in one block of the solution. Ties
are not merged.

The solver works on one flat list of the blocks of all rows. A round of the first kind merges every run of such violating pairs
at once, and shrinks the list fast where data are noisy. One that does not shrink it much leaves nonincreasing runs, as long as
they may be. A round of the second kind joins every other two neighbouring runs of a row. Their union becomes nonincreasing by
one more block around the junction, and a bisection on both runs at once finds how far it reaches. So the junctions
of a row are halved per round, and :math:`n` elements take at most :math:`\log_2 n` such rounds of :math:`2 \log_2 n` steps.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Solution", "isotonic", "solve", "wide"]

# A round of the first kind shall shrink the list of blocks by this factor, or it is the last of its kind.
_SHRINKAGE = 0.8

# Exponents of rows within this spread are summed as they are, in float64 and in float32.
_SPREAD = {torch.float64: 1200.0, torch.float32: 140.0}

_NEWTON_STEPS = 60


class Solution(NamedTuple):
    """The blocks of all rows; those of length 0 end the rows, so that each block ends where the next one starts."""

    start: Tensor
    """Where each block starts, in rows of length n + 1."""
    value: Tensor
    """The value of each block; NaN for the ends of rows."""
    rounds: int
    """How many rounds it took."""


def wide(x: Tensor) -> Tensor:
    """In float64, where the device has it."""
    return x if x.device.type == "mps" else x.double()


def isotonic(u: Tensor, w: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    """``u`` minus the solution, and for each element the place of the first one of its block.

    In a block of one, where ``w`` is what is wanted, the difference is ``w`` for ``c0`` and ``smooth`` and 0 for ``c1`` and ``c2``.
    A row with a number that is not finite is one block of NaN.
    """
    shape, n = u.shape, u.shape[-1]
    if u.numel() == 0:
        return u.clone(), torch.zeros(shape, dtype=torch.int64, device=u.device)
    u, w = u.reshape(-1, n), w.reshape(-1, n)
    a, b = wide(u), wide(w)
    start, value, _ = solve(a, b, mode)
    length = start.diff(append=start.new_full((1,), u.shape[0] * (n + 1)))
    places = torch.repeat_interleave(start, length, output_size=u.shape[0] * (n + 1)).view(-1, n + 1)[:, :n]
    first = places - (n + 1) * torch.arange(u.shape[0], device=u.device)[:, None]
    if mode in ("c0", "smooth") and u.dtype == a.dtype:
        # The solver's values come from differences of prefix sums, as good as float32 wants them.
        t = _difference(a, b, first, mode)
    else:
        t = a - torch.repeat_interleave(value, length, output_size=u.shape[0] * (n + 1)).view(-1, n + 1)[:, :n]
    single = torch.repeat_interleave(length == 1, length, output_size=u.shape[0] * (n + 1)).view(-1, n + 1)[:, :n]
    t = torch.where(single, w if mode in ("c0", "smooth") else 0.0, t.to(u.dtype))
    finite = _finite(u, w)
    if not finite.all():
        t, first = torch.where(finite[:, None], t, float("nan")), first * finite[:, None]
    return t.reshape(shape), first.reshape(shape)


def _finite(u: Tensor, w: Tensor) -> Tensor:
    """Which rows are finite. They are sorted, NaN first."""
    ends = torch.stack([u[:, 0], u[:, -1], w[:, 0], w[:, -1]])
    return ends.isfinite().all(0)


def _difference(u: Tensor, w: Tensor, first: Tensor, mode: str) -> Tensor:
    """``u`` minus the value of its block, from sums over the elements of the block."""
    zeros = torch.zeros_like(u)
    if mode == "c0":
        size = zeros.scatter_add(1, first, torch.ones_like(u))
        d = u - w
        # Relative to the first element: what is large and common is not summed.
        base = d.gather(1, first)
        mean = zeros.scatter_add(1, first, d - base) / size
        return u - base - mean.gather(1, first)
    u_first, w_first = u.gather(1, first), w.gather(1, first)
    u_sum = zeros.scatter_add(1, first, torch.exp(u - u_first))
    w_sum = zeros.scatter_add(1, first, torch.exp(w - w_first))
    return u - u_first + w_first + (torch.log(w_sum) - torch.log(u_sum)).gather(1, first)


def solve(u: Tensor, w: Tensor, mode: str) -> Solution:
    """The blocks of rows ``u`` and ``w``, of shape (rows, n), each nonincreasing."""
    rows, n = u.shape
    problem: Any = {"c0": _Linear, "smooth": _Exponential}.get(mode, _Power)(u, w, mode)
    # NaN compares false: the ends of rows, and rows that are not finite, violate nothing.
    value = u.new_full((rows, n + 1), float("nan"))
    value[:, :n] = problem.singles
    value.masked_fill_(~_finite(u, w)[:, None], float("nan"))
    value = value.view(-1)
    start, rounds = torch.arange(value.numel(), device=u.device), 0
    while True:
        violates = value[1:] > value[:-1]
        keep = torch.cat([violates.new_ones(1), ~violates])
        heads = keep.nonzero().squeeze(1)
        before, after = value.numel(), heads.numel()
        if after == before:
            return Solution(start, value, rounds)
        if rounds and after > _SHRINKAGE * before:
            break
        start, value, rounds = start[heads], value[heads], rounds + 1
        merged = (heads.diff() > 1).nonzero().squeeze(1)
        value[merged] = problem.value(start[merged], start[merged + 1])
    while True:
        junctions = (value[1:] > value[:-1]).nonzero().squeeze(1) + 1
        if not junctions.numel():
            return Solution(start, value, rounds)
        while junctions.numel():
            start, value, junctions = _join(problem, start, value, junctions, n + 1)
            rounds += 1


def _join(problem: Any, start: Tensor, value: Tensor, junctions: Tensor, stride: int) -> tuple[Tensor, Tensor, Tensor]:
    """Join runs 0 and 1, 2 and 3, … of each row. ``junctions`` are the blocks with which runs other than the first begin.

    They violate. Those that are left do so afterwards too: the block before such a junction can have lost height only, and the
    block after it gained.
    """
    row = start[junctions] // stride
    rank = torch.arange(row.numel(), device=row.device) - torch.searchsorted(row, row)
    lower, upper = torch.searchsorted(start, row * stride), torch.searchsorted(start, row * stride + (stride - 1))
    same = row[1:] == row[:-1]
    lower[1:] = torch.where(same, junctions[:-1], lower[1:])
    upper[:-1] = torch.where(same, junctions[1:], upper[:-1])
    even = rank % 2 == 0
    at, lower, upper, rest = junctions[even], lower[even], upper[even], junctions[~even]

    left, right = _reach(problem, start, value, at, at - lower, upper - at)
    head, tail = at - left, at + right
    value[head] = problem.value(start[head], start[tail])
    edges = torch.zeros(value.numel() + 1, dtype=torch.int32, device=value.device)
    edges[head + 1], edges[tail] = 1, -1
    keep = (edges.cumsum(0, dtype=torch.int32)[:-1] == 0).nonzero().squeeze(1)
    return start[keep], value[keep], torch.searchsorted(keep, rest)


def _reach(problem: Any, start: Tensor, value: Tensor, at: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    r"""How many blocks to the left and to the right of each junction its new block takes.

    Let :math:`A(c) \ge 0` be minus the excess of the blocks on the left with values below :math:`c`, and :math:`B(c) \ge 0` the
    excess of those on the right with values above. :math:`A` rises, :math:`B` falls, and where they meet is the new value. The
    block takes what is below it on the left and above it on the right. At the value :math:`v_l` of a block on the left,
    :math:`A` is a sum up to that block, and so is :math:`B` at a value :math:`v_r` on the right: whichever of the
    four orders these two pairs of numbers have, half the blocks that are in question on one of the sides are settled. Once a side
    is settled, its sum is that over its blocks at any value.
    """
    steps = int(left.max() - 1).bit_length() + int(right.max() - 1).bit_length()
    left_low, right_low = torch.ones_like(left), torch.ones_like(right)
    left_high, right_high = left, right
    middle = start[at]
    for _ in range(steps):
        l, r = (left_low + left_high + 1) >> 1, (right_low + right_high + 1) >> 1  # noqa: E741
        left_open, right_open = left_low < left_high, right_low < right_high
        v_l, v_r = value[at - l], value[at + r - 1]
        more = problem.more(
            start[at - l + left_open.long()],
            middle,
            start[at + r - right_open.long()],
            torch.where(left_open, v_l, v_r),
            torch.where(right_open, v_r, v_l),
        )
        on_left = left_open & (~right_open | ((v_l >= v_r) == more))
        on_right = right_open & ~on_left
        left_low = torch.where(on_left & ~more, l, left_low)
        left_high = torch.where(on_left & more, l - 1, left_high)
        right_low = torch.where(on_right & more, r, right_low)
        right_high = torch.where(on_right & ~more, r - 1, right_high)
    return left_low, right_low


class _Linear:
    """Mode c0. Sums over ranges are differences of prefix sums, of numbers relative to the mean of their row."""

    def __init__(self, u: Tensor, w: Tensor, mode: str) -> None:
        self.singles = u - w
        mean = self.singles.mean(1, keepdim=True)
        self.mean = mean.view(-1)
        self.stride = u.shape[1] + 1
        sums = u.new_zeros(u.shape[0], self.stride)
        torch.cumsum(self.singles - mean, 1, out=sums[:, 1:])
        self.sums = sums.view(-1)

    def value(self, a: Tensor, b: Tensor) -> Tensor:
        """The values of the ranges from ``a`` to before ``b``."""
        return (self.sums[b] - self.sums[a]) / (b - a) + self.mean[a // self.stride]

    def more(self, a: Tensor, m: Tensor, b: Tensor, c_left: Tensor, c_right: Tensor) -> Tensor:
        """Whether minus the excess from ``a`` to ``m`` at ``c_left`` is more than the excess from ``m`` to ``b`` at ``c_right``."""
        mean, middle = self.mean[m // self.stride], self.sums[m]
        return (m - a) * (c_left - mean) - (middle - self.sums[a]) > self.sums[b] - middle - (b - m) * (c_right - mean)


class _Exponential:
    """Mode smooth. Sums from the end of a sorted row: what is subtracted in their differences is no greater than what is left."""

    def __init__(self, u: Tensor, w: Tensor, mode: str) -> None:
        self.singles = u - w
        self.u, self.w = self.suffixes(u), self.suffixes(w)

    @staticmethod
    def suffixes(x: Tensor) -> tuple[Tensor, Tensor | None, int]:
        """For ``log_sum``: suffix sums of exponentials relative to the middle of the row, or their logarithms."""
        stride = x.shape[1] + 1
        high, low = x[:, :1], x[:, -1:]
        if bool((high - low > _SPREAD[x.dtype]).any()):
            return _padded(torch.logcumsumexp(x.flip(1), 1).flip(1), float("-inf")), None, stride
        middle = (high + low) / 2
        return _padded(torch.exp(x - middle).flip(1).cumsum(1).flip(1), 0.0), middle.view(-1), stride

    @staticmethod
    def log_sum(sums: tuple[Tensor, Tensor | None, int], a: Tensor, b: Tensor) -> Tensor:
        suffix, middle, stride = sums
        if middle is None:
            total = suffix[a]
            return total + torch.log(-torch.expm1(suffix[b] - total))
        return torch.log(suffix[a] - suffix[b]) + middle[a // stride]

    def value(self, a: Tensor, b: Tensor) -> Tensor:
        """The values of the ranges from ``a`` to before ``b``."""
        return self.log_sum(self.u, a, b) - self.log_sum(self.w, a, b)

    def more(self, a: Tensor, m: Tensor, b: Tensor, c_left: Tensor, c_right: Tensor) -> Tensor:
        """As in `_Linear`, by logarithms; an excess of the wrong sign counts as 0."""
        w_left, w_right = self.log_sum(self.w, a, m), self.log_sum(self.w, m, b)
        left = w_left + torch.log((-torch.expm1(self.log_sum(self.u, a, m) - w_left - c_left)).clamp(min=0))
        u_right = self.log_sum(self.u, m, b) - c_right
        right = u_right + torch.log((-torch.expm1(w_right - u_right)).clamp(min=0))
        # Of an empty range it is NaN.
        return ((left > right) | (b == m)) & (a != m)


def _padded(x: Tensor, end: float) -> Tensor:
    return torch.cat([x, x.new_full((x.shape[0], 1), end)], 1).view(-1)


class _Power:
    """Modes c1 and c2. Sums run over the elements of the ranges."""

    def __init__(self, u: Tensor, w: Tensor, mode: str) -> None:
        self.alpha = {"c1": 2, "c2": 3}[mode]
        self.singles = u - self.root(w)
        self.u, self.w = _padded(u, 0.0), _padded(w, 0.0)

    def root(self, x: Tensor) -> Tensor:
        size = x.abs()
        return torch.sign(x) * (size.sqrt() if self.alpha == 2 else size ** (1 / 3))

    def elements(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """The elements of ranges, and for each the range which it is of."""
        length = b - a
        end = length.cumsum(0)
        total = int(end[-1]) if end.numel() else 0
        owner = torch.repeat_interleave(torch.arange(a.numel(), device=a.device), length, output_size=total)
        return torch.arange(total, device=a.device) + (a - end + length)[owner], owner

    def value(self, a: Tensor, b: Tensor) -> Tensor:
        """The values of the ranges from ``a`` to before ``b``."""
        element, owner = self.elements(a, b)
        u, w, size = self.u[element], self.w[element], (b - a).to(self.u.dtype)

        def total(x: Tensor) -> Tensor:
            return x.new_zeros(a.numel()).index_add_(0, owner, x)

        origin = self.u[a]
        target = total(w)
        offset = total(u - origin[owner]) / size
        x = u - origin[owner] - offset[owner]
        if self.alpha == 3:
            # Around the mean: size d^3 + 3 square d + rest = 0.
            square, rest = total(x * x), target - total(x * x * x)
            step = _cubic_root(3 * square / size, rest / size)
            x = x - step[owner]
            square = total(x * x)
            polish = torch.where(square > 0, (total(x * x * x) - target) / (3 * square), 0.0)
            # Near a triple root Newton's step is noise.
            polish = torch.where(polish.abs() <= 1e-6 * step.abs(), polish, 0.0)
            return origin + offset + step + polish
        low = self.u[b - 1] - self.root(self.w[a])
        high = origin - self.root(self.w[b - 1])
        d = offset - self.root(target / size)
        low, high = low - origin, high - origin
        d = d.clamp(low, high)
        u = u - origin[owner]
        for _ in range(_NEWTON_STEPS):
            # With the signs of x held, the equation is quadratic: count s^2 - 2 slope s + excess = 0.
            x = u - d[owner]
            excess, slope, count = total(x * x.abs()) - target, total(x.abs()), total(torch.sign(x))
            low, high = torch.where(excess >= 0, d, low), torch.where(excess <= 0, d, high)
            next_ = d + excess / (slope + (slope * slope - count * excess).sqrt())
            next_ = torch.where((next_ >= low) & (next_ <= high), next_, (low + high) / 2)
            done = ((next_ - d).abs() <= 4e-16 * (next_.abs() + 1e-300)) | (excess == 0) | ~(low < high)
            d = torch.where(excess == 0, d, next_)
            if bool(done.all()):
                break
        return origin + d

    def more(self, a: Tensor, m: Tensor, b: Tensor, c_left: Tensor, c_right: Tensor) -> Tensor:
        """As in `_Linear`."""
        element, owner = self.elements(torch.cat([a, m]), torch.cat([m, b]))
        x = self.u[element] - torch.cat([c_left, c_right])[owner]
        excess = (x * x.abs() if self.alpha == 2 else x * x * x) - self.w[element]
        sums = x.new_zeros(2 * a.numel()).index_add_(0, owner, excess)
        return -sums[: a.numel()] > sums[a.numel() :]


def _cubic_root(p: Tensor, q: Tensor) -> Tensor:
    """The real root of ``x**3 + p * x + q`` for ``p >= 0``."""
    scale = (p / 3).sqrt()
    ratio = q.abs() / (2 * scale**3)
    flat = ~(ratio < 1e12)  # also where p is 0
    root = torch.where(flat, q.abs() ** (1 / 3), 2 * scale * torch.sinh(torch.asinh(torch.where(flat, 0.0, ratio)) / 3))
    return -torch.sign(q) * root
