"""`dorefa_gradient`: the gradient on an even grid, rounded at random."""

from typing import Any

import torch
from torch import Generator, Tensor

from fullgrad._core import checks
from fullgrad._core.batching import aligned
from fullgrad._core.function import alias, is_identity
from fullgrad._core.noise import noise_for
from fullgrad._core.opmath import to_opmath
from fullgrad._core.shards import greatest
from fullgrad.clamping._clamp import Clamp
from fullgrad.gradients._cotangent_map import CotangentMap, per_sample
from fullgrad.gradients._magnitude import Dim, behind_batch, dims_of
from fullgrad.quantizers import _arguments
from fullgrad.rounding._round import Round


def dorefa_gradient(
    x: Tensor, bits: int, *, dim: Dim = None, noise: Tensor | None = None, generator: Generator | None = None
) -> Tensor:
    r"""The input itself, whose gradient is quantized to a number of bits, with noise.

    .. math::
        y = x, \qquad \mathrm{vjp}(g) = 2 m \Bigl(\frac1n \operatorname{round}\Bigl(n \operatorname{clamp}\Bigl(
        \frac{g}{2 m} + \frac12 + \frac{u - 1/2}{n},\, 0,\, 1\Bigr)\Bigr) - \frac12\Bigr), \qquad \mathrm{jvp}(t) = t

    for :math:`m = \max |g|` over ``dim``, :math:`n = 2^b - 1` and noise *u* in [0, 1). A gradient of zeros stays. The map is not
    linear, so ``jvp`` is not its adjoint but the identity; double backward differentiates it with a straight-through rounding.
    The noise is drawn with the value, and under ``vmap`` obeys ``randomness``. Saved: the noise.

    Args:
        x: Any shape; floating, or integer (without a gradient).
        bits: A positive integer, up to 24.
        dim: The dimensions that share a maximum, an int or several; None for all. The paper has all but the batch.
        noise: A floating tensor of the shape of ``x``, in [0, 1); None to draw it.
        generator: Draws the noise if none is given.

    Returns:
        ``x`` as a view.

    Raises:
        TypeError: ``x`` is not a real tensor, or ``bits`` or ``dim`` is not an integer.
        ValueError: ``x`` is empty, ``bits`` is out of its range, or ``noise`` has another shape.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch
        >>> from fullgrad import quantizers
        >>> x = torch.tensor([0.3, -3.0, 1.2])
        >>> f = lambda x: (quantizers.dorefa_gradient(x, 2, noise=torch.full((3,), 0.5)) ** 2 / 2).sum()
        >>> torch.func.grad(f)(x)
        tensor([ 1.0000, -3.0000,  1.0000])

    Source: Zhou et al., https://arxiv.org/abs/1606.06160.
    """
    x = _arguments.floating_input("dorefa_gradient", "x", x)
    checks.not_empty("dorefa_gradient", "x", x)
    bits = checks.positive_integer("dorefa_gradient", "bits", bits, 24)
    if dim is not None:
        checks.dim("dorefa_gradient", dim, x.ndim)
        dim = dims_of(dim, x.ndim)
    return DorefaGradient.apply(x, bits, dim, noise_for("dorefa_gradient", x, noise, generator).detach())


class DorefaGradient(CotangentMap):
    """The operator of :func:`dorefa_gradient`."""

    @staticmethod
    @is_identity
    def forward(x: Tensor, bits: int, dim: Dim, noise: Tensor) -> Tensor:
        return alias(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.bits, ctx.dim, noise = inputs
        ctx.save_for_backward(noise)

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None]:
        (noise,) = ctx.saved_tensors
        (wide,) = to_opmath(g)
        n = 2.0**ctx.bits - 1
        m = greatest(wide.abs(), dims_of(ctx.dim, g.ndim)) if g.ndim else wide.abs()
        # Twice the largest number overflows.
        ratio = wide / torch.where(m == 0, 1, m) * 0.5 + 0.5 + (noise.to(wide.dtype) - 0.5) / n
        code = Round.apply(Clamp.apply(ratio, 0.0, 1.0) * n)
        return (m * (2 * (code / n - 0.5))).to(g.dtype), None, None, None

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        in_dims, (x, bits, dim, noise) = per_sample(info, in_dims, args)
        x, noise = aligned((in_dims[0], in_dims[3]), (x, noise))
        return cls.apply(x, bits, behind_batch(dim, x.ndim), noise), 0
