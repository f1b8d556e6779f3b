"""Hard values: steps, signs and counts."""

import functools
from typing import Any

import torch
from torch import Tensor

from fullgrad._core.checks import broadcast_shape
from fullgrad._core.neighbors import rounded
from fullgrad._core.opmath import HALF, cast
from fullgrad._core.pieces import pointwise
from fullgrad._core.windows import compared
from fullgrad._dispatch import same_shape

_NUMBERS = frozenset({float, int, type(None)})


def step(v: Tensor, threshold: Any, tie: float) -> Tensor:
    """1 above the threshold, ``tie`` on it, 0 below it and where ``v`` is NaN. No difference is taken, as it may round to 0."""
    threshold = threshold_for(v, threshold)
    if tie == 1:
        return compared(torch.ge, v, threshold)
    if tie == 0:
        return compared(torch.gt, v, threshold)
    return (compared(torch.ge, v, threshold) + compared(torch.gt, v, threshold)) * 0.5


def sign(x: Tensor, tie: float) -> Tensor:
    """1 and -1, ``tie`` at zeros of both signs; -1 where ``x`` is NaN."""
    return torch.rsub(step(x, 0.0, (tie + 1) / 2), -1, alpha=-2)  # 2 step - 1


def count(v: Tensor, threshold: Any, max_spikes: int | None) -> Tensor:
    """The number of times the threshold is reached, at most ``max_spikes``; NaN for NaN, but 0 if ``max_spikes`` is 1."""
    threshold = threshold_for(v, threshold)
    if max_spikes == 1:
        return compared(torch.ge, v, threshold)
    return _count(v, threshold, max_spikes)


@pointwise(opmath=True)
def _count(v: Tensor, threshold: Any, max_spikes: int | None) -> Tensor:
    # Adding 0 makes zeros below the threshold positive: the zero of a clamp may have either sign.
    return torch.clamp(torch.trunc(v / threshold), 0, max_spikes) + 0.0


def expanded(value: Tensor, *inputs: Any) -> Tensor:
    """A value expanded to its broadcast shape with all inputs, as a parameter may have more dimensions."""
    if all_numbers(inputs):
        return value
    shape = broadcast_shape(value.shape, *[a.shape for a in inputs if isinstance(a, Tensor)])
    return value if same_shape(value.shape, shape) else value.expand(shape).clone()


def threshold_for(v: Tensor, threshold: Any) -> Any:
    """A threshold as torch compares it with ``v``: rounded to the dtype of both.

    Compiled code and float32 arithmetic would otherwise see another number than a comparison in half precision.
    """
    if isinstance(threshold, Tensor):
        dtype = v.dtype if threshold.dtype == v.dtype else torch.result_type(v, threshold)
        return cast(threshold, dtype)
    return _rounded(float(threshold), v.dtype) if v.dtype in HALF else threshold


_rounded = functools.lru_cache(maxsize=1024)(rounded)


def all_numbers(inputs: tuple[Any, ...]) -> bool:
    """Whether no input is a tensor. Types of plain numbers are checked first, which takes a fifth of the time."""
    return _NUMBERS.issuperset(map(type, inputs)) or not any(isinstance(a, Tensor) for a in inputs)
