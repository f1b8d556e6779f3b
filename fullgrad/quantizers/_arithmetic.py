"""Arithmetic that all grids share: quotients in the dtype of the computation, and where a monotone code is in range."""

import functools
import math
import struct
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fullgrad._core.neighbors import rounded
from fullgrad._core.opmath import HALF


def to_compute(x: Tensor, *parameters: Any) -> list[Any]:
    """``x`` and the tensors among the parameters, in the dtype of the computation."""
    if x.dtype in HALF:
        x = x.float()
    return [x, *[p.to(x.dtype) if isinstance(p, Tensor) and p.dtype != x.dtype else p for p in parameters]]


def divided(x: Tensor, scale: Any) -> Tensor:
    """``x / scale`` as a true division on every device: torch multiplies CUDA tensors by the reciprocal of a number."""
    if not isinstance(scale, Tensor) and not x.is_cpu:
        scale = torch.full((), scale, dtype=x.dtype, device=x.device)
    return x / scale


@functools.lru_cache(maxsize=1024)
def reciprocal_number(scale: float, dtype: torch.dtype) -> float:
    """The reciprocal of a number, both rounded to ``dtype``."""
    return rounded(1.0 / rounded(scale, dtype), dtype)


def float32(value: float) -> float:
    """A number rounded to float32. For float32 operands, one operation in double precision, rounded, is the float32 result."""
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def in_dtype(dtype: torch.dtype) -> Callable[[float], float]:
    """The function that rounds a number to the dtype in which ``dtype`` is computed."""
    return float if dtype == torch.float64 else float32


_BITS = {
    torch.float64: ("<q", "<d", 0),
    torch.float32: ("<i", "<f", 0),
    torch.bfloat16: ("<i", "<f", 16),
    torch.float16: ("<h", "<e", 0),
}
_LARGEST = {torch.float64: 0x7FEFFFFFFFFFFFFF, torch.float32: 0x7F7FFFFF, torch.bfloat16: 0x7F7F, torch.float16: 0x7BFF}


def first_and_last(dtype: torch.dtype, function: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """The first number of a dtype with ``low <= function`` and the last with ``function <= high``, for an increasing function.

    Bisection over all finite numbers, without tensors.
    """
    integer, number, shift = _BITS[dtype]

    def value(n: int) -> float:
        magnitude = struct.unpack(number, struct.pack(integer, abs(n) << shift))[0]
        return math.copysign(magnitude, n)

    def first(reached: Callable[[float], bool]) -> int:
        below, above = -_LARGEST[dtype] - 1, _LARGEST[dtype] + 1
        while above - below > 1:
            middle = (below + above) // 2
            below, above = (below, middle) if reached(function(value(middle))) else (middle, above)
        return above

    return value(first(lambda y: y >= low)), value(first(lambda y: y > high) - 1)
