"""Thresholds and the largest elements of rows of which several ranks have parts, on plain numbers.

Each exchange carries the sums at several thresholds, so that a few exchanges suffice for rows of any numbers.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fullgrad._dispatch import finite_extremes, of_ranks, ranks_before, row_length, row_totals
from fullgrad.soft import _curves as curves

# The sums of this rank at a threshold of each row, and minus their slopes.
Sums = Callable[[Tensor], Sequence[Tensor]]
# Newton's step from sums and slopes.
Step = Callable[[Tensor, Tensor], Tensor]
_THRESHOLDS, _MOST_EXCHANGES = 16, 40
# The thresholds by which `near_threshold` looks, and its exchanges: they make a bracket 10^6 times smaller.
_COARSE, _COARSE_EXCHANGES = 32, 4


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
    for _ in range(_MOST_EXCHANGES):
        thetas = torch.minimum(torch.maximum(thetas, low), high).sort(-1).values
        total, slope = sums_at(thetas, sums)
        m, above = thetas.shape[-1], (total > goal).long().cumprod(-1).sum(-1, keepdim=True)
        left, right = (above - 1).clamp(min=0), above.clamp(max=m - 1)
        low = torch.where(above > 0, thetas.gather(-1, left), low)
        high = torch.where(above < m, thetas.gather(-1, right), high)
        errors = torch.where(total.isnan(), torch.inf, (total - goal).abs())
        least, at = errors.min(-1, keepdim=True)
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


def near_threshold(x: Tensor, k: Tensor, softness: Tensor | float, n: int, mode: str) -> Tensor:
    """A number of each row that is near the threshold, of x itself, at which sigmoids sum to k: a few softnesses away, or the
    rounding of x over them.
    """
    low, high = finite_extremes(x)
    reach = (torch.log(k / (n - k)).abs() + 1).clamp(max=800.0) if mode in ("smooth", "laplace") else torch.full_like(k, 5.0)
    low, high = low - reach * softness, high + reach * softness
    shape = torch.broadcast_shapes(low.shape, high.shape)
    low, high = low.expand(shape), high.expand(shape)

    def sums(theta: Tensor) -> Sequence[Tensor]:
        s = curves.sigmoid(x - theta, softness, mode).sum(-1, keepdim=True)
        return s, s

    for _ in range(_COARSE_EXCHANGES):
        if not bool((high - low > 8 * softness).any()):
            break
        thetas = evenly(low, high, _COARSE)
        above = (sums_at(thetas, sums)[0] > k).sum(-1, keepdim=True)
        low = torch.where(above > 0, thetas.gather(-1, (above - 1).clamp(min=0)), low)
        high = torch.where(above < _COARSE, thetas.gather(-1, above.clamp(max=_COARSE - 1)), high)
    wide = high - low > 8 * softness
    near = low + (high - low) / 2
    # Elements that are many softnesses apart: as in one process, the one that is chosen in part, or the middle of the gap.
    return torch.where(wide, pivot_on_parts(x, k), near) if bool(wide.any()) else near


def pivot_on_parts(x: Tensor, k: Tensor) -> Tensor:
    """The middle between the k-th largest element of each row and the next for a whole k, else the element that is chosen in
    part.
    """
    shape = torch.broadcast_shapes(x.shape[:-1], k.shape[:-1])
    (key, integer), whole = _keys(x.expand(*shape, x.shape[-1])), k.nan_to_num(0).floor().long().expand(*shape, 1)
    places = torch.cat((whole, whole + 1), -1).clamp(1, row_length(x))
    found = _largest_keys(key, places, integer)
    bits = torch.where(found < 0, found ^ torch.iinfo(integer).max, found).to(integer)
    first, second = bits.view(x.dtype).split(1, -1)
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
    """The k-th largest keys of whole rows, for several k (…, m), counted from 1.

    They are found byte by byte, from how many keys are as large as each of 256.
    """
    ascending, n, width = key.sort(-1).values, key.shape[-1], torch.iinfo(integer).bits
    found = torch.full_like(k, torch.iinfo(integer).min)
    for shift in range(width - 8, -1, -8):
        tried = found.unsqueeze(-1) + (torch.arange(256, device=key.device) << shift)
        (counts,) = row_totals((n - torch.searchsorted(ascending, tried.flatten(-2))).double())
        at = (counts.unflatten(-1, (-1, 256)) >= k.unsqueeze(-1)).sum(-1, keepdim=True) - 1
        found = tried.gather(-1, at).squeeze(-1)
    return found
