"""`periodic_exponential`."""

from typing import Any

import torch
from torch import Tensor

from fullgrad.spikes._arguments import Parameter, checked_count
from fullgrad.spikes._formulas import exp, expm1
from fullgrad.spikes._surrogate import Surrogate
from fullgrad.spikes._values import count, expanded


def periodic_exponential(
    v: Tensor, threshold: Parameter = 1.0, width: Parameter = 0.5, max_spikes: int | None = None, grad_scale: Parameter = 1.0
) -> Tensor:
    r"""The number of times the threshold is reached at once, with a slope that has a peak at every multiple of it.

    .. math::
        y &= \operatorname{clamp}\bigl(\lfloor v / t \rfloor, 0, n\bigr), \qquad v < t: \quad D_v = s e^m,
        \quad m = (v - t) / w; \\
        & \text{else} \quad D_v = s e^{-q}, \quad q = 2 |r| / w, \quad r = v - k t,
        \quad k = \max(1, \operatorname{round}(v / t))

    With :math:`A = t / w` the other partial derivatives are, below the threshold, :math:`D_t = -s e^m`,
    :math:`D_w = s (e^m - 1 - m e^m)` and :math:`D_s = w (e^m - 1)`; else

    .. math::
        D_t &= s \bigl((k - 1) e^{-A} - k e^{-q}\bigr), \\
        D_w &= s \bigl((k - 1) (1 - e^{-A} (1 + A)) + \tfrac12 \operatorname{sign}(r) (1 - e^{-q} (1 + q))\bigr), \\
        D_s &= (k - 1) w (1 - e^{-A}) + \tfrac12 \operatorname{sign}(r) w (1 - e^{-q})

    As in sinabs, the slope falls twice as fast above the threshold as below. The slope is NaN at plus infinity, which has no
    phase. Half precision is computed in float32 and rounded once; a number as threshold is first rounded to the dtype of ``v``.
    Saved: the tensors among the arguments.

    Args:
        v: The membrane potential, any shape; floating, or integer (which gives the default dtype).
        threshold: Positive: a number, or a tensor that broadcasts with ``v`` and gets its own gradient.
        width: The width of the peaks, positive, in the unit of ``v``, a number or a tensor.
        max_spikes: The largest count, a positive integer; None for any.
        grad_scale: A factor of the slope, a number or a tensor.

    Returns:
        A tensor of the broadcast shape, of the dtype of ``v / threshold``.

    Raises:
        TypeError: ``v`` is not a real tensor, or another argument is neither a real tensor nor a number.
        ValueError: A parameter is a number out of its range.

    Example:
        >>> import torch, fullgrad
        >>> v = torch.tensor([0.5, 1.0, 1.75])
        >>> torch.func.vmap(torch.func.grad(fullgrad.spikes.periodic_exponential))(v)
        tensor([0.3679, 1.0000, 0.3679])

    Source: ``sinabs.activation.PeriodicExponential``; https://arxiv.org/abs/1906.09395.
    """
    v, max_spikes = checked_count("periodic_exponential", v, max_spikes, grad_scale, {"threshold": threshold, "width": width})
    return PeriodicExponential.apply(v, threshold, width, max_spikes, grad_scale)


class PeriodicExponential(Surrogate):
    """The operator of :func:`periodic_exponential`."""

    reads = dict.fromkeys((0, 1, 2, 4), (0, 1, 2, 4))
    threshold_at = 1

    @staticmethod
    def forward(v: Tensor, threshold: Parameter, width: Parameter, max_spikes: int | None, grad_scale: Parameter) -> Tensor:
        return expanded(count(v, threshold, max_spikes), width, grad_scale)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Tensor, threshold: Any, width: Any, max_spikes: Any, grad_scale: Any) -> Tensor:
        k = torch.clamp(torch.round(x / threshold), min=1)
        r, below = x - k * threshold, x < threshold
        # The distance counts once below the threshold, else twice. Each side is 0 where the other holds; exp(0) - 1 is exactly 0.
        m, q = torch.where(below, r, 0) / width, torch.where(below, 0, r.abs()) * 2 / width
        if i != 4:
            v = v * grad_scale
        if i == 0:
            return v * torch.exp(m - q)
        a = threshold / width
        if i == 1:
            return v * torch.where(below, -torch.exp(m), (k - 1) * exp(-a) - k * torch.exp(-q))
        if i == 2:
            side = torch.sign(r) * (-torch.expm1(-q) - q * torch.exp(-q)) * 0.5
            return v * torch.where(below, torch.expm1(m) - m * torch.exp(m), (k - 1) * -(expm1(-a) + a * exp(-a)) + side)
        return v * width * (torch.where(below, torch.expm1(m), (1 - k) * expm1(-a) - torch.sign(r) * torch.expm1(-q) * 0.5))
