"""`float_quantize`: round to the numbers of a float format, times a scale that learns."""

from typing import Any

import torch
from torch import Generator, Tensor

from fullgrad._core import checks
from fullgrad._core.elementwise import Elementwise
from fullgrad._core.opmath import cast, divided
from fullgrad._core.pieces import pointwise
from fullgrad._core.shards import reshaped
from fullgrad._core.windows import where_between
from fullgrad._dispatch import number_or_tensor
from fullgrad.quantizers import _arguments
from fullgrad.quantizers._arguments import Inside, Parameter, expanded
from fullgrad.quantizers._arithmetic import to_compute
from fullgrad.quantizers._float_rounding import last_inside, round_to_format
from fullgrad.quantizers._formats import FloatFormat, Spec, format_of, spec_of


def float_quantize(
    x: Tensor,
    format: FloatFormat | str | torch.dtype,
    scale: Parameter | None = None,
    *,
    saturate: bool = True,
    inside: Inside = "rounded",
    rounding: str = "half_even",
    noise: Tensor | None = None,
    generator: Generator | None = None,
) -> Tensor:
    r"""Round to the numbers of a float format, times a scale: fp8, fp6, fp4 and any other, in the dtype of ``x``.

    .. math::
        v = x / s, \quad q = \operatorname{round}(v), \quad y = q s, \qquad D_x = m, \quad D_s = q - m v

    for the mask *m* of ``inside``: 1 in the range, else 0. Steps are those of the binade of *v*, down to that of the smallest
    normal number; without subnormal numbers that number itself is the step below it. Results beyond the largest number,
    infinities too, become the largest; with ``saturate=False`` infinite, or NaN if the format has no infinity, except for finite
    numbers that ``"trunc"``, ``"floor"`` or ``"ceil"`` rounds toward zero. NaN stays NaN, even if the format has none. Zeros keep
    their sign if the format has -0. Higher derivatives are 0.

    Half precision is computed in float32 and rounded once. The gradient has the dtype of ``x`` and, unlike that of a cast, is
    never rounded to the format. Saved: ``x``, and a tensor ``scale``; the noise, if there is some; nothing for ``inside="all"``
    without a tensor as scale.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        format: A :class:`FloatFormat`; or the name of one, such as ``"float8_e4m3fn"``; or a dtype of torch. Its numbers must be
            numbers of the dtype of ``x``.
        scale: Positive: a number; or a tensor that broadcasts to ``x``, or has one number per block, as in :func:`fake_quantize`;
            None for 1.
        saturate: Whether results beyond the largest number become the largest. A format of numbers alone always saturates.
        inside: Where the gradient passes: ``"rounded"``, where the rounded number is in the range; ``"exact"``, where ``x /
            scale`` is; ``"all"``, everywhere.
        rounding: A mode of :func:`fullgrad.round`, or ``"stochastic"``.
        noise: For ``rounding="stochastic"``, a floating tensor of the shape of ``x``, in [0, 1); None to draw it.
        generator: Draws the noise if none is given.

    Returns:
        A tensor of the shape and dtype of ``x``.

    Raises:
        TypeError: ``x`` or ``scale`` is not real, or ``format`` is not a format.
        ValueError: A name is unknown, the format does not fit the dtype of ``x``, ``scale`` is a number that is not positive and
            finite or has another shape, or unused noise is given.

    Example:
        >>> import torch
        >>> from fullgrad import quantizers
        >>> x = torch.tensor([-5.1, 17.0, 464.0, 1000.0], requires_grad=True)
        >>> y = quantizers.float_quantize(x, "float8_e4m3fn")
        >>> y.detach()
        tensor([ -5.,  16., 448., 448.])
        >>> torch.autograd.grad(y.sum(), x)
        (tensor([1., 1., 1., 0.]),)

    Source: Micikevicius et al., FP8 formats, https://arxiv.org/abs/2209.05433; the numbers are those of ml_dtypes and gfloat.
    """
    x = _arguments.floating_input("float_quantize", "x", x)
    code = format_of("float_quantize", "format", format, x.dtype).code
    checks.choice("float_quantize", "inside", inside, _arguments.INSIDE)
    noise = _arguments.rounding_noise("float_quantize", x, rounding, noise, generator)
    if not isinstance(scale, Tensor):
        if scale is not None:
            _arguments.check_scale("float_quantize", "scale", scale, x.dtype)
            scale = number_or_tensor(scale, _arguments.compute_dtype(x.dtype), x.device)
        return FloatQuantize.apply(x, scale, code, bool(saturate), inside, rounding, noise)
    _arguments.check_scale("float_quantize", "scale", scale, x.dtype)
    split, (scale,) = _arguments.in_blocks("float_quantize", x, None, {"scale": scale})
    if split is None:
        return FloatQuantize.apply(x, scale, code, bool(saturate), inside, rounding, noise)
    noise = None if noise is None else reshaped(noise, split)
    return reshaped(FloatQuantize.apply(reshaped(x, split), scale, code, bool(saturate), inside, rounding, noise), x.shape)


class FloatQuantize(Elementwise):
    """The operator of :func:`float_quantize`."""

    in_pieces = True

    @staticmethod
    def reads(x: Tensor, scale: Parameter | None, format: str, saturate: bool, inside: str, *_: Any) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return {0: () if inside == "all" else (0, 1, 6), 1: (0, 1, 6), 6: ()}

    @staticmethod
    def forward(
        x: Tensor, scale: Parameter | None, format: str, saturate: bool, inside: str, rounding: str, noise: Tensor | None
    ) -> Tensor:
        return cast(_value(x, scale, spec_of(format), saturate, rounding, noise), x.dtype)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Any, scale: Any, *options: Any) -> Tensor | None:
        if i == 0:
            return v if options[2] == "all" else pass_in_range(v, x, scale, *options)
        if i == 1:
            x, v, scale = to_compute(x, v, scale)
            return v * FloatQuantizeResidual.apply(x, scale, *options)
        return None


class FloatQuantizeResidual(Elementwise):
    """:math:`D_s = q - m v`, which has no derivative."""

    reads = {0: (), 1: (), 6: ()}

    @staticmethod
    def forward(
        x: Tensor, scale: Parameter, format: str, saturate: bool, inside: str, rounding: str, noise: Tensor | None
    ) -> Tensor:
        return _residual(x, scale, format, saturate, inside, rounding, noise)

    @staticmethod
    def vjp_term(i: int, v: Tensor, *inputs: Any) -> Tensor | None:
        return None


@pointwise(opmath=True)
def _value(x: Tensor, scale: Any, spec: Spec, saturate: bool, rounding: str, noise: Tensor | None) -> Tensor:
    x, scale = to_compute(expanded(x, scale, noise), scale)
    q = round_to_format(x if scale is None else divided(x, scale), spec, saturate, rounding, noise)
    return q if scale is None else q * scale


@pointwise
def _residual(x: Tensor, scale: Any, format: str, saturate: bool, inside: str, rounding: str, noise: Tensor | None) -> Tensor:
    """:math:`D_s` in the dtype of the computation."""
    v = divided(expanded(x, scale, noise), scale)
    q = round_to_format(v, spec_of(format), saturate, rounding, noise)
    return q - (v if inside == "all" else _pass_quotient(v, v, format, inside, rounding, noise))


@pointwise(opmath=True)
def pass_in_range(
    g: Tensor, x: Tensor, scale: Any, format: str, saturate: bool, inside: str, rounding: str, noise: Tensor | None
) -> Tensor:
    """``g`` where the quotient is in the range, else 0."""
    x, scale = to_compute(*[t.detach() if isinstance(t, Tensor) else t for t in (x, scale)])
    return _pass_quotient(g, x if scale is None else divided(x, scale), format, inside, rounding, noise)


def _pass_quotient(g: Tensor, v: Tensor, format: str, inside: str, rounding: str, noise: Tensor | None) -> Tensor:
    """``g`` where a quotient is in the range, else 0."""
    spec = spec_of(format)
    if inside == "exact" or rounding != "stochastic":
        return where_between(g, v, *ends(spec, inside, rounding, v.dtype))
    assert noise is not None
    beyond = (v.abs() - spec.max) / spec.step  # in the last binade and the next exact, above it 1 or more
    return torch.where(noise >= beyond, g, 0)


def ends(spec: Spec, inside: str, rounding: str, dtype: torch.dtype) -> tuple[float, float]:
    """The first and the last quotient in the range."""
    return (-spec.max, spec.max) if inside == "exact" else last_inside(spec, rounding, dtype)
