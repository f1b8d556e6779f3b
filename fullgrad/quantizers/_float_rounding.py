"""Rounding to the numbers of a float format."""

import functools
import math

import torch
from torch import Tensor

from fullgrad._core.bits import digits, exponent, rounded_to_digits, times_power_of_two
from fullgrad._core.neighbors import neighbor
from fullgrad.quantizers._formats import Spec
from fullgrad.rounding._modes import round_to_integer


def round_to_format(v: Tensor, spec: Spec, saturate: bool, rounding: str, noise: Tensor | None = None) -> Tensor:
    """``v`` in float32 or float64, rounded to the numbers of a format; NaN stays."""
    saturate = saturate or spec.kind == "finite"
    mantissa_bits, max_exponent = digits(v.dtype)
    in_reach = spec.max_exponent + 1 - spec.mantissa_bits + mantissa_bits <= max_exponent
    if rounding == "half_even" and in_reach and spec.subnormals:
        # The grid continues for one binade beyond the range, where every number is too large.
        most = spec.max if saturate else math.ldexp(1.0, spec.max_exponent + 1)
        q = rounded_to_digits(torch.clamp(v, -most, most), spec.mantissa_bits, spec.min_exponent)
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
