"""`float_quantize_bwd`: the gradient in a float format."""

from typing import Any

import torch
from torch import Generator, Tensor

from fullgrad._core.batching import aligned
from fullgrad._core.function import alias, is_identity
from fullgrad.gradients._cotangent_map import CotangentMap, per_sample
from fullgrad.quantizers import _arguments
from fullgrad.quantizers._float_quantize import FloatQuantize
from fullgrad.quantizers._formats import FloatFormat, format_of


def float_quantize_bwd(
    x: Tensor,
    format: FloatFormat | str | torch.dtype,
    *,
    rounding: str = "half_even",
    noise: Tensor | None = None,
    generator: Generator | None = None,
) -> Tensor:
    r"""The input itself, whose gradient is rounded to the numbers of a float format.

    .. math::
        y = x, \qquad \mathrm{vjp}(g) = \operatorname{round}(g), \qquad \mathrm{jvp}(t) = t

    Gradients beyond the largest number become the largest. The map is not linear, so ``jvp`` is not its adjoint but the identity;
    double backward differentiates it as straight-through: as 1. Saved: the noise, if there is some.

    Args:
        x: Any shape; floating, or integer (without a gradient).
        format: The format, as in :func:`float_quantize`. Its numbers must be numbers of the dtype of ``x``.
        rounding: A mode of :func:`fullgrad.round`, or ``"stochastic"``.
        noise: For ``rounding="stochastic"``, a floating tensor of the shape of ``x``, in [0, 1); None to draw it, with the value.
        generator: Draws the noise if none is given.

    Returns:
        ``x`` as a view.

    Raises:
        TypeError: ``x`` is not a real tensor, or ``format`` is not a format.
        ValueError: A name is unknown, the format does not fit the dtype of ``x``, or unused noise is given.

    Example:
        >>> import torch
        >>> from fullgrad import quantizers
        >>> x = torch.tensor([5.1, 3000.0])
        >>> torch.func.grad(lambda x: (quantizers.float_quantize_bwd(x, "float8_e4m3fn") ** 2 / 2).sum())(x)
        tensor([  5., 448.])

    Source: ``unit_scaling.formats.FPFormat.quantise_bwd``.
    """
    x = _arguments.floating_input("float_quantize_bwd", "x", x)
    code = format_of("float_quantize_bwd", "format", format, x.dtype).code
    noise = _arguments.rounding_noise("float_quantize_bwd", x, rounding, noise, generator)
    return FloatQuantizeBwd.apply(x, code, rounding, noise)


class FloatQuantizeBwd(CotangentMap):
    """The operator of :func:`float_quantize_bwd`."""

    whole_dims = 0

    @staticmethod
    @is_identity
    def forward(x: Tensor, format: str, rounding: str, noise: Tensor | None) -> Tensor:
        return alias(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.format, ctx.rounding, noise = inputs
        ctx.save_for_backward(noise)

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None]:
        (noise,) = ctx.saved_tensors
        return FloatQuantize.apply(g, None, ctx.format, True, "all", ctx.rounding, noise), None, None, None

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        in_dims, (x, format, rounding, noise) = per_sample(info, in_dims, args)
        x, noise = aligned((in_dims[0], in_dims[3]), (x, noise))
        return cls.apply(x, format, rounding, noise), 0
