r"""Isotonic regression: the nonincreasing :math:`v` of a projection onto the permutahedron.

For rows :math:`u, w`, both nonincreasing, the solution is constant on blocks of neighbors, and its value :math:`\gamma` on a
block :math:`B` has excess 0, where the excess of any range :math:`B` is

.. math::
    E_B(\gamma) = \sum_{i \in B} \varphi(u_i - \gamma) - \psi(w_i), \qquad
    \varphi(t) = \operatorname{sgn}(t) |t|^\alpha, \; \psi(w) = w, \qquad \text{smooth: } \varphi = \psi = \exp.

Excesses fall with :math:`\gamma`. A block whose successor has a greater value lies with it in one block of the solution. Ties
are not merged.

The solver works on one flat list of the blocks of all rows, and nothing but the list grows with the number of rows. A round of
the first kind merges every run of such violating pairs at once, and shrinks the list fast where data are noisy. It leaves
nonincreasing runs, which may be long. A round of the second kind joins every other two neighboring runs of a row: their union
becomes nonincreasing by one more block around the junction, and a bisection on both runs at once finds how far that reaches. So
the junctions of a row are halved per round: n elements take at most :math:`\log_2 n` such rounds, each with a logarithmic number
of steps, whatever the data. There is no loop over rows or elements.

Decisions are those of rows that are rounded in the last places of their greatest element, in float64. Values of float64 rows are
accurate to the last places of their block.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullgrad.soft.order._numbers import wide

__all__ = ["Solution", "isotonic", "solve"]

# Rounds of the first kind go on while each leaves at most so much of the list.
_SHRINKAGE = 0.9

# Exponents of rows within this spread are summed as they are, in float64 and in float32.
_SPREAD = {torch.float64: 1200.0, torch.float32: 140.0}

_NEWTON_STEPS = 60


class Solution(NamedTuple):
    """The blocks of all rows. A block of one NaN ends each row, so that every other ends where the next one starts."""

    start: Tensor
    """Where each block starts, in rows of length n + 1."""
    value: Tensor
    """The value of each block, relative to ``base``; NaN for the ends of rows."""
    base: Tensor
    """A number for each row, of shape (rows, 1)."""
    rounds: int
    """How many rounds it took."""


def isotonic(u: Tensor, w: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    """``u`` minus the solution, and for each element the place of the first one of its block.

    In a block of one, where ``w`` is what is wanted, the difference is ``w`` for ``c0`` and ``smooth`` and 0 for ``c1`` and
    ``c2``. A row with a number that is not finite is one block of NaN.
    """
    shape, n = u.shape, u.shape[-1]
    if u.numel() == 0:
        return u.clone(), torch.zeros(shape, dtype=torch.int64, device=u.device)
    u, w = u.reshape(-1, n), w.reshape(-1, n)
    a, b = wide(u), wide(w)
    start, value, base, _ = solve(a, b, mode)
    length = start.diff(append=start.new_full((1,), u.shape[0] * (n + 1)))
    owner = torch.repeat_interleave(length, output_size=u.shape[0] * (n + 1)).view(-1, n + 1)[:, :n].reshape(-1)
    first = _at(start, owner).view(-1, n) - (n + 1) * torch.arange(u.shape[0], device=u.device)[:, None]
    if mode in ("c0", "smooth") and u.dtype == a.dtype:
        # The solver's values come from differences of float64 prefix sums, which are good enough for float32 only.
        t = _difference(a, b, first, mode)
    else:
        t = a - base - _at(value, owner).view(-1, n)
    single = _at(length == 1, owner).view(-1, n)
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
    # NaN compares false: the ends of rows, and rows that are not finite, violate nothing. One more is in front.
    value = u.new_full((rows * (n + 1) + 1,), float("nan"))
    value[1:].view(rows, n + 1)[:, :n] = torch.where(_finite(u, w)[:, None], problem.singles, value[0])
    start, rounds = torch.arange(-1, value.numel() - 1, device=u.device), 0
    while True:
        keep = torch.cat([value.new_ones(1, dtype=torch.bool), ~(value[1:] > value[:-1])])
        heads = keep.nonzero().squeeze(1)
        before, after = value.numel(), heads.numel()
        if after == before:
            return Solution(start[1:], value[1:], problem.base, rounds)
        start, value, rounds = _at(start, heads), _at(value, heads), rounds + 1
        merged = (heads.diff() > 1).nonzero().squeeze(1)
        value[merged] = problem.value(_at(start, merged), _at(start, merged + 1))
        if after > _SHRINKAGE * before:
            break
    return _join(problem, start, value, rows, n + 1, rounds)


def _join(problem: Any, start: Tensor, value: Tensor, rows: int, stride: int, rounds: int) -> Solution:
    """Rounds of the second kind, until nothing violates.

    The list keeps its length: a block that grows fills the places of the blocks which it takes.
    """
    place = torch.arange(value.numel(), device=value.device)
    head, tail = place, place + 1  # of the block which is in each place
    ends = torch.searchsorted(start, torch.arange(rows + 1, device=value.device) * stride)
    head = head.clone()
    while True:
        # Where runs begin, other than the first of a row.
        junctions = (value[1:] > value[:-1]).nonzero().squeeze(1) + 1
        if not junctions.numel():
            kept = (head == place).nonzero().squeeze(1)
            return Solution(_at(start, kept)[1:], _at(value, kept)[1:], problem.base, rounds)
        while junctions.numel():
            # Those that are left violate afterwards too: the block before one can only have fallen, the block after it risen.
            row = start[junctions] // stride
            even = (torch.arange(row.numel(), device=row.device) - torch.searchsorted(row, row)) % 2 == 0
            lower, upper = ends[row], ends[row + 1] - 1
            same = row[1:] == row[:-1]
            lower[1:] = torch.where(same, junctions[:-1], lower[1:])
            upper[:-1] = torch.where(same, junctions[1:], upper[:-1])
            low, high = _reach(problem, start, value, head, tail, junctions[even], lower[even], upper[even])
            filled, owner = _expanded(low, high)
            value[filled] = _at(problem.value(_at(start, low), _at(start, high)), owner)
            head[filled], tail[filled] = _at(low, owner), _at(high, owner)
            junctions, rounds = junctions[~even], rounds + 1


def _expanded(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The members of ranges from ``a`` to before ``b``, and for each the range which it is of."""
    length = b - a
    end = length.cumsum(0)
    total = int(end[-1]) if end.numel() else 0
    owner = torch.repeat_interleave(length, output_size=total)
    return torch.arange(total, device=a.device) + (a - end + length).index_select(0, owner), owner


def _reach(
    problem: Any, start: Tensor, value: Tensor, head: Tensor, tail: Tensor, at: Tensor, lower: Tensor, upper: Tensor
) -> tuple[Tensor, Tensor]:
    r"""The range of places that the new block at each junction takes of the run on its left and of that on its right.

    Let :math:`A(c) \ge 0` be minus the excess of the blocks on the left with values below :math:`c`, and :math:`B(c) \ge 0` the
    excess of those on the right with values above. :math:`A` rises, :math:`B` falls, and where they meet is the new value. The
    block takes what is below it on the left and above it on the right. At the value :math:`v_l` of a block on the left,
    :math:`A` is a sum up to that block, and so is :math:`B` at a value :math:`v_r` on the right: whichever of the
    four orders these two pairs of numbers have, one of the two blocks is seen to be in, or to be out. Once a side is settled, its
    sum is that over its blocks at any value.

    Steps away from the junction are doubled, and halved toward its far end, as most blocks take a few others.
    """
    # What is sure to be in, from left to right, and what is not sure to be out, from far_left to far_right.
    left, right = _at(head, at - 1), _at(tail, at)
    found, pending = torch.stack([left, right]), torch.arange(at.numel(), device=at.device)
    state = torch.stack([at, left, right, lower, upper])
    while True:
        at, left, right, far_left, far_right = state
        left_open, right_open = far_left < left, right < far_right
        still = (left_open | right_open).nonzero().squeeze(1)
        if 2 * still.numel() <= at.numel():
            # Most are settled after few steps; the others go on alone.
            found.index_copy_(1, pending, state[1:3])
            if not still.numel():
                return found[0], found[1]
            state, pending = state.index_select(1, still), _at(pending, still)
            at, left, right, far_left, far_right = state
            left_open, right_open = far_left < left, right < far_right
        # Of a side that is settled they are the places next to the block.
        l = torch.maximum((far_left + left - 1) >> 1, 2 * left - at)  # noqa: E741
        r = torch.minimum((far_right + right) >> 1, 2 * right - at)
        v_l, v_r, l_tail, r_head = _at(value, l), _at(value, r), _at(tail, l), _at(head, r)
        more = problem.more(
            _at(start, l_tail),
            _at(start, at),
            _at(start, r_head),
            torch.where(left_open, v_l, v_r),
            torch.where(right_open, v_r, v_l),
        )
        on_left = left_open & (~right_open | ((v_l >= v_r) == more))
        on_right = right_open & ~on_left
        in_left, in_right = on_left > more, on_right & more
        state = torch.stack(
            [
                at,
                torch.where(in_left, _at(head, l), left),
                torch.where(in_right, _at(tail, r), right),
                torch.where(on_left ^ in_left, l_tail, far_left),
                torch.where(on_right ^ in_right, r_head, far_right),
            ]
        )


def _at(x: Tensor, places: Tensor) -> Tensor:
    """``x[places]``, faster."""
    return x.index_select(0, places)


class _Linear:
    """Mode c0. Sums over ranges are differences of prefix sums, of numbers relative to the mean of their row."""

    def __init__(self, u: Tensor, w: Tensor, mode: str) -> None:
        self.singles = u - w
        self.base = self.singles.mean(1, keepdim=True)
        self.singles -= self.base
        sums = u.new_zeros(u.shape[0], u.shape[1] + 1)
        torch.cumsum(self.singles, 1, out=sums[:, 1:])
        self.sums = sums.view(-1)

    def value(self, a: Tensor, b: Tensor) -> Tensor:
        """The values of the ranges from ``a`` to before ``b``."""
        return (_at(self.sums, b) - _at(self.sums, a)) / (b - a)

    def more(self, a: Tensor, m: Tensor, b: Tensor, c_left: Tensor, c_right: Tensor) -> Tensor:
        """Whether minus the excess from ``a`` to ``m`` at ``c_left`` is more than that from ``m`` to ``b`` at ``c_right``."""
        middle = _at(self.sums, m)
        return (m - a) * c_left - (middle - _at(self.sums, a)) > _at(self.sums, b) - middle - (b - m) * c_right


class _Exponential:
    """Mode smooth. Sums from the end of a sorted row: what is subtracted in their differences is no greater than what is left."""

    def __init__(self, u: Tensor, w: Tensor, mode: str) -> None:
        self.u, u_base, u_logs = self.suffixes(u)
        self.w, w_base, w_logs = self.suffixes(w)
        self.logs, self.base = (u_logs, w_logs), u_base - w_base
        self.singles = (u - u_base) - (w - w_base)

    @staticmethod
    def suffixes(x: Tensor) -> tuple[Tensor, Tensor, bool]:
        """Suffix sums of exponentials relative to the middle of the row, that, and whether they are logarithms of the sums."""
        high, low = x[:, :1], x[:, -1:]
        base = low + (high - low) / 2
        x = (x - base).flip(1)
        if bool((high - low > _SPREAD[x.dtype]).any()):
            return _padded(torch.logcumsumexp(x, 1).flip(1), float("-inf")), base, True
        return _padded(torch.exp(x).cumsum(1).flip(1), 0.0), base, False

    @staticmethod
    def log_sum(suffix: Tensor, logs: bool, a: Tensor, b: Tensor) -> Tensor:
        """The logarithm of the sum of exponentials over each range from ``a`` to before ``b``."""
        if logs:
            total = _at(suffix, a)
            return total + torch.log(-torch.expm1(_at(suffix, b) - total))
        return torch.log(_at(suffix, a) - _at(suffix, b))

    def value(self, a: Tensor, b: Tensor) -> Tensor:
        """The values of the ranges from ``a`` to before ``b``."""
        return self.log_sum(self.u, self.logs[0], a, b) - self.log_sum(self.w, self.logs[1], a, b)

    def more(self, a: Tensor, m: Tensor, b: Tensor, c_left: Tensor, c_right: Tensor) -> Tensor:
        """As in `_Linear`, by logarithms; an excess of the wrong sign counts as 0."""
        u_logs, w_logs = self.logs
        u_left, u_right = self.log_sum(self.u, u_logs, a, m) - c_left, self.log_sum(self.u, u_logs, m, b) - c_right
        w_left, w_right = self.log_sum(self.w, w_logs, a, m), self.log_sum(self.w, w_logs, m, b)
        left = w_left + torch.log((-torch.expm1(u_left - w_left)).clamp(min=0))
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
        self.base = u.new_zeros(u.shape[0], 1)
        self.u, self.w = _padded(u, 0.0), _padded(w, 0.0)

    def root(self, x: Tensor) -> Tensor:
        size = x.abs()
        return torch.sign(x) * (size.sqrt() if self.alpha == 2 else size ** (1 / 3))

    def value(self, a: Tensor, b: Tensor) -> Tensor:
        """The values of the ranges from ``a`` to before ``b``."""
        element, owner = _expanded(a, b)
        u, w, size = _at(self.u, element), _at(self.w, element), (b - a).to(self.u.dtype)

        def total(x: Tensor) -> Tensor:
            return x.new_zeros(a.numel()).index_add_(0, owner, x)

        origin = _at(self.u, a)
        target = total(w)
        offset = total(u - _at(origin, owner)) / size
        x = u - _at(origin, owner) - _at(offset, owner)
        if self.alpha == 3:
            # Around the mean: size d^3 + 3 square d + rest = 0.
            square, rest = total(x * x), target - total(x * x * x)
            step = _cubic_root(3 * square / size, rest / size)
            x = x - _at(step, owner)
            square = total(x * x)
            polish = torch.where(square > 0, (total(x * x * x) - target) / (3 * square), 0.0)
            # Near a triple root Newton's step is noise.
            polish = torch.where(polish.abs() <= 1e-6 * step.abs(), polish, 0.0)
            return origin + offset + step + polish
        low = _at(self.u, b - 1) - self.root(_at(self.w, a))
        high = origin - self.root(_at(self.w, b - 1))
        d = offset - self.root(target / size)
        low, high = low - origin, high - origin
        # A sum of so many numbers is as good as this; the step to it is still taken.
        span, precision = origin - _at(self.u, b - 1), 8 * torch.finfo(u.dtype).eps * size.sqrt()
        d = d.clamp(low, high)
        u = u - _at(origin, owner)
        for _ in range(_NEWTON_STEPS):
            # With the signs of x held, the equation is quadratic: count s^2 - 2 slope s + excess = 0.
            x = u - _at(d, owner)
            excess, slope, count = total(x * x.abs()) - target, total(x.abs()), total(torch.sign(x))
            low, high = torch.where(excess >= 0, d, low), torch.where(excess <= 0, d, high)
            next_ = d + excess / (slope + (slope * slope - count * excess).sqrt())
            next_ = torch.where((next_ >= low) & (next_ <= high), next_, (low + high) / 2)
            done = ((next_ - d).abs() <= precision * (next_.abs() + span)) | (excess == 0) | ~(low < high)
            d = torch.where(excess == 0, d, next_)
            if bool(done.all()):
                break
        return origin + d

    def more(self, a: Tensor, m: Tensor, b: Tensor, c_left: Tensor, c_right: Tensor) -> Tensor:
        """As in `_Linear`."""
        element, owner = _expanded(torch.cat([a, m]), torch.cat([m, b]))
        x = _at(self.u, element) - _at(torch.cat([c_left, c_right]), owner)
        excess = (x * x.abs() if self.alpha == 2 else x * x * x) - _at(self.w, element)
        sums = x.new_zeros(2 * a.numel()).index_add_(0, owner, excess)
        return -sums[: a.numel()] > sums[a.numel() :]


def _cubic_root(p: Tensor, q: Tensor) -> Tensor:
    """The real root of ``x**3 + p * x + q`` for ``p >= 0``."""
    scale = (p / 3).sqrt()
    ratio = q.abs() / (2 * scale**3)
    flat = ~(ratio < 1e12)  # also where p is 0
    root = torch.where(flat, q.abs() ** (1 / 3), 2 * scale * torch.sinh(torch.asinh(torch.where(flat, 0.0, ratio)) / 3))
    return -torch.sign(q) * root
