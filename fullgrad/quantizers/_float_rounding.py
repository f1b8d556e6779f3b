"""Rounding to the numbers of a float format."""

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from fullgrad._core.neighbors import neighbor
from fullgrad._dispatch import can_view_bits
from fullgrad.quantizers._formats import Spec
from fullgrad.rounding._modes import round_to_integer


class _Layout(NamedTuple):
    """The parts of a number in memory."""

    integer: torch.dtype
    mantissa_bits: int
    bias: int
    exponent_mask: int
    mantissa_mask: int


_LAYOUTS = {
    torch.float32: _Layout(torch.int32, 23, 127, 0x7F800000, 0x007FFFFF),
    torch.float64: _Layout(torch.int64, 52, 1023, 0x7FF0000000000000, 0x000FFFFFFFFFFFFF),
}


def exponent(x: Tensor, digits: int | None = None) -> Tensor:
    """The exponents: one below the smallest normal one for subnormal numbers and 0, 128 or 1024 for infinity and NaN.

    With ``digits``, half a unit of a mantissa of that many bits is first added to the numbers, which are positive.
    """
    layout = _LAYOUTS[x.dtype]
    if not can_view_bits():
        mantissa, e = torch.frexp(x)  # the mantissa below 1
        e = e - 1 if digits is None else e - (mantissa < 1 - 2.0 ** -(digits + 2)).to(e.dtype)
        e = torch.where(x == 0, -layout.bias, e.clamp(min=-layout.bias))
        return torch.where(x.isfinite(), e, layout.bias + 1)
    bits = x.view(layout.integer)
    field = (bits if digits is None else bits + (1 << (layout.mantissa_bits - digits - 1))) & layout.exponent_mask
    return (field >> layout.mantissa_bits) - layout.bias


def has_fraction(x: Tensor) -> Tensor:
    """Whether a normal number is not a power of two: 0 or 1."""
    layout = _LAYOUTS[x.dtype]
    if not can_view_bits():
        return (torch.frexp(x).mantissa.abs() != 0.5).to(layout.integer)
    return ((x.view(layout.integer) & layout.mantissa_mask) != 0).to(layout.integer)


def power_of_two(k: Tensor, dtype: torch.dtype) -> Tensor:
    """2^k for integers k that are exponents of normal numbers."""
    layout = _LAYOUTS[dtype]
    if not can_view_bits():
        # Exact, unlike torch.exp2, and without large constants, which torch.jit confuses beyond 2^128.
        size, y = k.abs(), torch.ones_like(k, dtype=dtype)
        factor = y + 1
        for i in range(10):
            y, factor = torch.where((size >> i) & 1 == 1, y * factor, y), factor * factor
        return torch.where(k < 0, 1 / y, y)
    return ((k.to(layout.integer) + layout.bias) << layout.mantissa_bits).view(dtype)


def times_power_of_two(x: Tensor, k: Tensor) -> Tensor:
    """``x * 2^k`` for any k that two factors can make, where a single factor would over- or underflow."""
    half = k >> 1
    return x * power_of_two(half, x.dtype) * power_of_two(k - half, x.dtype)


def round_to_format(v: Tensor, spec: Spec, saturate: bool, rounding: str, noise: Tensor | None = None) -> Tensor:
    """``v`` in float32 or float64, rounded to the numbers of a format; NaN stays."""
    saturate = saturate or spec.kind == "finite"
    layout = _LAYOUTS[v.dtype]
    in_reach = spec.max_exponent + 1 - spec.mantissa_bits + layout.mantissa_bits <= layout.bias
    if rounding == "half_even" and in_reach and spec.subnormals and can_view_bits():
        q = _round_by_addition(v, spec, saturate)
    else:
        q = _round_by_steps(v, spec, rounding, noise)
        if saturate:
            q = torch.clamp(q, -spec.max, spec.max)
    if not saturate:
        if rounding in _TOWARD_ZERO:
            q = torch.where(v.isinf(), v, torch.clamp(q, *[side * spec.max for side in _TOWARD_ZERO[rounding]]))
        beyond = math.inf if spec.kind == "ieee" else math.nan
        q = torch.where(q.abs() > spec.max, torch.copysign(q.new_full((), beyond), v), q)
    # The format has no -0.0; adding 0 turns it into 0.0.
    return q + 0.0 if spec.kind == "fnuz" else q


# Rounding toward zero ends at the largest number: the bounds of its results, as multiples of that number.
_TOWARD_ZERO = {"trunc": (-1.0, 1.0), "floor": (-math.inf, 1.0), "ceil": (-1.0, math.inf)}


def _round_by_addition(v: Tensor, spec: Spec, saturate: bool) -> Tensor:
    """Round half to even: in the sum with 3/2 of the power of two whose last digit is the step, the adder rounds to the step.

    The sum and the difference are otherwise exact. The exponent of a NaN wraps, which does no harm.
    """
    layout = _LAYOUTS[v.dtype]
    # The grid continues for one binade beyond the range, where every number is too large.
    most = spec.max if saturate else math.ldexp(1.0, spec.max_exponent + 1)
    y = torch.clamp(v, -most, most)
    shift = ((layout.mantissa_bits - spec.mantissa_bits) << layout.mantissa_bits) | (1 << (layout.mantissa_bits - 1))
    least = ((spec.min_exponent + layout.bias) << layout.mantissa_bits) + shift
    bits = torch.clamp((y.view(layout.integer) & layout.exponent_mask) + shift, min=least)
    c = bits.view(v.dtype)
    return torch.copysign(y + c - c, y)


def _round_by_steps(v: Tensor, spec: Spec, rounding: str, noise: Tensor | None) -> Tensor:
    """Round in units of the step of the binade, by any mode; the grid continues beyond the largest number.

    Without subnormal numbers, the step below the smallest normal number is that number.
    """
    e = exponent(v)
    k = spec.mantissa_bits - e.clamp(min=spec.min_exponent)
    if not spec.subnormals:
        k = torch.where(e < spec.min_exponent, -spec.min_exponent, k)
    return times_power_of_two(round_to_integer(times_power_of_two(v, k), rounding, noise), -k)


@functools.lru_cache(maxsize=1024)
def last_inside(spec: Spec, rounding: str, dtype: torch.dtype) -> tuple[float, float]:
    """The first and the last number of a dtype that are rounded to a number of the format, and not beyond it."""
    half_stays = {
        "half_even": (_is_even(spec),) * 2,
        "half_away": (False, False),
        "half_zero": (True, True),
        "half_up": (True, False),
        "half_down": (False, True),
        "dpu": (True, _is_even(spec)),
    }
    to_next = {"floor": (False, True), "ceil": (True, False), "trunc": (True, True), "away": (False, False)}
    ends: list[float] = []
    for side in (0, 1):
        if rounding in to_next:
            reach, included = (spec.step, False) if to_next[rounding][side] else (0.0, True)
        else:
            reach, included = spec.step / 2, half_stays[rounding][side]
        ends.append(_at_most(spec.max + reach, included, dtype))
    return -ends[0], ends[1]


def _is_even(spec: Spec) -> bool:
    return int(spec.max / spec.step) % 2 == 0


def _at_most(bound: float, included: bool, dtype: torch.dtype) -> float:
    """The last number of a dtype up to a bound, or before the bound, which is a number of the dtype or infinite in it."""
    largest = torch.finfo(dtype).max
    if bound > largest:
        return largest
    return bound if included else neighbor(bound, dtype, False)
