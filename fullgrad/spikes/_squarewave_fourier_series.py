"""`squarewave_fourier_series`."""

import functools
import math
from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._dispatch import surely
from fullgrad.spikes._arguments import Parameter, checked_step
from fullgrad.spikes._surrogate import Step


def squarewave_fourier_series(
    v: Tensor, terms: int = 1, period: Parameter = 8.0, threshold: Parameter = 0.0, grad_scale: Parameter = 1.0, tie: float = 1.0
) -> Tensor:
    r"""A spike with the slope of a square wave's Fourier series.

    .. math::
        u = v - t, \qquad y = [\,u \ge 0\,], \qquad d(u) = \frac4T \sum_{i<n} \cos\frac{2 \pi (2i+1) u}{T},
        \qquad R(u) = \frac2\pi \sum_{i<n} \frac{1}{2i+1} \sin\frac{2 \pi (2i+1) u}{T}, \qquad
        \frac{\partial R}{\partial T} = -\frac{u}{T} d(u)

    Smooth. The slope is NaN at infinity, which has no phase. spikingjelly's ``n`` is one more than the number of terms that it
    adds.

    Args:
        v: The membrane potential, any shape; floating, or integer (which gives the default dtype).
        terms: The number of terms, a positive integer.
        period: The period of the wave, positive: a number, or a tensor that broadcasts with ``v`` and gets its own gradient.
        threshold: The position of the step: a number or a tensor, in the unit of ``v``.
        grad_scale: A factor of the slope, a number or a tensor.
        tie: The value at the threshold: 1.0, 0.0 or 0.5.

    Returns:
        A tensor of the broadcast shape, of the dtype of ``v - threshold``.

    Raises:
        TypeError: ``v`` is not a real tensor, or another argument is neither a real tensor nor a number.
        ValueError: A parameter is a number out of its range, or ``tie`` has another value.

    Example:
        >>> import torch, fullgrad
        >>> v = torch.tensor([-1.0, 0.0, 0.5])
        >>> torch.func.vmap(torch.func.grad(fullgrad.spikes.squarewave_fourier_series))(v)
        tensor([0.3536, 0.5000, 0.4619])

    Source: ``spikingjelly.activation_based.surrogate.SquarewaveFourierSeries``.
    """
    terms = checks.positive_integer("squarewave_fourier_series", "terms", terms, 1000)
    v = checked_step("squarewave_fourier_series", v, threshold, grad_scale, tie, {"period": period})
    return SquarewaveFourierSeries.apply(v, terms, period, threshold, grad_scale, tie)


class SquarewaveFourierSeries(Step):
    """The operator of :func:`squarewave_fourier_series`."""

    parameters = ("terms", "period")
    constants = ("terms",)

    @staticmethod
    def bounded(u: Tensor, terms: int, period: Any) -> Tensor:
        return u

    @classmethod
    def slope(cls, u: Tensor, terms: int, period: Any) -> Tensor:
        return cls._sum(torch.cos, False, u, terms, period) * (4 / period)

    @classmethod
    def rise(cls, u: Tensor, terms: int, period: Any) -> Tensor:
        return cls._sum(torch.sin, True, u, terms, period) * (2 / math.pi)

    @classmethod
    def rise_by(cls, i: int, u: Tensor, terms: int, period: Any) -> Tensor:
        return cls.slope(u, terms, period) * u / -period

    @staticmethod
    def _phase(u: Tensor, terms: int, period: Any) -> Tensor:
        if not isinstance(period, Tensor) and surely((2 * terms - 1) * 2 * math.pi <= period):  # no product overflows
            return u * (2 * math.pi / period)
        x = u / period
        return (x - torch.round(x)) * (2 * math.pi)  # from -pi to pi, as long as there is a phase

    @classmethod
    def _sum(cls, wave: Any, weighted: bool, u: Tensor, terms: int, period: Any) -> Tensor:
        x = cls._phase(u, terms, period)
        waves = [wave(x * k) * (1 / k if weighted else 1) for k in range(2 * terms - 1, 0, -2)]
        return functools.reduce(torch.add, waves)
