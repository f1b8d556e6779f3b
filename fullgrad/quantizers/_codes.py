"""`codes`: the integers of `fake_quantize`."""

from typing import Any

import torch
from torch import Generator, Tensor

from fullgrad._core.batching import elementwise
from fullgrad._core.function import Function
from fullgrad._core.pieces import pointwise
from fullgrad.quantizers import _arguments
from fullgrad.quantizers._arguments import Parameter
from fullgrad.quantizers._fake_quantize import checked_zero_point, quantized
from fullgrad.quantizers._integers import Grid, code, quotient


def codes(
    x: Tensor,
    scale: Parameter,
    zero_point: Parameter = 0,
    quant_min: int = -128,
    quant_max: int = 127,
    *,
    dim: int | None = None,
    rounding: str = "half_even",
    reciprocal: bool = True,
    round_zero_point: bool = True,
    noise: Tensor | None = None,
    generator: Generator | None = None,
) -> Tensor:
    r"""The integers that :func:`fake_quantize` computes, for storage and for integer kernels; without a derivative.

    .. math::
        q = \operatorname{clamp}(\operatorname{round}(x / s) + z,\, l,\, h)

    ``(codes(x, s, z).to(x.dtype) - z) * s`` is ``fake_quantize(x, s, z)`` bit for bit, in float32 for half precision, with *z*
    rounded and clamped as in :func:`fake_quantize`; differences of small integers would wrap around. NaN has no integer and
    becomes ``quant_min``, as in torch. The result has no derivative, as with :func:`torch.argmax`. Nothing is saved.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        scale: As in :func:`fake_quantize`: a number or a tensor, of one number per tensor, channel, group or block.
        zero_point: The code of 0, as in :func:`fake_quantize`.
        quant_min: The smallest code, an integer.
        quant_max: The largest, an integer.
        dim: The dimension of parameters with one number for each of its indices.
        rounding: A mode of :func:`fullgrad.round`, or ``"stochastic"``.
        reciprocal: Whether ``x`` is multiplied by ``1 / scale`` or divided by ``scale``.
        round_zero_point: Whether the zero point is rounded and clamped first.
        noise: For ``rounding="stochastic"``, a floating tensor of the shape of ``x``, in [0, 1); None to draw it.
        generator: Draws the noise if none is given.

    Returns:
        A tensor of the shape of ``x``, in the first of uint8, int8, int16, int32 and int64 that has both bounds.

    Raises:
        TypeError: ``x``, ``scale`` or ``zero_point`` is not real, or a bound or ``dim`` not an integer.
        ValueError: A number or a name is out of its range, a parameter has another shape, or unused noise is given.
        IndexError: ``x`` has no dimension ``dim``.

    Example:
        >>> import torch
        >>> from fullgrad import quantizers
        >>> x = torch.tensor([-1.0, 0.3, 0.8, 9.0])
        >>> quantizers.codes(x, 0.5, 0, *quantizers.quant_range(4))
        tensor([-2,  1,  2,  7], dtype=torch.int8)
        >>> quantizers.codes(x, 0.5, 0, *quantizers.quant_range(4)) * 0.5
        tensor([-1.0000,  0.5000,  1.0000,  3.5000])

    Source: :func:`torch.quantize_per_tensor`, which divides; the operator ``QuantizeLinear`` of ONNX.
    """
    x = _arguments.floating_input("codes", "x", x).detach()
    _arguments.check_scale("codes", "scale", scale, x.dtype, reciprocal)
    quant_min, quant_max = _arguments.check_range("codes", quant_min, quant_max, x.dtype)
    zero_point = checked_zero_point("codes", zero_point, quant_min, quant_max, round_zero_point)
    noise = _arguments.rounding_noise("codes", x, rounding, noise, generator)
    scale, zero_point = (p.detach() if isinstance(p, Tensor) else p for p in (scale, zero_point))
    options = ("all", rounding, bool(reciprocal), bool(round_zero_point), noise)
    return quantized("codes", x, Grid(scale, zero_point, quant_min, quant_max, *options), dim, Codes.apply)


def smallest_dtype(low: int, high: int) -> torch.dtype:
    """The first integer dtype that has two numbers."""
    return next(d for d in _INTEGERS if torch.iinfo(d).min <= low and high <= torch.iinfo(d).max)


_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class IntegerOperator(Function):
    """An operator that treats every element alike, with integers as value and no derivative."""

    whole_dims = 0

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vjp(ctx: Any, g: Any) -> Any:
        return None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> None:
        return None

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int | None]:
        return elementwise(cls, in_dims, args)


class Codes(IntegerOperator):
    """The operator of :func:`codes`."""

    @staticmethod
    @pointwise
    def forward(
        x: Tensor,
        scale: Parameter,
        zero_point: Parameter,
        quant_min: int,
        quant_max: int,
        inside: str,
        rounding: str,
        reciprocal: bool,
        round_zero_point: bool,
        noise: Tensor | None,
    ) -> Tensor:
        grid = Grid(scale, zero_point, quant_min, quant_max, inside, rounding, reciprocal, round_zero_point, noise)
        v, z, _ = quotient(x, grid)
        r = code(v, z, grid)
        return torch.where(r.isnan(), quant_min, torch.clamp(r, quant_min, quant_max)).to(smallest_dtype(quant_min, quant_max))
