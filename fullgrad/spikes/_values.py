"""Hard values: steps, signs and counts."""

import functools
from typing import Any

import torch
from torch import Tensor

from fullgrad._checks import broadcast_shape
from fullgrad._dispatch import can_reuse_buffers, same_shape
from fullgrad._half_precision import HALF, cast, rounded_once
from fullgrad._neighbors import rounded
from fullgrad.soft._relaxation import compared

_NUMBERS = frozenset({float, int, type(None)})


def step(v: Tensor, threshold: Any, tie: float) -> Tensor:
    """1 above the threshold, ``tie`` on it, 0 below it and where ``v`` is NaN. A difference is not taken: it may round to 0."""
    threshold = threshold_for(v, threshold)
    if tie == 1:
        return compared(torch.ge, v, threshold)
    if tie == 0:
        return compared(torch.gt, v, threshold)
    return (compared(torch.ge, v, threshold) + compared(torch.gt, v, threshold)) * 0.5


def sign(x: Tensor, tie: float) -> Tensor:
    """1 and -1, ``tie`` at zeros of both signs; -1 where ``x`` is NaN."""
    y = step(x, 0.0, (tie + 1) / 2)
    return y.mul_(2).sub_(1) if can_reuse_buffers() else y * 2 - 1


def count(v: Tensor, threshold: Any, max_spikes: int | None) -> Tensor:
    """How many times the threshold is reached, at most ``max_spikes`` if that is given; NaN where ``v`` is NaN."""
    threshold = threshold_for(v, threshold)
    if max_spikes == 1:
        return compared(torch.ge, v, threshold)
    return rounded_once(_count, v, threshold, max_spikes)


def _count(v: Tensor, threshold: Any, max_spikes: int | None) -> Tensor:
    # Zeros below the threshold are positive: that of a clamp may have either sign.
    return torch.clamp(torch.trunc(v / threshold), 0, max_spikes) + 0.0


def expanded(value: Tensor, *inputs: Any) -> Tensor:
    """A value in the shape to which it broadcasts with all inputs, so that a parameter may have more dimensions."""
    if all_numbers(inputs):
        return value
    shape = broadcast_shape(value.shape, *[a.shape for a in inputs if isinstance(a, Tensor)])
    return value if same_shape(value.shape, shape) else value.expand(shape).clone()


def threshold_for(v: Tensor, threshold: Any) -> Any:
    """A threshold as torch compares it with ``v``: rounded to the dtype of both.

    Compiled code and float32 arithmetic would else see another number than a comparison in half precision.
    """
    if isinstance(threshold, Tensor):
        dtype = v.dtype if threshold.dtype == v.dtype else torch.result_type(v, threshold)
        return cast(threshold, dtype)
    return _rounded(float(threshold), v.dtype) if v.dtype in HALF else threshold


_rounded = functools.lru_cache(maxsize=1024)(rounded)


def all_numbers(inputs: tuple[Any, ...]) -> bool:
    """Whether no input is a tensor. The types of plain numbers are looked at first: it takes a fifth of the time."""
    return _NUMBERS.issuperset(map(type, inputs)) or not any(isinstance(a, Tensor) for a in inputs)
