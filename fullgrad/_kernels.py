"""Fused kernels of torch, by what they compute here: each is the backward of another function, and costs one pass over memory."""

import functools
import math
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import forward_mode_is_on
from fullgrad._neighbors import DTYPES, flushes_denormals, neighbor

_HARDTANH = torch.ops.aten.hardtanh_backward.default
_THRESHOLD = torch.ops.aten.threshold_backward.default
_SOFTPLUS = torch.ops.aten.softplus_backward.default


def between(x: Tensor, low: Any, high: Any) -> Tensor:
    """``low <= x <= high``, where None is no bound. False where ``x`` is NaN, for which no comparison holds."""
    if low is None:
        return x <= high
    return x >= low if high is None else (x >= low) & (x <= high)


def where_between(g: Tensor, x: Tensor, low: float | None, high: float | None) -> Tensor:
    """``torch.where(between(x, low, high), g, 0)`` for bounds that are numbers, in about a seventh of its time.

    The backward of hardtanh passes a gradient strictly between its bounds, and that of a threshold strictly above one: a
    bound that is the next number further out makes them inclusive. 4 million elements of float32 on a CPU thread take TIMES.
    """
    # Flushed to 0, a subnormal number next to a bound of 0 would be the bound.
    if x.dtype not in DTYPES or flushes_denormals():
        return torch.where(between(x, low, high), g, 0)
    kernel, bounds, sign, nan = _strict(None if low is None else float(low), None if high is None else float(high), x.dtype)
    if kernel is None:
        return torch.where(between(x, low, high), g, 0)
    if forward_mode_is_on():  # which would compute a tangent of x that the kernel multiplies by 0
        x = x.detach()
    # The kernels compare in an order that depends on the position of a NaN; as an infinity it is outside for certain.
    x = torch.nan_to_num(x if sign > 0 else -x, nan, math.inf, -math.inf)
    return kernel(g, x, *bounds)


def where_positive(g: Tensor, m: Tensor) -> Tensor:
    """``torch.where(m > 0, g, 0)``, ``m`` a mask or numbers without NaN, in a third of its time; for a mask, infinities of ``g``
    that a product would make NaN are 0.
    """
    return _THRESHOLD(g, m, 0)


def sigmoid_gate(v: Tensor, x: Tensor, s: Any) -> Tensor:
    """``v * torch.sigmoid(x / s)``, in half precision computed in float32 and rounded once: the backward of softplus.

    For ``-s`` it is ``v * (1 - torch.sigmoid(x / s))``. From 60 softnesses on the kernel passes ``v`` as it is.
    """
    return _SOFTPLUS(v, x, 1 / s, 60.0)


@functools.lru_cache(maxsize=1024)
def _strict(low: float | None, high: float | None, dtype: torch.dtype) -> tuple[Any, tuple[float, ...], int, float]:
    """The kernel with its strict bounds, the sign of x that it takes, and the infinity that is outside.

    An upper bound alone is a lower bound of -x. None for the kernel where there is nothing to bound, or a bound is NaN.
    """
    # A trivial bound is none: infinity has no neighbor beyond it.
    low = None if low == -math.inf else low
    high = None if high == math.inf else high
    if low is not None and high is not None and low == low and high == high:
        return _HARDTANH, (neighbor(low, dtype, False), neighbor(high, dtype, True)), 1, math.inf
    if low is not None and high is None and low == low:
        return _THRESHOLD, (neighbor(low, dtype, False),), 1, -math.inf
    if high is not None and low is None and high == high:
        return _THRESHOLD, (-neighbor(high, dtype, True),), -1, -math.inf
    return None, (), 1, 0.0
