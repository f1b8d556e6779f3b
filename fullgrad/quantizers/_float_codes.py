"""`float_codes`: the bits of `float_quantize`."""

import torch
from torch import Generator, Tensor

from fullgrad._core.bits import exponent, times_power_of_two
from fullgrad._core.opmath import divided
from fullgrad._core.pieces import pointwise
from fullgrad._core.shards import reshaped
from fullgrad._dispatch import number_or_tensor
from fullgrad.quantizers import _arguments
from fullgrad.quantizers._arguments import Parameter, expanded
from fullgrad.quantizers._arithmetic import to_compute
from fullgrad.quantizers._codes import IntegerOperator
from fullgrad.quantizers._float_rounding import round_to_format
from fullgrad.quantizers._formats import FloatFormat, Spec, format_of, spec_of


def float_codes(
    x: Tensor,
    format: FloatFormat | str | torch.dtype,
    scale: Parameter | None = None,
    *,
    saturate: bool = True,
    rounding: str = "half_even",
    noise: Tensor | None = None,
    generator: Generator | None = None,
) -> Tensor:
    r"""The bits of the numbers of a float format that :func:`float_quantize` computes, as integers; without a derivative.

    .. math::
        c = \sigma\,2^{E + M} + (k - k_0)\,2^M + n \quad\text{for}\quad \operatorname{round}(x / s) = (-1)^\sigma\,2^{k - M} n,
        \qquad k \ge k_0, \quad n < 2^{M + 1}

    for *E* bits of exponent, *M* of mantissa, and the exponent :math:`k_0` of the smallest normal number: sign, exponent and
    mantissa, from the highest bit to the lowest. Where the format is one of torch's, ``float_codes(x, format).view(format)`` has
    the numbers of ``float_quantize(x, format)``. Infinity and NaN have the codes of the format; NaN has all bits of the exponent
    and the mantissa, and the sign of the number, and in formats of kind ``"fnuz"`` the sign alone. A format of numbers alone has
    no NaN, which becomes 0. Nothing is saved.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        format: A :class:`FloatFormat`, the name of one, or a dtype of torch, as in :func:`float_quantize`.
        scale: Positive: a number; or a tensor that broadcasts to ``x``, or has one number per block, as in :func:`fake_quantize`;
            None for 1.
        saturate: Whether results beyond the largest number become the largest.
        rounding: A mode of :func:`fullgrad.round`, or ``"stochastic"``.
        noise: For ``rounding="stochastic"``, a floating tensor of the shape of ``x``, in [0, 1); None to draw it.
        generator: Draws the noise if none is given.

    Returns:
        A tensor of the shape of ``x``: uint8 for a format of up to 8 bits, else int16, int32 or int64, whose highest bit is the
        sign if the format has as many bits.

    Raises:
        TypeError: ``x`` or ``scale`` is not real, or ``format`` is not a format.
        ValueError: A name is unknown, the format does not fit the dtype of ``x``, ``scale`` is a number that is not positive and
            finite or has another shape, or unused noise is given.

    Example:
        >>> import torch
        >>> from fullgrad import quantizers
        >>> found = quantizers.float_codes(torch.tensor([1.0, -5.1, 464.0]), torch.float8_e4m3fn)
        >>> found
        tensor([ 56, 202, 126], dtype=torch.uint8)
        >>> found.view(torch.float8_e4m3fn).float()
        tensor([  1.,  -5., 448.])

    Source: the bits are those of torch and ml_dtypes.
    """
    x = _arguments.floating_input("float_codes", "x", x).detach()
    found = format_of("float_codes", "format", format, x.dtype)
    noise = _arguments.rounding_noise("float_codes", x, rounding, noise, generator)
    if scale is not None:
        _arguments.check_scale("float_codes", "scale", scale, x.dtype)
    if isinstance(scale, Tensor):
        scale = scale.detach()
    elif scale is not None:
        scale = number_or_tensor(scale, _arguments.compute_dtype(x.dtype), x.device)
    split, (scale,) = _arguments.in_blocks("float_codes", x, None, {"scale": scale})
    options = (found.code, found.bits, bool(saturate), rounding)
    if split is None:
        return FloatCodes.apply(x, scale, *options, noise)
    noise = None if noise is None else reshaped(noise, split)
    return reshaped(FloatCodes.apply(reshaped(x, split), scale, *options, noise), x.shape)


class FloatCodes(IntegerOperator):
    """The operator of :func:`float_codes`."""

    @staticmethod
    @pointwise
    def forward(
        x: Tensor, scale: Parameter | None, format: str, bits: int, saturate: bool, rounding: str, noise: Tensor | None
    ) -> Tensor:
        spec = spec_of(format)
        x, scale = to_compute(expanded(x, scale, noise), scale)
        q = round_to_format(x if scale is None else divided(x, scale), spec, saturate, rounding, noise)
        dtype = torch.uint8 if bits <= 8 else torch.int16 if bits <= 16 else torch.int32 if bits <= 32 else torch.int64
        # An integer with as many bits as the format has its sign in the highest, which counts negatively.
        sign = -(2 ** (bits - 1)) if bits in (16, 32, 64) else 2 ** (bits - 1)
        return _bits(q, spec, 2 ** (bits - 1) - 1, sign).to(dtype)


def _bits(q: Tensor, spec: Spec, most: int, sign: int) -> Tensor:
    """The code of numbers of a format, for the largest code without a sign and the value of the sign."""
    finite = torch.where(q.isfinite(), q.abs(), 0)
    k = exponent(finite).clamp(min=spec.min_exponent)
    n = times_power_of_two(finite, spec.mantissa_bits - k).long()
    code = ((k - spec.min_exponent).long() << spec.mantissa_bits) + n
    code = torch.where(q.isinf(), most - (1 << spec.mantissa_bits) + 1, code)
    if spec.kind == "fnuz":
        return torch.where(q.isnan(), sign, torch.where(torch.signbit(q), code + sign, code))
    code = torch.where(q.isnan(), 0 if spec.kind == "finite" else most, code)
    signed = torch.signbit(q) & ~q.isnan() if spec.kind == "finite" else torch.signbit(q)
    return torch.where(signed, code + sign, code)
