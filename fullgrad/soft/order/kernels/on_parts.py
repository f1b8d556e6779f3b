"""Thresholds and the largest elements of rows of which several ranks have parts, on plain numbers.

Each exchange carries the sums at several thresholds, or several elements of each part, so that a few exchanges suffice for rows
of any numbers.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fullgrad._dispatch import of_ranks, ranks_before, row_totals

# Sums at thresholds, and minus their slopes: of this rank's part of each row, if a function does not say more.
Sums = Callable[[Tensor], Sequence[Tensor]]
# Newton's step from sums and slopes.
Step = Callable[[Tensor, Tensor], Tensor]
# How many thresholds an exchange of a convex sum tries, and how many elements each rank sends in one that looks for the k-th
# largest: what is left is about an eightieth.
_CONVEX_THRESHOLDS, _SENT = 4, 128
# What a solver takes at most. Rows of all kinds took up to 7, a longer search is one in the last places of a threshold.
_MOST_EXCHANGES = 7


def sums_at(thetas: Tensor, sums: Sums) -> Sequence[Tensor]:
    """The sums of whole rows at thresholds (…, m): one exchange."""
    parts = [sums(theta.unsqueeze(-1)) for theta in thetas.unbind(-1)]
    return row_totals(*[torch.cat(each, -1) for each in zip(*parts, strict=True)])


def evenly(low: Tensor, high: Tensor, count: int) -> Tensor:
    """Thresholds (…, count) from low to high."""
    return low + (high - low) * (torch.arange(count, dtype=low.dtype, device=low.device) / (count - 1))


def solve_convex_on_parts(low: Tensor, high: Tensor, sums: Sums, step: Step) -> Tensor:
    """The thresholds in a bracket at which falling convex sums are 1.

    Newton's point from the last threshold tried with a sum of 1 at least is below the solution, and the secant's to the next one
    is above it. An exchange tries thresholds from the one to the other.
    """
    eps, m = torch.finfo(low.dtype).eps, _CONVEX_THRESHOLDS
    thetas, of_high = evenly(low, high, 2 * m), torch.full_like(low, torch.nan)
    theta = low
    for _ in range(_MOST_EXCHANGES + 1):
        total, slope = sums_at(thetas, sums)
        count = (total >= 1).sum(-1, keepdim=True)
        at, after = (count - 1).clamp(min=0), count.clamp(max=thetas.shape[-1] - 1)
        last, of_last = thetas.gather(-1, at), total.gather(-1, at)
        passed = count < thetas.shape[-1]
        high, of_high = torch.where(passed, thetas.gather(-1, after), high), torch.where(passed, total.gather(-1, after), of_high)
        move = step(of_last, slope.gather(-1, at)).clamp(min=0)
        theta = last + move
        if not bool(((move > 2 * eps * theta.abs()) & (of_last - 1 > 2 * eps)).any()):
            break
        secant = last + (high - last) * ((of_last - 1) / (of_last - of_high))
        secant = torch.where((secant > theta) & (secant < high), secant, high)
        thetas = theta + (secant - theta) * (torch.arange(m, device=low.device) / m)
    return theta


def solve_on_parts(thetas: Tensor, reach: Tensor | float, sums: Sums, enough: Tensor, most: int = _MOST_EXCHANGES) -> Tensor:
    """The thresholds at which falling sums are 0, to ``enough`` or to what rounding a threshold, or 1, changes.

    ``sums`` returns those of whole rows at thresholds (…, m), minus their slopes, and Newton's steps. The solutions are at most
    ``reach`` from the middle one of ``thetas``, which are the first to be tried. Each exchange tries as many: Newton's points
    from both ends of the bracket, the secant's, points around it as near as they are to each other, and evenly spaced ones.
    """
    m = thetas.shape[-1]
    start = thetas[..., m // 2, None]
    low, high = start - reach, start + reach
    eps, best, off, limit = torch.finfo(low.dtype).eps, start, torch.full_like(low, torch.inf), enough
    for i in range(most):
        thetas = torch.minimum(torch.maximum(thetas, low), high).sort(-1).values
        total, slope, step = sums(thetas)
        above = (total > 0).long().cumprod(-1).sum(-1, keepdim=True)
        left, right = (above - 1).clamp(min=0), above.clamp(max=m - 1)
        low = torch.where(above > 0, thetas.gather(-1, left), low)
        high = torch.where(above < m, thetas.gather(-1, right), high)
        errors = torch.where(total.isnan(), torch.inf, total.abs())
        errors = torch.where(errors <= enough, 0, errors) if i == 0 else errors
        least = errors.amin(-1, keepdim=True)
        # Of several that are right, as at first in a gap, the one where one process begins.
        at = torch.where(errors == least, (thetas - start).abs(), torch.inf).argmin(-1, keepdim=True)
        theta, better = thetas.gather(-1, at), least < off
        rounded = 2 * eps * theta.abs().clamp(min=1) * slope.gather(-1, at)
        best, off = torch.where(better, theta, best), torch.minimum(off, least)
        limit = torch.where(better, torch.maximum(enough, rounded), limit)
        unknown = high - low > 2 * eps * torch.maximum(low.abs(), high.abs())
        if not bool(((off > limit) & unknown & ~total.isnan().any(-1, keepdim=True)).any()):
            break
        ends = [thetas.gather(-1, i) for i in (left, right)]
        newton = [theta + step.gather(-1, i) for theta, i in zip(ends, (left, right), strict=True)]
        of_ends = [total.gather(-1, i) for i in (left, right)]
        share = of_ends[0] / (of_ends[0] - of_ends[1])
        secant, middle = ends[0] + (ends[1] - ends[0]) * share, (low + high) / 2
        a, b, c = [torch.where((v > low) & (v < high), v, middle) for v in (*newton, secant)]
        near = (b - a).abs()
        nearer = near * (near / (high - low)).nan_to_num(0)
        points = (a, b, c, (a + b) / 2, c - near, c + near, c - nearer, c + nearer)
        thetas = torch.cat((*points, evenly(low, high, m - len(points) + 2)[..., 1:-1]), -1)
    return best


class Split(NamedTuple):
    """Where the k-th largest element of each row lies: how many of the k largest this rank has, of equal ones the first; the last
    of the k and the one behind it, minus infinity if there is none; and the largest and the smallest element.
    """

    count: Tensor
    kth: Tensor
    following: Tensor
    largest: Tensor
    smallest: Tensor


def split_on_parts(descending: Tensor, k: Tensor) -> Split:
    """The split of rows, of which each rank has a sorted part, at the k-th largest element, from 1 to their length.

    Each rank sends evenly spaced ones of its elements that may be the last of the k, with their places in its part. In the order
    of what all have sent, the elements in front of each are then known up to what lies between two that were sent.
    """
    n, m = descending.shape[-1], _SENT
    rows = descending if n else torch.full_like(k, -torch.inf, dtype=descending.dtype)
    rows, k = rows.expand(*k.shape[:-1], rows.shape[-1]).contiguous(), k.double()
    low, high = torch.zeros_like(k, dtype=torch.int64), torch.full_like(k, n, dtype=torch.int64)
    lows, highs, ends = torch.zeros_like(k), torch.full_like(k, torch.inf), ()
    while True:
        place = (low + (high + 1 - low) * torch.arange(m, device=k.device) // (m - 1)).clamp(min=min(n, 1), max=n)
        sent = torch.stack((rows.gather(-1, (place - 1).clamp(min=0)).double(), place.double()), -2)
        value, place = of_ranks(sent).movedim(0, -3).unbind(-2)
        before = (place - 1).clamp(min=0)
        value, order = value.flatten(-2).sort(dim=-1, descending=True, stable=True)
        ranks = place.shape[-2]

        def summed(steps: Tensor, order: Tensor = order) -> Tensor:
            return steps.flatten(-2).gather(-1, order).cumsum(-1)

        def of_each_rank(marks: Tensor, order: Tensor = order, ranks: int = ranks) -> Tensor:
            return torch.empty_like(marks).scatter(-1, order, marks).unflatten(-1, (ranks, m))

        # At least so many elements are up to each, and at most so many in front of it.
        up_to = summed(place.diff(dim=-1, prepend=torch.zeros_like(place[..., :1])))
        gaps = torch.cat((before[..., 1:], place[..., -1:]), -1) - before
        in_front = before[..., 0].sum(-1, keepdim=True) + summed(gaps) - gaps.flatten(-2).gather(-1, order)
        lows = torch.maximum(lows, torch.where(of_each_rank(in_front < k), place, 0).amax(-1))
        highs = torch.minimum(highs, torch.where(of_each_rank(up_to > k), before, place[..., -1:]).amin(-1))
        low, high = [v[..., ranks_before(), None].long() for v in (lows, highs)]
        exist = (place > 0).flatten(-2)
        ends = ends or (value[..., :1], value.gather(-1, exist.sum(-1, keepdim=True) - 1))
        if bool((lows == highs).all()):
            break
    chosen = (exist & (place <= lows.unsqueeze(-1)).flatten(-2)).sum(-1, keepdim=True)
    value = torch.nn.functional.pad(value, (0, 1), value=-torch.inf)
    return Split(low, *[v.to(descending.dtype) for v in (value.gather(-1, chosen - 1), value.gather(-1, chosen), *ends)])


def middle_of_gap(first: Tensor, second: Tensor, k: Tensor) -> Tensor:
    """The middle between two neighbors for a whole k, else the second."""
    second = torch.where(second == -torch.inf, first, second)
    return torch.where(k == k.floor(), first / 2 + second / 2, second)


def largest_on_parts(x: Tensor, k: int) -> Tensor:
    """Whether each element of this rank's part is among the k largest of its row; of equal ones the first are. NaN is largest."""
    if k == 0:
        return torch.zeros_like(x, dtype=torch.bool)
    ordered, order = x.sort(dim=-1, descending=True, stable=True)
    count = split_on_parts(ordered, torch.full((*x.shape[:-1], 1), k, device=x.device)).count
    return torch.zeros_like(x, dtype=torch.bool).scatter(-1, order, torch.arange(x.shape[-1], device=x.device) < count)
