"""Thresholds of the capped simplex, on plain numbers: by Newton's method, and near the k-th largest element."""

import math

import torch
from torch import Tensor

from fullgrad._core.fast import replaceable
from fullgrad._dispatch import opaque, row_length
from fullgrad.soft import _curves as curves
from fullgrad.soft.order.kernels.on_parts import Step, evenly, middle_of_gap, solve_on_parts
from fullgrad.soft.order.kernels.threshold import MOST_STEPS

# After this many passes, every other one halves the bracket.
_PATIENCE = 8
# Up to so many elements, sorting takes no longer than finding the last two.
_FEW = 16


# Thresholds are at most this far from the middle of the gap behind the k-th largest element: beyond it, all steps of one side are
# 0 or 1, to working precision.
_REACH = {"smooth": 800.0, "laplace": 800.0, "c0": 10.0, "c1": 10.0, "c2": 10.0}


def _like(v: Tensor, k: Tensor, mode: str) -> Tensor:
    return v.new_empty(torch.broadcast_shapes(v.shape, (*k.shape[:-1], 1)))


@opaque("centered", fake=_like, schema="(Tensor v, Tensor k, str mode) -> Tensor", reads_values=True)
@replaceable
def centered(v: Tensor, k: Tensor, mode: str) -> Tensor:
    """The value of `Centered`: Newton's method in a bracket, started between the k-th and the next element. A row is done when
    its sum is right up to rounding: of the sum, or of the threshold.
    """
    n = v.shape[-1]
    v = v.expand(torch.broadcast_shapes(v.shape, (*k.shape[:-1], 1)))
    if n == 0:
        return v.clone()
    theta = between(v, k)
    k = k.expand(theta.shape)
    low, high = theta - _REACH[mode], theta + _REACH[mode]
    eps, least, step_of = 2 * torch.finfo(v.dtype).eps, _enough(k, n), _step(k, n, mode)
    for i in range(MOST_STEPS):
        total, slope = _sums(v - theta, mode)
        error = total - k
        low, high = torch.where(error > 0, theta, low), torch.where(error < 0, theta, high)
        following = theta + step_of(total, slope)
        outside = ~((following > low) & (following < high))
        if i > _PATIENCE and i % 2:
            outside = torch.ones_like(outside)
        unit = theta.abs().mul_(eps)
        wrong = (high - low > unit) & (error.abs() > torch.maximum(least, unit.clamp_(min=eps).mul_(slope)))  # False for NaN
        theta = torch.where(wrong, torch.where(outside, (low + high) / 2, following), theta)
        if not bool(wrong.any()):
            break
    return _less(v, theta, k, n)


def _enough(k: Tensor, n: int) -> Tensor:
    """The error that the sum of a row may have by rounding; any, where its threshold is infinite."""
    return torch.where((k > 0) & (k < n), 4 * torch.finfo(k.dtype).eps * k, torch.inf)


def _less(v: Tensor, theta: Tensor, k: Tensor, n: int) -> Tensor:
    """Rows less their thresholds, which are infinite for no element and for all."""
    z, none, all_of_them = v - theta, k <= 0, k >= n
    if bool((none | all_of_them).any()):
        known = torch.where(none, -torch.inf, torch.inf).to(z.dtype)
        z = torch.where((none | all_of_them) & ~theta.isnan(), known, z)
    return z


def centered_on_parts(v: Tensor, k: Tensor, start: Tensor, mode: str) -> Tensor:
    """`centered` of parts of rows, with the number between the k-th element of the whole row and the next."""
    n = row_length(v)
    k = k.expand(start.shape)
    near = math.log(n) + 1 if mode in ("smooth", "laplace") else _REACH[mode]
    first = start + evenly(torch.full_like(start, -near), torch.full_like(start, near), 17)
    theta = solve_on_parts(first, _REACH[mode], lambda theta: _sums(v - theta, mode), k, _enough(k, n), _step(k, n, mode))
    return _less(v, theta, k, n)


def _step(k: Tensor, n: int, mode: str) -> Step:
    """Newton's step, for curves with tails on the log-odds of the mean."""
    if mode not in ("smooth", "laplace"):
        return lambda total, slope: (total - k) / slope
    base = torch.log(k / (n - k))
    return lambda total, slope: (torch.log(total / (n - total)) - base) * total * (n - total) / (n * slope)


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


def _like_row(x: Tensor, k: Tensor) -> Tensor:
    return x.new_empty(torch.broadcast_shapes((*x.shape[:-1], 1), (*k.shape[:-1], 1)))


@opaque("capped_simplex_pivot", fake=_like_row, reads_values=True)
@replaceable
def capped_simplex_pivot(x: Tensor, k: Tensor) -> Tensor:
    """The value of `Pivot`."""
    x = x.expand(torch.broadcast_shapes(x.shape, (*k.shape[:-1], 1)))
    return between(x, k) if x.shape[-1] else x.sum(-1, keepdim=True)


def between(v: Tensor, k: Tensor) -> Tensor:
    """The middle between the k-th largest element and the next for a whole k, else the element that is chosen in part."""
    n = v.shape[-1]
    if k.numel() == 1:
        whole = min(int(k.nan_to_num(0)), n)
        if _FEW < whole < n:  # order does not matter
            least = v.topk(whole + 1, -1, sorted=False).values.topk(2, -1, largest=False).values
            return middle_of_gap(least[..., 1:], least[..., :1], k)
        s = v.topk(min(whole + 1, n), -1).values
        at: Tensor = torch.full_like(s[..., :1], whole, dtype=torch.int64)
    else:
        s = v.sort(-1, descending=True).values
        at = k.nan_to_num(0).floor().long().clamp(0, n).expand(s[..., :1].shape)
    last = s.shape[-1] - 1
    return middle_of_gap(s.gather(-1, (at - 1).clamp(0, last)), s.gather(-1, at.clamp(0, last)), k)
