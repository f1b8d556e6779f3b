"""Thresholds of the capped simplex, on plain numbers: by Newton's method, and near the k-th largest element."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fullgrad._core.fast import replaceable
from fullgrad._dispatch import opaque, row_length
from fullgrad.soft.order.kernels.on_parts import evenly, middle_of_gap, solve_on_parts, sums_at
from fullgrad.soft.order.kernels.threshold import MOST_STEPS

# After this many passes, every other one halves the bracket.
_PATIENCE = 8
# Up to so many elements, sorting takes no longer than finding the last two.
_FEW = 16


# Thresholds are at most this far from the middle of the gap behind the k-th largest element: beyond it, all steps of one side are
# 0 or 1, to working precision.
_REACH = {"smooth": 800.0, "laplace": 800.0, "c0": 10.0, "c1": 10.0, "c2": 10.0}
# The curves with tails, in which the elements next to a gap share what is missing, however wide it is.
TAILS = ("smooth", "laplace")


def _like(v: Tensor, k: Tensor, mode: str) -> Tensor:
    return v.new_empty(torch.broadcast_shapes(v.shape, (*k.shape[:-1], 1)))


@opaque("centered", fake=_like, schema="(Tensor v, Tensor k, str mode) -> Tensor", reads_values=True)
@replaceable
def centered(v: Tensor, k: Tensor, mode: str) -> Tensor:
    """Rows less the threshold at which their sigmoids sum to k: Newton's method in a bracket, started between the k-th and the
    next element. A row is done when the threshold is right up to rounding.
    """
    n = v.shape[-1]
    v = v.expand(torch.broadcast_shapes(v.shape, (*k.shape[:-1], 1)))
    if n == 0:
        return v.clone()
    first, second = neighbors(v, k)
    k = k.expand(first.shape)
    theta, half, known = _start(first, second, k, mode)
    low, high = theta - _REACH[mode], theta + _REACH[mode]
    eps = torch.finfo(v.dtype).eps
    for i in range(MOST_STEPS):
        sums = _sums(v - theta, half, mode)
        off, step = _off(sums, k, n, half, mode)
        low, high = torch.where(off > 0, theta, low), torch.where(off < 0, theta, high)
        following = theta + step
        outside = ~((following > low) & (following < high))
        if i > _PATIENCE and i % 2:
            outside = torch.ones_like(outside)
        unit = 2 * eps * torch.maximum(theta.abs(), half).clamp_(min=1)
        wrong = (high - low > unit) & (off.abs() > torch.maximum(4 * eps * sums.tails, unit * sums.slope)) & ~known  # not for NaN
        theta = torch.where(wrong, torch.where(outside, (low + high) / 2, following), theta)
        if not bool(wrong.any()):
            break
    return v - theta


def centered_on_parts(v: Tensor, k: Tensor, ends: Tensor, mode: str) -> Tensor:
    """`centered` of parts of rows, with the k-th element of the whole row and the next, as `neighbors` has them."""
    n = row_length(v)
    first, second = ends.split(1, -1)
    k = k.expand(first.shape)
    start, half, known = _start(first, second, k, mode)
    near = math.log(n) + 1 if mode in TAILS else _REACH[mode]
    thetas = start + evenly(torch.full_like(start, -near), torch.full_like(start, near), 17)

    def sums(thetas: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        whole = Sums(*sums_at(thetas, lambda theta: _sums(v - theta, half, mode)))
        off, step = _off(whole, k, n, half, mode)
        return off, whole.slope, step

    theta = solve_on_parts(thetas, _REACH[mode], sums, torch.where(known, torch.inf, 0).to(start.dtype))
    return v - torch.where(known, start, theta)


def _start(first: Tensor, second: Tensor, k: Tensor, mode: str) -> tuple[Tensor, Tensor, Tensor]:
    """The threshold to begin with; half of the gap around it, 0 if there is none or digits do not tell where in it a number lies;
    and whether the threshold is known: all steps are 0, or 1.
    """
    limits = torch.finfo(first.dtype)
    whole = k == k.floor()
    none, every = k <= 0, whole & (second == -torch.inf)
    beyond = min(_REACH[mode], 8 - math.log(limits.smallest_normal * limits.eps))
    theta = middle_of_gap(first, second, k) + beyond * (none.to(first.dtype) - every.to(first.dtype))
    half = first / 2 - second / 2
    return theta, torch.where(whole & (half < 0.01 / limits.eps), half, 0), none | every


class Sums(NamedTuple):
    """Sums over a row less its threshold: the signs; the tails, which are the steps of the negative elements, and what the steps
    of the positive ones lack to 1, the former less the latter, and both; and the slopes. All but the first are times e to
    the power of half a gap.
    """

    signs: Tensor
    difference: Tensor
    tails: Tensor
    slope: Tensor


def _sums(z: Tensor, half: Tensor, mode: str) -> Sums:
    """The sums over this rank's part of a row, a fresh tensor. No number is near 1, where it would lose the digits of what it
    lacks: they decide the threshold where k is near n, or in a gap.
    """
    side = z.sign()
    a = z.abs_()
    if mode in TAILS:
        t = a.sub_(half).exp_()
        t = (t.add_(torch.exp(-half)) if mode == "smooth" else t.mul_(2)).reciprocal_()
        tails = t.sum(-1, keepdim=True)
        slope = tails - (t * t).sum(-1, keepdim=True) * torch.exp(-half) if mode == "smooth" else tails
    else:
        r = a.div_(-10).add_(0.5).clamp_(min=0)
        if mode == "c0":
            t, w = r, r.sign().div_(10)
        elif mode == "c1":
            t, w = r * r * (3 - 2 * r), (r * (1 - r)).mul_(0.6)
        else:
            t, w = r * r * r * (10 - 15 * r + 6 * r * r), (r * (1 - r)).square_().mul_(3)
        tails, slope = t.sum(-1, keepdim=True), w.sum(-1, keepdim=True)
    signs = side.sum(-1, keepdim=True)
    return Sums(signs, -side.mul_(t).sum(-1, keepdim=True), tails, slope)


def _off(sums: Sums, k: Tensor, n: int, half: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    """How much too large the sum of the steps is, and Newton's step, for curves with tails on the logarithm of a ratio.

    Times e to the power of half a gap, as the sums are.
    """
    signs, difference, tails, slope = sums
    more = ((signs.to(k.dtype) + n) / 2 - k).to(tails.dtype)  # positive elements than k
    if mode not in TAILS:
        return difference + more, (difference + more) / slope
    more = torch.where(more == 0, 0, more * torch.exp(half))
    below, above = (tails + difference) / 2, (tails - difference) / 2
    a, b = below + more.clamp(min=0), above - more.clamp(max=0)
    return difference + more, torch.log(a / b) * tails / (slope * (below / a + above / b))


def _like_row(x: Tensor, k: Tensor) -> Tensor:
    return x.new_empty(torch.broadcast_shapes((*x.shape[:-1], 1), (*k.shape[:-1], 1)))


@opaque("capped_simplex_pivot", fake=_like_row, reads_values=True)
@replaceable
def capped_simplex_pivot(x: Tensor, k: Tensor) -> Tensor:
    """The value of `Pivot`."""
    x = x.expand(torch.broadcast_shapes(x.shape, (*k.shape[:-1], 1)))
    return middle_of_gap(*neighbors(x, k), k) if x.shape[-1] else x.sum(-1, keepdim=True)


def neighbors(v: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """The k-th largest element and the next for a whole k, else those next to k; minus infinity behind the last one."""
    n = v.shape[-1]
    if k.numel() == 1:
        whole = min(int(k.nan_to_num(0)), n)
        if _FEW < whole < n:  # order does not matter
            least = v.topk(whole + 1, -1, sorted=False).values.topk(2, -1, largest=False).values
            return least[..., 1:], least[..., :1]
        s = v.topk(min(whole + 1, n), -1).values
        at: Tensor = torch.full_like(s[..., :1], whole, dtype=torch.int64)
    else:
        s = v.sort(-1, descending=True).values
        at = k.nan_to_num(0).floor().long().clamp(0, n).expand(s[..., :1].shape)
    last = s.shape[-1] - 1
    following = torch.where(at < n, s.gather(-1, at.clamp(0, last)), -torch.inf)
    return s.gather(-1, (at - 1).clamp(0, last)), following
