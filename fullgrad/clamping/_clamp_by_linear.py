"""`clamp_by_linear`: the range of a tensor mapped to [0, 1)."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.function import Function
from fullgrad._core.pieces import pointwise
from fullgrad._core.shards import extremes


def clamp_by_linear(x: Tensor, eps: float = 1e-5) -> Tensor:
    r"""Map the range of ``x`` linearly to :math:`[0, 1)`.

    .. math::
        y_i = \frac{x_i - m}{R}, \quad R = M - m + \varepsilon, \quad m = \min x, \quad M = \max x, \qquad
        \mathrm{d}y_i = \frac{\mathrm{d}x_i - (1 - y_i)\,\mathrm{d}m - y_i\,\mathrm{d}M}{R}

    over the whole tensor, and per sample under ``vmap``. This is the true derivative; elements tied for the minimum or the
    maximum share it equally, and derivatives of every order follow. Half precision is computed in float32. Where spikingjelly
    loses ``eps`` to rounding and gives NaN (constant input of 300 in float32, of 1 in float16), this gives 0. The range may
    exceed the largest number of the dtype. NaN or infinite ``x`` gives NaN. Saved: ``x`` alone.

    Args:
        x: Any shape with at least one element; floating, or integer (which gives the default dtype).
        eps: A positive number in the units of ``x``, which keeps the denominator from 0.

    Returns:
        A tensor of the shape of ``x``.

    Raises:
        TypeError: ``x`` is not a real tensor.
        ValueError: ``x`` is empty, or ``eps`` is not positive and finite.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.clamp_by_linear(torch.tensor([1.0, 2.0, 5.0]))
        tensor([0.0000, 0.2500, 1.0000])
        >>> torch.func.vmap(fullgrad.clamp_by_linear)(torch.tensor([[1.0, 3.0], [300.0, 300.0]]))
        tensor([[0.0000, 1.0000],
                [0.0000, 0.0000]])

    Source: ``spikingjelly.activation_based.quantize.clamp_by_linear``.
    """
    checks.real_tensor("clamp_by_linear", "x", x)
    checks.not_empty("clamp_by_linear", "x", x)
    checks.positive_number("clamp_by_linear", "eps", eps)
    return ClampByLinear.apply(x, eps)


class ClampByLinear(Function):
    """The operator of :func:`clamp_by_linear`. The first ``batch_dims`` dimensions of ``x`` count samples."""

    @staticmethod
    def forward(x: Tensor, eps: float = 1e-5, batch_dims: int = 0) -> Tensor:
        s = _Sample(x, eps, batch_dims)
        return s.y.to(x.dtype) if x.is_floating_point() else s.y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float, int], output: Tensor) -> None:
        x, ctx.eps, ctx.batch_dims = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        s = _Sample(x, ctx.eps, ctx.batch_dims)
        h = g.to(s.x.dtype) * 0.5 / s.half_range
        hy = h * s.y
        h = h - s.weight_in(s.minimum) * s.sum(h - hy) - s.weight_in(s.maximum) * s.sum(hy)
        return h.to(x.dtype), None, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, *_: None) -> Tensor:
        (x,) = ctx.saved_tensors
        s = _Sample(x, ctx.eps, ctx.batch_dims)
        h = t.to(s.x.dtype) * 0.5 / s.half_range
        h_low, h_high = s.sum(h * s.weight_in(s.minimum)), s.sum(h * s.weight_in(s.maximum))
        return (h - h_low - s.y * (h_high - h_low)).to(x.dtype)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None, None], x: Tensor, eps: float, batch_dims: int) -> tuple[Tensor, int]:
        x = x.movedim(in_dims[0], 0)
        if x.ndim == batch_dims + 1:  # a sample is one number
            return ClampByLinear.apply(x.unsqueeze(-1), eps, batch_dims + 1).squeeze(-1), 0
        return ClampByLinear.apply(x, eps, batch_dims + 1), 0


@pointwise
def _rescaled(x: Tensor, low: Tensor, half_range: Tensor) -> Tensor:
    return (x * 0.5 - low) / half_range


class _Sample:
    """The quantities of the formula for every sample, in float32 at least and halved.

    Halving is exact, and differences of halves do not overflow. eps is added to the difference of the extremes, not to the
    maximum, where rounding could lose it.
    """

    def __init__(self, x: Tensor, eps: float, batch_dims: int) -> None:
        self.x = x.to(torch.promote_types(x.dtype, torch.float32) if x.is_floating_point() else torch.get_default_dtype())
        self.dims = tuple(range(batch_dims, x.ndim))
        self.minimum, self.maximum = extremes(self.x, self.dims)
        self.low = self.minimum * 0.5
        self.half_range = (self.maximum * 0.5 - self.low) + eps * 0.5

    @property
    def y(self) -> Tensor:
        """The value."""
        return _rescaled(self.x, self.low, self.half_range)

    def weight_in(self, extreme: Tensor) -> Tensor:
        """The weight of each element in the derivative of the minimum or the maximum: ties share it."""
        tied = (self.x == extreme).to(self.x.dtype)  # a quotient of integers has the default dtype
        return tied / self.sum(tied)

    def sum(self, values: Tensor) -> Tensor:
        """The sum over each sample."""
        return values.sum(self.dims, keepdim=True)
