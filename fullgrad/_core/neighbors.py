"""The floating-point neighbors of a number in a dtype, by bit arithmetic without tensors, which is safe while torch traces."""

import functools
import math
import struct

import torch

# The struct codes of a number and of its bits. bfloat16 is the upper half of a float32.
_LAYOUT = {
    torch.float64: ("<d", "<Q"),
    torch.float32: ("<f", "<I"),
    torch.float16: ("<e", "<H"),
    torch.bfloat16: ("<f", "<I"),
}

# The dtypes whose neighbors are known.
DTYPES = frozenset(_LAYOUT)

# Its product with 1.0 is 0 in a thread that treats subnormal numbers as 0 (`torch.set_flush_denormal`); a name, so that Python
# does not fold the product away.
SMALLEST = 5e-324


@functools.lru_cache(maxsize=1024)
def neighbor(value: float, dtype: torch.dtype, up: bool) -> float:
    """The next number of ``dtype`` above or below ``value``, which is first rounded to ``dtype`` as torch rounds a scalar."""
    bits, width = bits_of(value, dtype)
    sign = 1 << (width - 1)
    if bits in (0, sign):
        return number_of(1 if up else sign | 1, dtype)
    number = number_of(bits, dtype)
    if math.isnan(number) or (math.isinf(number) and (number > 0) == up):
        return number
    return number_of(bits + 1 if (number > 0) == up else bits - 1, dtype)


def rounded(value: float, dtype: torch.dtype) -> float:
    """``value`` rounded to ``dtype`` as torch rounds a scalar."""
    return number_of(bits_of(value, dtype)[0], dtype)


def bits_of(value: float, dtype: torch.dtype) -> tuple[int, int]:
    """The bits of ``value`` rounded to ``dtype``, as torch does it: by way of float32 for the dtypes of 16 bits."""
    if dtype is torch.float64:
        return _rounded(value, dtype), 64
    bits = _rounded(value, torch.float32)
    if dtype is torch.float32:
        return bits, 32
    if dtype is torch.bfloat16:
        return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 & 0xFFFF, 16
    return _rounded(number_of(bits, torch.float32), dtype), 16


def _rounded(value: float, dtype: torch.dtype) -> int:
    """The bits of ``value`` rounded by Python; infinity where Python raises an OverflowError."""
    number, integer = _LAYOUT[dtype]
    try:
        packed = struct.pack(number, value)
    except OverflowError:
        packed = struct.pack(number, math.copysign(math.inf, value))
    return struct.unpack(integer, packed)[0]


def number_of(bits: int, dtype: torch.dtype) -> float:
    """The number with some bits."""
    number, integer = _LAYOUT[dtype]
    if dtype is torch.bfloat16:
        bits <<= 16
    return struct.unpack(number, struct.pack(integer, bits))[0]
