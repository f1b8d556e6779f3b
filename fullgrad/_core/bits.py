"""The parts of floating numbers: exponents and fractions, exactly.

They are read from the bits, or by `torch.frexp` where torch has no view of them. Numbers are float32 or float64.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fullgrad._dispatch import can_view_bits


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


def digits(dtype: torch.dtype) -> tuple[int, int]:
    """The number of bits of the mantissa, and the largest exponent."""
    return _LAYOUTS[dtype].mantissa_bits, _LAYOUTS[dtype].bias


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


def rounded_to_digits(x: Tensor, digits: int, min_exponent: int) -> Tensor:
    """``x`` with ``digits`` bits of mantissa, half to even; below ``2^min_exponent`` in the steps of that number's.

    In the sum with 3/2 of the power of two whose last digit is the step, the adder rounds to the step; the sum and the difference
    are otherwise exact. That power must be a normal number.
    """
    layout = _LAYOUTS[x.dtype]
    shift = layout.mantissa_bits - digits
    if not can_view_bits():
        c = 1.5 * power_of_two(exponent(x).clamp(min=min_exponent) + shift, x.dtype)
    else:
        # A sum of bits is a product. The exponent of a NaN wraps, which does no harm.
        factor = (shift << layout.mantissa_bits) | (1 << (layout.mantissa_bits - 1))
        least = ((min_exponent + layout.bias) << layout.mantissa_bits) + factor
        c = torch.clamp((x.view(layout.integer) & layout.exponent_mask) + factor, min=least).view(x.dtype)
    return torch.copysign(x + c - c, x)
