"""`spike_rate_escape`."""

import math
from typing import Any

import torch
from torch import Tensor

from fullgrad.spikes._arguments import Parameter, checked_step
from fullgrad.spikes._formulas import exp, expm1, one_less_exp
from fullgrad.spikes._surrogate import Step


def spike_rate_escape(
    v: Tensor,
    beta: Parameter = 1.0,
    slope: Parameter = 25.0,
    threshold: Parameter = 0.0,
    grad_scale: Parameter = 1.0,
    tie: float = 1.0,
) -> Tensor:
    r"""A spike with the slope of an escape rate, largest at a distance of 1.

    .. math::
        u = v - t, \qquad y = [\,u \ge 0\,], \qquad b = \beta (u - 1), \qquad d(u) = k e^{-|b|},
        \qquad R(u) = \frac{k}{\beta} \bigl(E(b) - E(-\beta)\bigr), \qquad
        E(b) = e^b \text{ for } b \le 0, \text{ else } 2 - e^{-b}

    with :math:`\partial R / \partial k = R / k` and :math:`\partial R / \partial \beta = (k / \beta^2) (G(b) - G(-\beta))`,
    where :math:`G(b) = (b - 1) e^b` for :math:`b \le 0`, else :math:`(1 + b) e^{-b} - 2`. The peak is at 1, as in snntorch,
    although its neurons subtract the threshold before.

    Args:
        v: The membrane potential, any shape; floating, or integer (which gives the default dtype).
        beta: How fast the slope falls, positive: a number, or a tensor that broadcasts with ``v`` and gets its own gradient.
        slope: The largest slope, positive, a number or a tensor.
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
        >>> torch.func.vmap(torch.func.grad(fullgrad.spikes.spike_rate_escape))(v)
        tensor([ 3.3834,  9.1970, 15.1633])

    Source: ``snntorch.surrogate.spike_rate_escape`` (with ``tie=0.0``).
    """
    v = checked_step("spike_rate_escape", v, threshold, grad_scale, tie, {"beta": beta, "slope": slope})
    return SpikeRateEscape.apply(v, beta, slope, threshold, grad_scale, tie)


class SpikeRateEscape(Step):
    """The operator of :func:`spike_rate_escape`."""

    parameters = ("beta", "slope")

    @staticmethod
    def slope_times(v: Tensor, u: Tensor, beta: Any, slope: Any) -> Tensor:
        return v * torch.exp((u - 1).abs() * -beta) * slope

    @classmethod
    def rise(cls, u: Tensor, beta: Any, slope: Any) -> Tensor:
        return cls.rise_by(1, u, beta, slope) * slope

    @staticmethod
    def rise_by(i: int, u: Tensor, beta: Any, slope: Any) -> Tensor:
        # Integrals from 0 to u, without a difference of numbers that are nearly equal.
        below, above = torch.clamp(u, max=1), torch.clamp(u - 1, min=0)
        up, down = torch.clamp(below, min=0), torch.clamp(below, max=0)
        if i == 1:  # of exp(-beta |s - 1|)
            grown = torch.exp((up - 1) * beta) * one_less_exp(up * beta)
            rise = torch.where(u >= 0, grown, -exp(-beta) * one_less_exp(-down * beta))
            return torch.where(u <= 1, rise, one_less_exp(above * beta) - expm1(-beta)) / beta
        # Of -|s - 1| exp(-beta |s - 1|), where |s - 1| is its smallest value and a rest.
        grown = -torch.exp((up - 1) * beta) * ((1 - up) * one_less_exp(up * beta) / beta + _moment(up, beta))
        rise = torch.where(u >= 0, grown, exp(-beta) * (one_less_exp(-down * beta) / beta + _moment(-down, beta)))
        return torch.where(u <= 1, rise, -_moment(above, beta) - _moment(torch.ones_like(u), beta)) * slope


# The series of the moment at 0, which has enough terms for float64 up to 1/2.
_SERIES = [(k + 1) / math.factorial(k + 2) for k in range(14)]


def _moment(t: Tensor, beta: Any) -> Tensor:
    """The integral of s exp(-beta s) from 0 to t, which is nonnegative."""
    y = torch.clamp(t * beta, max=1e4)
    small = y < 0.5
    z = torch.where(small, y, 0)
    series = torch.zeros_like(z)
    for c in reversed(_SERIES):
        series = c - z * series
    w, of_w, t = torch.where(small, 1, y), torch.where(small, 1, beta), torch.where(small, t, 0)
    return torch.where(small, t * t * series, (1 - (1 + w) * torch.exp(-w)) / of_w / of_w)
