"""`sparse_fast_sigmoid`."""

import functools
from typing import Any

import torch
from torch import Tensor

from fullgrad._core.windows import where_inside
from fullgrad.spikes._arguments import Parameter, check_window, checked_step
from fullgrad.spikes._fast_sigmoid import FastSigmoid
from fullgrad.spikes._surrogate import Step


def sparse_fast_sigmoid(
    v: Tensor,
    slope: Parameter = 25.0,
    low: float = -1.0,
    high: float = 1.0,
    threshold: Parameter = 0.0,
    grad_scale: Parameter = 1.0,
    tie: float = 1.0,
) -> Tensor:
    r"""A spike with the slope of a fast sigmoid within a window.

    .. math::
        u = v - t, \qquad y = [\,u \ge 0\,], \qquad d(u) = \frac{[\,l < u < h\,]}{(1 + k |u|)^2},
        \qquad R(u) = F(\bar u) - F(\bar 0), \quad F(u) = \frac{u}{1 + k |u|}

    with a bar for :math:`\operatorname{clamp}(\cdot, l, h)`. The slope is 0 at the ends of the window. snntorch's ``SFS(k, B)``
    keeps the slope above B, ``sparse_fast_sigmoid(v, k, low=B, high=math.inf, tie=0.0)``.

    Args:
        v: The membrane potential, any shape; floating, or integer (which gives the default dtype).
        slope: How fast the slope falls, positive: a number, or a tensor that broadcasts with ``v`` and gets its own gradient.
        low: The distance from the threshold up to which the slope is 0, a number.
        high: The distance from which on it is 0, a number.
        threshold: The position of the step: a number or a tensor, in the unit of ``v``.
        grad_scale: A factor of the slope, a number or a tensor.
        tie: The value at the threshold: 1.0, 0.0 or 0.5.

    Returns:
        A tensor of the broadcast shape, of the dtype of ``v - threshold``.

    Raises:
        TypeError: ``v`` is not a real tensor, or another argument is neither a real tensor nor a number.
        ValueError: ``slope`` is a number that is not positive, the window is empty, or ``tie`` has another value.

    Example:
        >>> import torch, fullgrad
        >>> v = torch.tensor([-1.0, 0.0, 0.5])
        >>> torch.func.vmap(torch.func.grad(fullgrad.spikes.sparse_fast_sigmoid))(v)
        tensor([0.0000, 1.0000, 0.0055])

    Source: ``snntorch.surrogate.SFS``; https://arxiv.org/abs/2105.08810.
    """
    check_window("sparse_fast_sigmoid", low, high)
    v = checked_step("sparse_fast_sigmoid", v, threshold, grad_scale, tie, {"slope": slope})
    return SparseFastSigmoid.apply(v, slope, low, high, threshold, grad_scale, tie)


class SparseFastSigmoid(Step):
    """The operator of :func:`sparse_fast_sigmoid`."""

    in_pieces = "half"
    parameters = ("slope", "low", "high")
    constants = ("low", "high")

    @staticmethod
    def slope_times(v: Tensor, u: Tensor, slope: Any, low: float, high: float) -> Tensor:
        return where_inside(FastSigmoid.slope_times(v, u, slope), u, low, high)

    @classmethod
    def rise(cls, u: Tensor, slope: Any, low: float, high: float) -> Tensor:
        return cls._rise(FastSigmoid.rise, u, slope, low, high)

    @classmethod
    def rise_by(cls, i: int, u: Tensor, slope: Any, low: float, high: float) -> Tensor:
        return cls._rise(functools.partial(FastSigmoid.rise_by, 0), u, slope, low, high)

    @staticmethod
    def _rise(part: Any, u: Tensor, slope: Any, low: float, high: float) -> Tensor:
        return part(torch.clamp(u, low, high), slope) - part(torch.clamp(u.new_zeros(()), low, high), slope)
