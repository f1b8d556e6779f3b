"""`dspike`."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core.windows import where_between
from fullgrad.spikes._arguments import Parameter, checked_step
from fullgrad.spikes._formulas import sech2, tanh
from fullgrad.spikes._surrogate import Step


def dspike(
    v: Tensor, alpha: Parameter = 3.0, threshold: Parameter = 0.0, grad_scale: Parameter = 1.0, tie: float = 1.0
) -> Tensor:
    r"""A spike with the slope of a hyperbolic tangent in a window of width 1.

    .. math::
        u = v - t, \qquad y = [\,u \ge 0\,], \qquad T = \tanh(\alpha / 2),
        \qquad d(u) = [\,|u| \le \tfrac12\,] \frac{\alpha}{2T} \operatorname{sech}^2 \alpha u,
        \qquad R(u) = \frac{\tanh \alpha \bar u}{2T}, \qquad
        \frac{\partial R}{\partial \alpha} = \frac{1}{2T} \Bigl(\bar u \operatorname{sech}^2 \alpha \bar u
        - \tanh(\alpha \bar u) \frac{\operatorname{sech}^2(\alpha / 2)}{2T}\Bigr)

    with :math:`\bar u = \operatorname{clamp}(u, -\tfrac12, \tfrac12)`. The ends belong to the window. spikingjelly 2.0.0 has
    NaN in the second derivative far outside it.

    Args:
        v: The membrane potential, any shape; floating, or integer (which gives the default dtype).
        alpha: The temperature, positive: a number, or a tensor that broadcasts with ``v`` and gets its own gradient.
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
        >>> torch.func.vmap(torch.func.grad(fullgrad.spikes.dspike))(v)
        tensor([0.0000, 1.6572, 0.2995])

    Source: ``spikingjelly.activation_based.model.spike_dhs.DSpike``; https://openreview.net/forum?id=H4e7mBnC9f0.
    """
    v = checked_step("dspike", v, threshold, grad_scale, tie, {"alpha": alpha})
    return Dspike.apply(v, alpha, threshold, grad_scale, tie)


class Dspike(Step):
    """The operator of :func:`dspike`."""

    parameters = ("alpha",)

    @staticmethod
    def slope_times(v: Tensor, u: Tensor, alpha: Any) -> Tensor:
        inside = torch.clamp(u, -0.5, 0.5)
        return where_between(v * sech2(inside, alpha) * (alpha / tanh(alpha / 2) / 2), u, -0.5, 0.5)

    @staticmethod
    def rise(u: Tensor, alpha: Any) -> Tensor:
        return torch.tanh(torch.clamp(u, -0.5, 0.5) * alpha) * (0.5 / tanh(alpha / 2))

    @staticmethod
    def rise_by(i: int, u: Tensor, alpha: Any) -> Tensor:
        inside, t = torch.clamp(u, -0.5, 0.5), tanh(alpha / 2)
        end = 1 - t * t  # sech^2(alpha / 2)
        part = inside * sech2(inside, alpha) - torch.tanh(inside * alpha) * (end / t / 2)
        return where_between(part, u, -0.5, 0.5) * (0.5 / t)
