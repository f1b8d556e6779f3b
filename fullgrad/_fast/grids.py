"""Grids of integers for numbers as parameters, in one buffer; and ranges in which a grid passes the gradient.

The first and the last number in a range are found by bisection: codes are increasing functions of ``x``.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from fullgrad._core.fast import fast
from fullgrad._core.neighbors import bits_of, number_of, rounded
from fullgrad._core.opmath import HALF
from fullgrad._core.windows import where_between
from fullgrad.quantizers._arguments import compute_dtype
from fullgrad.quantizers._arithmetic import reciprocal_number
from fullgrad.quantizers._fake_quantize import FakeQuantize
from fullgrad.quantizers._integers import Grid, pass_in_range

_NUMBERS = {int, float}


@fast(FakeQuantize.forward)
def _value(x: Tensor, *inputs: Any) -> Any:
    grid = Grid(*inputs)
    if not (
        grid.scale.__class__ is float
        and grid.zero_point.__class__ is int
        and grid.round_zero_point
        and grid.rounding == "half_even"
        and x.is_cpu
        and x.dtype not in HALF
    ):
        return NotImplemented
    # A clamp of r + z, less z, is a clamp of r between other bounds. Adding 0 turns -0.0 into 0.0.
    y = x * reciprocal_number(grid.scale, x.dtype) if grid.reciprocal else x / grid.scale
    y.round_().clamp_(grid.quant_min - grid.zero_point, grid.quant_max - grid.zero_point)
    return torch.add(y.new_zeros(()), y, alpha=grid.scale, out=y)


@fast(pass_in_range, recorded=True)
def _pass_in_range(g: Tensor, x: Tensor, *inputs: Any) -> Any:
    grid = Grid(*inputs)
    if not (
        grid.scale.__class__ is float
        and grid.quant_min.__class__ is grid.quant_max.__class__ is int
        and grid.zero_point.__class__ in _NUMBERS
        and (grid.rounding == "half_even" or grid.inside == "exact")
    ):
        return NotImplemented
    return where_between(g, x, *_ends_of_grid(x.dtype, grid._replace(noise=None)))


@functools.lru_cache(maxsize=1024)
def _ends_of_grid(dtype: torch.dtype, grid: Grid) -> tuple[float, float]:
    """The first and the last number of ``dtype`` in the range, in the arithmetic of the value."""
    computed = compute_dtype(dtype)
    # For float32 operands, one operation in double precision, rounded, is the float32 result.
    to = functools.partial(rounded, dtype=computed)
    inverse, scale = reciprocal_number(grid.scale, computed), to(grid.scale)

    def code(x: float) -> float:
        v = to(x * inverse) if grid.reciprocal else to(x / scale)
        if grid.inside == "exact" or math.isinf(v):
            return to(v + grid.zero_point)
        return to(round(v) + grid.zero_point) if grid.round_zero_point else _round(to(v + grid.zero_point))

    return first_and_last(dtype, code, grid.quant_min, grid.quant_max)


def _round(v: float) -> float:
    return v if math.isinf(v) else cast("float", round(v))


def first_and_last(dtype: torch.dtype, function: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """The first number of a dtype with ``low <= function`` and the last with ``function <= high``, for an increasing function.

    Bisection over all finite numbers, without tensors.
    """
    beyond = bits_of(torch.finfo(dtype).max, dtype)[0] + 1

    def value(n: int) -> float:
        return math.copysign(number_of(abs(n), dtype), n)

    def first(reached: Callable[[float], bool]) -> int:
        below, above = -beyond, beyond
        while above - below > 1:
            middle = (below + above) // 2
            below, above = (below, middle) if reached(function(value(middle))) else (middle, above)
        return above

    return value(first(lambda y: y >= low)), value(first(lambda y: y > high) - 1)
