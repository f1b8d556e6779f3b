"""`mx_quantize`: blocks that share a power of two."""

from typing import Any

import torch
from torch import Generator, Tensor

from fullgrad._core import checks
from fullgrad._core.bits import exponent, has_fraction, power_of_two
from fullgrad._core.elementwise import Elementwise
from fullgrad._core.opmath import HALF
from fullgrad.quantizers import _arguments
from fullgrad.quantizers._blocks import behind_batch, blocks_of, check_blocks
from fullgrad.quantizers._float_rounding import round_to_format
from fullgrad.quantizers._formats import NAMED, spec_of
from fullgrad.rounding._modes import round_to_integer

# The elements in the specification, with the exponent of the largest number and the bits of the mantissa.
ELEMENTS = {
    "float8_e4m3fn": (8, 3),
    "float8_e5m2": (15, 2),
    "float6_e2m3fn": (2, 3),
    "float6_e3m2fn": (4, 2),
    "float4_e2m1fn": (2, 1),
    "int8": (0, 6),
}
SCALE_ROUNDINGS = ("floor", "ceil", "even", "rceil")


def mx_quantize(
    x: Tensor,
    element: str = "float8_e4m3fn",
    *,
    block_size: int = 32,
    dim: int = -1,
    scale_rounding: str = "floor",
    rounding: str = "half_even",
    noise: Tensor | None = None,
    generator: Generator | None = None,
) -> Tensor:
    r"""Quantize to the formats of the OCP microscaling specification: blocks of elements that share a power of two as scale.

    .. math::
        A = \max |x| \text{ of the block}, \qquad s = 2^{\operatorname{clamp}(e,\, -127,\, 127)}, \qquad
        y = s\, \operatorname{round}(x / s), \qquad D_x = 1

    for the exponent *e* of ``scale_rounding``, with the exponent *E* and the value of the element's largest number, *M* bits of
    mantissa, and :math:`\lfloor \log_2 \cdot \rfloor` of exact arithmetic:

    * ``"floor"``: :math:`\lfloor \log_2 A \rfloor - E`;
    * ``"ceil"``: :math:`\lceil \log_2 A \rceil - E`;
    * ``"even"``: :math:`\lfloor \log_2 A' \rfloor - E`, for *A* with half a unit of an *M*-bit mantissa added;
    * ``"rceil"``: :math:`\lceil \log_2 (A / \mathit{max}) \rceil`.

    Elements beyond the largest number become the largest. Integers are :math:`\operatorname{clamp}(\operatorname{round}(64 v),
    -128, 127) / 64`. A NaN makes its block NaN; an infinity leaves itself and zeros. Higher derivatives are 0. Nothing is saved.

    Args:
        x: At least one dimension; floating, or integer (which gives the default dtype).
        element: ``"float8_e4m3fn"``, ``"float8_e5m2"``, ``"float6_e2m3fn"``, ``"float6_e3m2fn"``, ``"float4_e2m1fn"`` or
            ``"int8"``.
        block_size: How many elements along ``dim`` are a block; it divides that dimension.
        dim: The dimension of the blocks.
        scale_rounding: How the scale is found, as above.
        rounding: How elements are rounded: a mode of :func:`fullgrad.round`, or ``"stochastic"``.
        noise: For ``rounding="stochastic"``, a floating tensor of the shape of ``x``, in [0, 1); None to draw it.
        generator: Draws the noise if none is given.

    Returns:
        A tensor of the shape and dtype of ``x``.

    Raises:
        TypeError: ``x`` is not real, or ``block_size`` or ``dim`` is not an integer.
        ValueError: A name is unknown, ``block_size`` does not divide the dimension, or unused noise is given.
        IndexError: ``x`` has no dimension ``dim``.

    Example:
        >>> import torch
        >>> from fullgrad import quantizers
        >>> x = torch.tensor([[0.3, 1.0, -7.0, 2.2], [0.01, 0.02, 0.03, 0.05]])
        >>> quantizers.mx_quantize(x, "float4_e2m1fn", block_size=4)
        tensor([[ 0.5000,  1.0000, -6.0000,  2.0000],
                [ 0.0117,  0.0234,  0.0312,  0.0469]])

    Source: OCP Microscaling Formats, version 1.0; ``torchao.prototype.mx_formats.mx_tensor.MXTensor.to_mx``.
    """
    x = _arguments.floating_input("mx_quantize", "x", x)
    checks.choice("mx_quantize", "element", element, ELEMENTS)
    checks.choice("mx_quantize", "scale_rounding", scale_rounding, SCALE_ROUNDINGS)
    block_size, dim = check_blocks("mx_quantize", x, block_size, dim)
    noise = _arguments.rounding_noise("mx_quantize", x, rounding, noise, generator)
    return MxQuantize.apply(x, element, block_size, dim, scale_rounding, rounding, noise)


class MxQuantize(Elementwise):
    """The operator of :func:`mx_quantize`. ``dim`` counts from the back."""

    whole_dims = "dim"

    reads = {0: (), 6: ()}

    @staticmethod
    def forward(
        x: Tensor, element: str, block_size: int, dim: int, scale_rounding: str, rounding: str, noise: Tensor | None
    ) -> Tensor:
        x = _arguments.expanded(x, noise)
        wide = x.float() if x.dtype in HALF else x
        blocks, d = blocks_of(wide, block_size, dim)
        largest = blocks.abs().amax(d, keepdim=True)
        e = _exponent(largest, element, scale_rounding)
        half = e >> 1
        # Two powers of two: a single one may be subnormal, which some devices flush to 0. The scale of a block with NaN is NaN.
        first, second = (power_of_two(k, wide.dtype) for k in (half, e - half))
        v = blocks * (1 / first) * (1 / second)
        noise = None if noise is None else noise.reshape(v.shape)
        if element == "int8":
            q = torch.clamp(round_to_integer(v * 64.0, rounding, noise), -128, 127) * (1 / 64)
        else:
            q = round_to_format(v, spec_of(NAMED[element].code), True, rounding, noise)
        y = q * torch.where(largest.isnan(), largest, first) * second
        return y.reshape(x.shape).to(x.dtype)

    @staticmethod
    def vjp_term(i: int, v: Tensor, *inputs: Any) -> Tensor | None:
        return v if i == 0 else None

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        return behind_batch(cls, in_dims, args)


def _exponent(largest: Tensor, element: str, scale_rounding: str) -> Tensor:
    """The exponent of the scale of each block, an integer.

    For an infinity it is beyond all others, so that finite elements become 0 and the infinity is restored.
    """
    most, digits = ELEMENTS[element]
    bound = 250 if largest.dtype == torch.float32 else 1100
    beyond = torch.isinf(largest)
    if scale_rounding == "rceil":
        of_largest = 127 / 64 if element == "int8" else NAMED[element].max
        e = _log2(largest / of_largest, "ceil", digits)
    else:
        e = _log2(largest, scale_rounding, digits) - most
    return torch.where(beyond, bound, e.clamp(-127, 127))


def _log2(x: Tensor, rounding: str, digits: int) -> Tensor:
    """The exact logarithm, rounded to an integer, from the bits. Numbers near the subnormal ones are first scaled up."""
    tiny = x < 2.0**-64
    x = torch.where(tiny, x * 2.0**64, x)
    e = exponent(x, digits if rounding == "even" else None)
    if rounding == "ceil":
        e = e + has_fraction(x)
    return torch.where(tiny, e - 64, e)
