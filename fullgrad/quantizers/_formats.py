"""`FloatFormat`: a float format, and the named formats."""

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullgrad.quantizers._arguments import integer

KINDS = ("ieee", "fn", "fnuz", "finite")


@dataclass(frozen=True)
class FloatFormat:
    r"""A float format: a sign, an exponent and a mantissa.

    .. math::
        \pm 2^{k - M} n, \qquad k \ge 1 - bias, \quad 0 \le n < 2^{M + 1}

    for integers *k* and *n*, up to the largest number.

    Args:
        exponent_bits: From 1 to 11.
        mantissa_bits: *M*, from 0 to 52, without the leading bit.
        bias: The bias of the exponent, an integer; None for :math:`2^{e - 1} - 1`.
        kind: The meaning of the codes with the largest exponent: ``"ieee"``, infinities and NaN; ``"fn"``, numbers, the last of
            them NaN; ``"fnuz"``, numbers, where the code of -0 is NaN, so that there is no -0; ``"finite"``, numbers.
        subnormals: Whether there are numbers below the smallest normal one, besides 0.

    Raises:
        TypeError: A number of bits or the bias is not an integer.
        ValueError: A number is out of its range, or ``kind`` is unknown.

    Example:
        >>> from fullgrad.quantizers import FloatFormat
        >>> small = FloatFormat(2, 1, kind="finite")
        >>> small.max, small.min_normal, small.min_subnormal, small.bits
        (6.0, 1.0, 0.5, 4)
        >>> small.numbers()
        tensor([-6.0000, -4.0000, -3.0000, -2.0000, -1.5000, -1.0000, -0.5000,  0.0000,
                 0.5000,  1.0000,  1.5000,  2.0000,  3.0000,  4.0000,  6.0000])
    """

    exponent_bits: int
    mantissa_bits: int
    bias: int | None = None
    kind: str = "ieee"
    subnormals: bool = True

    def __post_init__(self) -> None:
        e, m = (integer("FloatFormat", key, getattr(self, key)) for key in ("exponent_bits", "mantissa_bits"))
        if not 1 <= e <= 11:
            raise ValueError(f"FloatFormat: `exponent_bits` must be from 1 to 11, got {e}.")
        if not 0 <= m <= 52:
            raise ValueError(f"FloatFormat: `mantissa_bits` must be from 0 to 52, got {m}.")
        if self.kind not in KINDS:
            raise ValueError(f"FloatFormat: `kind` must be one of {', '.join(map(repr, KINDS))}, got {self.kind!r}.")
        if self.bias is None:
            object.__setattr__(self, "bias", 2 ** (e - 1) - 1)
        integer("FloatFormat", "bias", self.bias)
        exponents = self._max_exponent, self._min_exponent - m
        if exponents[0] > 1023 or exponents[1] < -1074 or (self.kind == "ieee" and e == 1) or (self.kind == "fn" and e + m == 1):
            raise ValueError(f"FloatFormat: the numbers must be numbers of float64, and some must be positive, got {self}.")

    @property
    def _max_exponent(self) -> int:
        """The exponent of the largest number."""
        last = 2**self.exponent_bits - 1 - (self.kind == "ieee" or (self.kind == "fn" and self.mantissa_bits == 0))
        return last - (self.bias or 0)

    @property
    def _min_exponent(self) -> int:
        """The exponent of the smallest normal number."""
        return 1 - (self.bias or 0)

    @property
    def max(self) -> float:
        """The largest number."""
        lost = 2 if self.kind == "fn" and self.mantissa_bits else 1
        return math.ldexp(2.0 - lost * 2.0**-self.mantissa_bits, self._max_exponent)

    @property
    def min_normal(self) -> float:
        """The smallest positive normal number."""
        return math.ldexp(1.0, self._min_exponent)

    @property
    def min_subnormal(self) -> float:
        """The smallest positive number."""
        return math.ldexp(1.0, self._min_exponent - self.mantissa_bits) if self.subnormals else self.min_normal

    @property
    def bits(self) -> int:
        """The number of bits of a code."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def code(self) -> str:
        """The parameters of the format as one string, which a compiled operator takes."""
        return f"{self._min_exponent} {self.mantissa_bits} {self._max_exponent} {self.kind} {int(self.subnormals)}"

    def numbers(self) -> Tensor:
        """All finite numbers, in order, each once: a codebook, in float32 if it has them, else in float64."""
        if self.bits > 20:
            raise ValueError(f"FloatFormat.numbers: a format of {self.bits} bits has too many numbers.")
        scale, step = 2**self.mantissa_bits, math.ldexp(1.0, self._min_exponent - self.mantissa_bits)
        positive = [n * step for n in range(scale)] if self.subnormals else [0.0]
        for exponent in range(self._min_exponent, self._max_exponent + 1):
            positive += [math.ldexp(scale + n, exponent - self.mantissa_bits) for n in range(scale)]
        positive = [n for n in positive if n <= self.max]
        dtype = torch.float32 if _fits(self, torch.float32) else torch.float64
        return torch.tensor([-n for n in positive[:0:-1]] + positive, dtype=dtype)


NAMED = {
    "float8_e4m3fn": FloatFormat(4, 3, 7, "fn"),
    "float8_e5m2": FloatFormat(5, 2, 15, "ieee"),
    "float8_e4m3fnuz": FloatFormat(4, 3, 8, "fnuz"),
    "float8_e5m2fnuz": FloatFormat(5, 2, 16, "fnuz"),
    "float8_e4m3": FloatFormat(4, 3, 7, "ieee"),
    "float8_e3m4": FloatFormat(3, 4, 3, "ieee"),
    "float8_e4m3b11fnuz": FloatFormat(4, 3, 11, "fnuz"),
    "float6_e2m3fn": FloatFormat(2, 3, 1, "finite"),
    "float6_e3m2fn": FloatFormat(3, 2, 3, "finite"),
    "float4_e2m1fn": FloatFormat(2, 1, 1, "finite"),
    "bfloat16": FloatFormat(8, 7, 127, "ieee"),
    "float16": FloatFormat(5, 10, 15, "ieee"),
}

# The smallest positive number, the largest, and the bits of the mantissa of each dtype of x; float64 has no bounds.
_DTYPES = {
    torch.float16: (2.0**-24, 65504.0, 10),
    torch.bfloat16: (2.0**-133, (2.0 - 2.0**-7) * 2.0**127, 7),
    torch.float32: (2.0**-149, (2.0 - 2.0**-23) * 2.0**127, 23),
    torch.float64: (0.0, math.inf, 52),
}


def _fits(format: FloatFormat, dtype: torch.dtype) -> bool:
    smallest, largest, digits = _DTYPES[dtype]
    return format.mantissa_bits <= digits and format.max <= largest and format.min_subnormal >= smallest


def format_of(name: str, argument: str, value: Any, dtype: torch.dtype) -> FloatFormat:
    """The `FloatFormat` of a format, its name or its torch dtype, whose numbers must be numbers of ``dtype``."""
    if isinstance(value, torch.dtype):
        value = str(value).removeprefix("torch.")
    if isinstance(value, str):
        if value not in NAMED:
            raise ValueError(f"{name}: `{argument}` must be a FloatFormat or one of {', '.join(NAMED)}, got {value!r}.")
        value = NAMED[value]
    elif not isinstance(value, FloatFormat):
        raise TypeError(
            f"{name}: `{argument}` must be a FloatFormat, a name or a dtype, got a value of type {type(value).__name__}."
        )
    if not _fits(value, dtype):
        raise ValueError(f"{name}: the numbers of `{argument}` must be numbers of the dtype {dtype} of x, got {value}.")
    return value


class Spec(NamedTuple):
    """The parameters of a format that the arithmetic needs."""

    min_exponent: int
    mantissa_bits: int
    max_exponent: int
    kind: str
    subnormals: bool
    max: float

    @property
    def step(self) -> float:
        """The distance between the largest numbers."""
        return math.ldexp(1.0, self.max_exponent - self.mantissa_bits)


@functools.lru_cache(maxsize=256)
def spec_of(code: str) -> Spec:
    """The `Spec` of a format's ``code``."""
    low, digits, high, kind, subnormals = code.split()
    lost = 2 if kind == "fn" and int(digits) else 1
    largest = math.ldexp(2.0 - lost * 2.0 ** -int(digits), int(high))
    return Spec(int(low), int(digits), int(high), kind, subnormals == "1", largest)
