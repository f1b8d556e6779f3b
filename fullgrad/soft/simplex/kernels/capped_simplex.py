"""Thresholds of the capped simplex, on plain numbers: by Newton's method, and near the k-th largest element."""

import torch
from torch import Tensor

from fullgrad._core.fast import replaceable
from fullgrad._dispatch import finite_extremes, opaque, row_length, rows_are_split
from fullgrad.soft import _curves as curves
from fullgrad.soft.order.kernels.on_parts import Step, evenly, middle_of_gap, solve_on_parts
from fullgrad.soft.order.kernels.threshold import MOST_STEPS

# After this many passes, every other one halves the bracket.
_PATIENCE = 8
# Up to so many elements, sorting takes no longer than finding the last two.
_FEW = 16


def _like(v: Tensor, k: Tensor, mode: str) -> Tensor:
    return v.new_empty(torch.broadcast_shapes(v.shape, (*k.shape[:-1], 1)))


@opaque("centered", fake=_like, schema="(Tensor v, Tensor k, str mode) -> Tensor", reads_values=True)
@replaceable
def centered(v: Tensor, k: Tensor, mode: str) -> Tensor:
    """The value of `Centered`: Newton's method in a bracket, started between the k-th and the next element. A row is done when
    its sum is right up to rounding.
    """
    n = row_length(v)
    v = v.expand(torch.broadcast_shapes(v.shape, (*k.shape[:-1], 1)))
    if n == 0:
        return v.clone()
    if rows_are_split():
        return _centered_on_parts(v, k, n, mode)
    theta, top = _between(v, k)
    k = k.expand(theta.shape)
    low = high = theta  # the bracket, which the first step sets
    eps = torch.finfo(v.dtype).eps
    enough = 4 * eps * k.clamp(min=1)
    step_of = _step(k, n, mode)
    total = theta
    for i in range(MOST_STEPS):
        total, slope = _sums(v - theta, mode)
        error = total - k
        wrong = error.abs() > enough  # False for NaN
        step = step_of(total, slope)
        if i:
            low, high = torch.where(error > 0, theta, low), torch.where(error < 0, theta, high)
        else:
            low, high = _bracket(theta, error, top, v, mode)
        following = theta + step
        outside = ~((following > low) & (following < high))
        if i > _PATIENCE and i % 2:
            outside = torch.ones_like(outside)
        middle = (low + high) / 2
        stuck = (high - low) <= 2 * eps * theta.abs()
        following = torch.where(outside, middle, following)
        theta = torch.where(wrong & ~stuck, following, theta)
        if not bool((wrong & ~stuck).any()):
            break
    return _less(v, theta, k, n, ~((top < torch.inf) & total.isfinite()))


def _less(v: Tensor, theta: Tensor, k: Tensor, n: int, invalid: Tensor) -> Tensor:
    """Rows less their thresholds, which are infinite for no element and for all."""
    z, none, all_of_them = v - theta, k <= 0, k >= n
    if bool((none | all_of_them | invalid).any()):
        z = torch.where(none, -torch.inf, torch.where(all_of_them, torch.inf, z))
        z = torch.where(invalid, torch.nan, z)
    return z


def _step(k: Tensor, n: int, mode: str) -> Step:
    """Newton's step, for curves with tails on the log-odds of the mean."""
    if mode not in ("smooth", "laplace"):
        return lambda total, slope: (total - k) / slope
    base = torch.log(k / (n - k))
    return lambda total, slope: (torch.log(total / (n - total)) - base) * total * (n - total) / (n * slope)


def _centered_on_parts(v: Tensor, k: Tensor, n: int, mode: str) -> Tensor:
    """`centered` of parts of rows that are near their threshold."""
    bottom, top = finite_extremes(v)
    k = k.expand(top.shape)
    reach = 800.0 if mode in ("smooth", "laplace") else 5.0
    first = evenly(torch.full_like(top, -8.0), torch.full_like(top, 8.0), 17)
    enough = 4 * torch.finfo(v.dtype).eps * k.clamp(min=1)
    theta = solve_on_parts(bottom - reach, top + reach, lambda theta: _sums(v - theta, mode), k, enough, _step(k, n, mode), first)
    return _less(v, theta, k, n, ~(bottom <= top) | ~theta.isfinite())


def _sums(z: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    """The sums of the steps at a fresh tensor, and of their slopes, which are functions of the steps."""
    if mode == "smooth":
        s = z.sigmoid_()
        total = s.sum(-1, keepdim=True)
        return total, total - (s * s).sum(-1, keepdim=True)
    if mode == "laplace":
        s = curves.sigmoid(z, 1.0, mode)
        return s.sum(-1, keepdim=True), torch.minimum(s, 1 - s).sum(-1, keepdim=True)
    t = z.div_(10).add_(0.5).clamp_(0, 1)
    if mode == "c0":
        total = t.sum(-1, keepdim=True)
        return total, t.frac_().ceil_().sum(-1, keepdim=True) / 10
    v = t * (1 - t)
    if mode == "c1":
        return (t * t * (3 - 2 * t)).sum(-1, keepdim=True), v.sum(-1, keepdim=True) * 0.6
    return (t * t * t * (10 - 15 * t + 6 * t * t)).sum(-1, keepdim=True), (v * v).sum(-1, keepdim=True) * 3


def _bracket(theta: Tensor, error: Tensor, top: Tensor, v: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    """Thresholds on both sides: the first one, and one where all steps are 0, or 1, to working precision."""
    reach = 800.0 if mode in ("smooth", "laplace") else 5.0
    bottom = v.amin(-1, keepdim=True)
    if bool((bottom == -torch.inf).any()):
        bottom = torch.where(v == -torch.inf, top, v).amin(-1, keepdim=True)
    return torch.where(error > 0, theta, bottom - reach), torch.where(error > 0, top + reach, theta)


def _like_row(x: Tensor, k: Tensor) -> Tensor:
    return x.new_empty(torch.broadcast_shapes((*x.shape[:-1], 1), (*k.shape[:-1], 1)))


@opaque("capped_simplex_pivot", fake=_like_row, reads_values=True)
@replaceable
def capped_simplex_pivot(x: Tensor, k: Tensor) -> Tensor:
    """The value of `Pivot`."""
    x = x.expand(torch.broadcast_shapes(x.shape, (*k.shape[:-1], 1)))
    return _between(x, k)[0] if x.shape[-1] else x.sum(-1, keepdim=True)


def _between(v: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """The middle between the k-th largest element and the next for a whole k, else the element that is chosen in part; and
    the largest element.
    """
    n = v.shape[-1]
    if k.numel() == 1:
        whole = min(int(k.nan_to_num(0)), n)
        if _FEW < whole < n:  # order does not matter
            s = v.topk(whole + 1, -1, sorted=False).values
            least = s.topk(2, -1, largest=False).values
            return middle_of_gap(least[..., 1:], least[..., :1], k), s.amax(-1, keepdim=True)
        s = v.topk(min(whole + 1, n), -1).values
        at: Tensor = torch.full_like(s[..., :1], whole, dtype=torch.int64)
    else:
        s = v.sort(-1, descending=True).values
        at = k.nan_to_num(0).floor().long().clamp(0, n).expand(s[..., :1].shape)
    last = s.shape[-1] - 1
    first, second = s.gather(-1, (at - 1).clamp(0, last)), s.gather(-1, at.clamp(0, last))
    return middle_of_gap(first, second, k), s[..., :1]
