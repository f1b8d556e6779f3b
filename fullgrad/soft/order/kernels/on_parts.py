"""Thresholds and the largest elements of rows of which several ranks have parts, on plain numbers.

Each exchange carries the sums at several thresholds, so that a few exchanges suffice for rows of any numbers.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fullgrad._dispatch import of_ranks, ranks_before, row_length, row_totals

# The sums of this rank at a threshold of each row, and minus their slopes.
Sums = Callable[[Tensor], Sequence[Tensor]]
# Newton's step from sums and slopes.
Step = Callable[[Tensor, Tensor], Tensor]
_THRESHOLDS, _MOST_EXCHANGES = 16, 40


def sums_at(thetas: Tensor, sums: Sums) -> tuple[Tensor, Tensor]:
    """The sums of whole rows at thresholds (…, m), and minus their slopes: one exchange."""
    parts = [sums(theta.unsqueeze(-1)) for theta in thetas.unbind(-1)]
    both = [torch.cat(each, -1) for each in zip(*parts, strict=True)]
    total, slope = row_totals(*both)
    return total, slope


def evenly(low: Tensor, high: Tensor, count: int) -> Tensor:
    """Thresholds (…, count) from low to high."""
    return low + (high - low) * (torch.arange(count, dtype=low.dtype, device=low.device) / (count - 1))


def solve_on_parts(low: Tensor, high: Tensor, sums: Sums, goal: Tensor, enough: Tensor, step: Step, thetas: Tensor) -> Tensor:
    """The thresholds in a bracket at which falling sums are the goal, to ``enough``; ``thetas`` are the first to be tried.

    An exchange tries Newton's points from both ends of the bracket, the secant's, points around it as near as they are to each
    other, and evenly spaced ones.
    """
    eps, best, off = torch.finfo(low.dtype).eps, low, torch.full_like(low, torch.inf)
    for i in range(_MOST_EXCHANGES):
        thetas = torch.minimum(torch.maximum(thetas, low), high).sort(-1).values
        total, slope = sums_at(thetas, sums)
        m, above = thetas.shape[-1], (total > goal).long().cumprod(-1).sum(-1, keepdim=True)
        left, right = (above - 1).clamp(min=0), above.clamp(max=m - 1)
        low = torch.where(above > 0, thetas.gather(-1, left), low)
        high = torch.where(above < m, thetas.gather(-1, right), high)
        errors = torch.where(total.isnan(), torch.inf, (total - goal).abs())
        errors = torch.where(errors <= enough, 0, errors) if i == 0 else errors
        least = errors.amin(-1, keepdim=True)
        # Of several that are right, as at first in a gap, the one nearest to 0, where one process begins.
        at = torch.where(errors == least, thetas.abs(), torch.inf).argmin(-1, keepdim=True)
        best, off = torch.where(least < off, thetas.gather(-1, at), best), torch.minimum(off, least)
        wrong = (
            (off > enough) & (high - low > 2 * eps * torch.maximum(low.abs(), high.abs())) & ~total.isnan().any(-1, keepdim=True)
        )
        if not bool(wrong.any()):
            break
        ends = [thetas.gather(-1, i) for i in (left, right)]
        of_ends = [(total.gather(-1, i), slope.gather(-1, i)) for i in (left, right)]
        newton = [theta + step(*both) for theta, both in zip(ends, of_ends, strict=True)]
        share = (of_ends[0][0] - goal) / (of_ends[0][0] - of_ends[1][0])
        secant, middle = ends[0] + (ends[1] - ends[0]) * share, (low + high) / 2
        a, b, c = [torch.where((v > low) & (v < high), v, middle) for v in (*newton, secant)]
        near = (b - a).abs()
        nearer = near * (near / (high - low)).nan_to_num(0)
        points = (a, b, c, (a + b) / 2, c - near, c + near, c - nearer, c + nearer)
        thetas = torch.cat((*points, evenly(low, high, _THRESHOLDS - len(points) + 2)[..., 1:-1]), -1)
    return best


def pivot_on_parts(x: Tensor, k: Tensor) -> Tensor:
    """The middle between the k-th largest element of each row and the next for a whole k, else the element that is chosen in
    part: to the last digit the number of one process, so that what lies on a join lies there on parts, too.
    """
    shape = torch.broadcast_shapes(x.shape[:-1], k.shape[:-1])
    x, k = x.expand(*shape, x.shape[-1]), k.expand(*shape, 1)
    key, integer = _keys(x)
    place = k.nan_to_num(0).ceil().long().clamp(1, row_length(x))
    found = _largest_keys(key, place, integer)
    first = torch.where(found < 0, found ^ torch.iinfo(integer).max, found).to(integer).view(x.dtype)
    below, others = torch.where(key < found, x, -torch.inf).amax(-1, keepdim=True), (key >= found).sum(-1, keepdim=True)
    below, others = of_ranks(torch.stack((below.double(), others.double()))).unbind(1)
    second = torch.where((k == place) & (others.sum(0) <= place), below.amax(0).to(x.dtype), first)
    return middle_of_gap(first, second, k)


def middle_of_gap(first: Tensor, second: Tensor, k: Tensor) -> Tensor:
    """The middle between two neighbors for a whole k, else the second."""
    second = torch.where(second == -torch.inf, first, second)
    return torch.where(k == k.floor(), first / 2 + second / 2, second)


def largest_on_parts(x: Tensor, k: int) -> Tensor:
    """Whether each element of this rank's part is among the k largest of its row; of equal ones the first are. NaN is largest."""
    if k == 0:
        return torch.zeros_like(x, dtype=torch.bool)
    key, integer = _keys(x)
    found = _largest_keys(key, torch.full_like(key[..., :1], k), integer)
    tied = key == found
    counts = [m.sum(-1, keepdim=True).double() for m in (key > found, tied)]
    of_all = of_ranks(torch.stack(counts))
    left = k - of_all[:, 0].sum(0) - of_all[: ranks_before(), 1].sum(0)
    return (key > found) | (tied & (tied.cumsum(-1) <= left))


def _keys(x: Tensor) -> tuple[Tensor, torch.dtype]:
    """Integers in the order of floating numbers, with one zero, and NaN the largest; and the dtype that they fit in."""
    x = x if x.dtype == torch.float64 else x.float()
    integer = torch.int64 if x.dtype == torch.float64 else torch.int32
    largest, bits = torch.iinfo(integer).max, (x + 0.0).view(integer)
    key = torch.where(x.isnan(), largest, torch.where(bits < 0, bits ^ largest, bits))
    return key.long().contiguous(), integer


def _largest_keys(key: Tensor, k: Tensor, integer: torch.dtype) -> Tensor:
    """The k-th largest keys of whole rows, counted from 1: byte by byte, from how many keys are as large as each of 256."""
    ascending, n, width = key.sort(-1).values, key.shape[-1], torch.iinfo(integer).bits
    found = torch.full_like(k, torch.iinfo(integer).min)
    for shift in range(width - 8, -1, -8):
        tried = found + (torch.arange(256, device=key.device) << shift)
        (counts,) = row_totals((n - torch.searchsorted(ascending, tried)).double())
        found = tried.gather(-1, (counts >= k).sum(-1, keepdim=True) - 1)
    return found
