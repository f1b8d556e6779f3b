r"""Isotonic regression: the nonincreasing :math:`v` of a projection onto the permutahedron.

For rows :math:`u, w`, both nonincreasing, the solution is constant on blocks of neighbors, and its value :math:`\gamma` on a
block :math:`B` has excess 0. The excess of any range :math:`B` is

.. math::
    E_B(\gamma) = \sum_{i \in B} \varphi(u_i - \gamma) - \psi(w_i), \qquad
    \varphi(t) = \operatorname{sgn}(t) |t|^\alpha, \; \psi(w) = w, \qquad \text{smooth: } \varphi = \psi = \exp.

Excesses fall with :math:`\gamma`. A block whose successor has a greater value lies with it in one block of the solution. Ties
are not merged.

The solver works on one flat list of the blocks of all rows, and only the list grows with the number of rows. First, rounds of
pool adjacent violators: each merges every run of violating pairs at once, and shrinks the list fast where data are noisy. These
rounds leave nonincreasing runs, which may be long. Then, rounds that merge runs: each joins every other pair of neighboring runs
of a row. One more block around the junction makes their union nonincreasing, and a bisection on both runs at once finds how far
the block reaches. So each round halves the junctions of a row: n elements take at most :math:`\log_2 n` such rounds, each with a
logarithmic number of steps, whatever the data. There is no loop over rows or elements.

Decisions are exact for rows rounded in the last places of their greatest element, in float64. Values of float64 rows are
accurate to the last places of their block.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fullgrad._core.fast import replaceable
from fullgrad._core.opmath import wide
from fullgrad._dispatch import opaque
from fullgrad.soft.order._numbers import POWERS, group_sums
from fullgrad.soft.order.kernels.ranges import Exponential, Linear, Power, Ranges, expanded, take

# Pool adjacent violators while each round leaves at most this share of the list.
_SHRINKAGE = 0.9


class Solution(NamedTuple):
    """The blocks of all rows. A block of one NaN ends each row, so that every other ends where the next one starts."""

    start: Tensor
    """Where each block starts, in rows of length n + 1."""
    value: Tensor
    """The value of each block, relative to ``base``; NaN for the ends of rows."""
    base: Tensor
    """A number for each row, of shape (rows, 1)."""
    rounds: int
    """The number of rounds."""


def _like(u: Tensor, w: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    return torch.empty_like(u, memory_format=torch.contiguous_format), u.new_empty(u.shape, dtype=torch.int64)


@opaque("isotonic", fake=_like, reads_values=True)
@replaceable
def isotonic(u: Tensor, w: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    """``u`` minus the solution, and for each element the place of the first one of its block.

    In a block of one the difference is ``w`` for ``c0`` and ``smooth``, and 0 for ``c1`` and ``c2``, whose caller needs ``w``.
    A row with a number that is not finite is one block of NaN.
    """
    shape, n = u.shape, u.shape[-1]
    if u.numel() == 0:
        return u.clone(), torch.zeros(shape, dtype=torch.int64, device=u.device)
    u, w = u.reshape(-1, n), w.reshape(-1, n)
    a, b = wide(u), wide(w)
    start, value, base, _ = solve(a, b, mode)
    length = start.diff(append=start.new_full((1,), u.shape[0] * (n + 1)))
    owner = torch.repeat_interleave(length, output_size=u.shape[0] * (n + 1)).view(-1, n + 1)[:, :n].reshape(-1)
    first = take(start, owner).view(-1, n) - (n + 1) * torch.arange(u.shape[0], device=u.device)[:, None]
    if mode in ("c0", "smooth") and u.dtype == a.dtype:
        # The solver's values come from differences of float64 prefix sums, which are accurate enough for float32 only.
        t = _difference(a, b, first, mode)
    else:
        t = a - base - take(value, owner).view(-1, n)
    single = take(length == 1, owner).view(-1, n)
    t = torch.where(single, w if mode in ("c0", "smooth") else 0.0, t.to(u.dtype))
    finite = _finite(u, w)
    if not finite.all():
        t, first = torch.where(finite[:, None], t, float("nan")), first * finite[:, None]
    return t.reshape(shape), first.reshape(shape)


def _finite(u: Tensor, w: Tensor) -> Tensor:
    """Whether each row is finite. Rows are sorted, NaN first."""
    ends = torch.stack([u[:, 0], u[:, -1], w[:, 0], w[:, -1]])
    return ends.isfinite().all(0)


def _difference(u: Tensor, w: Tensor, first: Tensor, mode: str) -> Tensor:
    """``u`` minus the value of its block, from sums over the elements of the block."""
    # Relative to the first element: large common terms are not summed.
    if mode == "c0":
        d = u - w
        base = d.gather(1, first)
        return u - base - group_sums(d - base, first) / group_sums(torch.ones_like(u), first)
    u_first, w_first = u.gather(1, first), w.gather(1, first)
    u_sum, w_sum = group_sums(torch.exp(u - u_first), first), group_sums(torch.exp(w - w_first), first)
    return u - u_first + w_first + (torch.log(w_sum) - torch.log(u_sum))


def solve(u: Tensor, w: Tensor, mode: str) -> Solution:
    """The blocks of rows ``u`` and ``w``, of shape (rows, n), each nonincreasing."""
    rows, n = u.shape
    problem = Linear(u, w) if mode == "c0" else Exponential(u, w) if mode == "smooth" else Power(u, w, POWERS[mode])
    # NaN compares false: the ends of rows, and rows that are not finite, violate nothing. One more NaN is in front.
    value = u.new_full((rows * (n + 1) + 1,), float("nan"))
    value[1:].view(rows, n + 1)[:, :n] = torch.where(_finite(u, w)[:, None], problem.singles, value[0])
    start, rounds = torch.arange(-1, value.numel() - 1, device=u.device), 0
    while True:
        keep = torch.cat([value.new_ones(1, dtype=torch.bool), ~(value[1:] > value[:-1])])
        heads = keep.nonzero().squeeze(1)
        before, after = value.numel(), heads.numel()
        if after == before:
            return Solution(start[1:], value[1:], problem.base, rounds)
        start, value, rounds = take(start, heads), take(value, heads), rounds + 1
        merged = (heads.diff() > 1).nonzero().squeeze(1)
        value[merged] = problem.value(take(start, merged), take(start, merged + 1))
        if after > _SHRINKAGE * before:
            break
    return _merge_runs(problem, start, value, rows, n + 1, rounds)


def _merge_runs(problem: Ranges, start: Tensor, value: Tensor, rows: int, stride: int, rounds: int) -> Solution:
    """Merge neighboring runs, until nothing violates.

    The list keeps its length: a growing block fills the places of the blocks it takes.
    """
    place = torch.arange(value.numel(), device=value.device)
    head, tail = place, place + 1  # of the block in each place
    ends = torch.searchsorted(start, torch.arange(rows + 1, device=value.device) * stride)
    head = head.clone()
    while True:
        # The places where runs begin, except the first of a row.
        junctions = (value[1:] > value[:-1]).nonzero().squeeze(1) + 1
        if not junctions.numel():
            kept = (head == place).nonzero().squeeze(1)
            return Solution(take(start, kept)[1:], take(value, kept)[1:], problem.base, rounds)
        while junctions.numel():
            # The remaining junctions still violate later: the block before one can only have fallen, the block after it risen.
            row = start[junctions] // stride
            even = (torch.arange(row.numel(), device=row.device) - torch.searchsorted(row, row)) % 2 == 0
            lower, upper = ends[row], ends[row + 1] - 1
            same = row[1:] == row[:-1]
            lower[1:] = torch.where(same, junctions[:-1], lower[1:])
            upper[:-1] = torch.where(same, junctions[1:], upper[:-1])
            low, high = _merge_range(problem, start, value, head, tail, junctions[even], lower[even], upper[even])
            filled, owner = expanded(low, high)
            value[filled] = take(problem.value(take(start, low), take(start, high)), owner)
            head[filled], tail[filled] = take(low, owner), take(high, owner)
            junctions, rounds = junctions[~even], rounds + 1


def _merge_range(
    problem: Ranges, start: Tensor, value: Tensor, head: Tensor, tail: Tensor, junction: Tensor, lower: Tensor, upper: Tensor
) -> tuple[Tensor, Tensor]:
    r"""The range of places that the new block at each junction takes from the runs on its left and right.

    Let :math:`A(c) \ge 0` be minus the excess of the blocks on the left with values below :math:`c`, and :math:`B(c) \ge 0` the
    excess of the blocks on the right with values above. :math:`A` rises, :math:`B` falls, and where they meet is the new value.
    The new block takes the blocks below this value on the left and above it on the right. At the value :math:`v_l` of a block on
    the left, :math:`A` is a sum up to that block, and so is :math:`B` at a value :math:`v_r` on the right: whichever of the
    four orders these two pairs of numbers have, one of the two blocks is seen to be in, or to be out. Once a side is settled, its
    sum runs over its blocks at any value.

    Steps away from the junction are doubled, and halved toward its far end, as most blocks take a few others.
    """
    # The places from left to right are surely in; those from far_left to far_right are not surely out.
    left, right = take(head, junction - 1), take(tail, junction)
    found, pending = torch.stack([left, right]), torch.arange(junction.numel(), device=junction.device)
    state = torch.stack([junction, left, right, lower, upper])
    while True:
        junction, left, right, far_left, far_right = state
        left_open, right_open = far_left < left, right < far_right
        still = (left_open | right_open).nonzero().squeeze(1)
        if 2 * still.numel() <= junction.numel():
            # Most junctions are settled after few steps; the others go on alone.
            found.index_copy_(1, pending, state[1:3])
            if not still.numel():
                return found[0], found[1]
            state, pending = state.index_select(1, still), take(pending, still)
            junction, left, right, far_left, far_right = state
            left_open, right_open = far_left < left, right < far_right
        # On a settled side these are the places next to the block.
        l = torch.maximum((far_left + left - 1) >> 1, 2 * left - junction)  # noqa: E741
        r = torch.minimum((far_right + right) >> 1, 2 * right - junction)
        v_l, v_r, l_tail, r_head = take(value, l), take(value, r), take(tail, l), take(head, r)
        a, m, b = take(start, l_tail), take(start, junction), take(start, r_head)
        more = problem.left_exceeds(a, m, b, torch.where(left_open, v_l, v_r), torch.where(right_open, v_r, v_l))
        on_left = left_open & (~right_open | ((v_l >= v_r) == more))
        on_right = right_open & ~on_left
        in_left, in_right = on_left > more, on_right & more
        state = torch.stack(
            [
                junction,
                torch.where(in_left, take(head, l), left),
                torch.where(in_right, take(tail, r), right),
                torch.where(on_left ^ in_left, l_tail, far_left),
                torch.where(on_right ^ in_right, r_head, far_right),
            ]
        )
