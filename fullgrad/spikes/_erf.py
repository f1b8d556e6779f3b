"""`erf`."""

import math

import torch
from torch import Tensor

from fullgrad.spikes._arguments import Parameter, checked_step
from fullgrad.spikes._formulas import NO_EXPONENTIAL
from fullgrad.spikes._surrogate import ScaledStep


def erf(v: Tensor, alpha: Parameter = 2.0, threshold: Parameter = 0.0, grad_scale: Parameter = 1.0, tie: float = 1.0) -> Tensor:
    r"""A spike with the slope of a Gaussian error function.

    .. math::
        u = v - t, \qquad y = [\,u \ge 0\,], \qquad d(u) = \frac{\alpha}{\sqrt\pi} e^{-\alpha^2 u^2},
        \qquad R(u) = \tfrac12 \operatorname{erf}(\alpha u)

    Smooth. A Gaussian of deviation :math:`\sigma` has :math:`\alpha = 1 / (\sigma \sqrt 2)`. norse's ``heavi_erfc`` of width k
    is ``erf(v, k, grad_scale=2 / k)``.

    Args:
        v: The membrane potential, any shape; floating, or integer (which gives the default dtype).
        alpha: The inverse width, positive: a number, or a tensor that broadcasts with ``v`` and gets its own gradient.
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
        >>> torch.func.vmap(torch.func.grad(fullgrad.spikes.erf))(v)
        tensor([0.0207, 1.1284, 0.4151])

    Source: ``spikingjelly.activation_based.surrogate.Erf``.
    """
    v = checked_step("erf", v, threshold, grad_scale, tie, {"alpha": alpha})
    return Erf.apply(v, alpha, threshold, grad_scale, tie)


class Erf(ScaledStep):
    """The operator of :func:`erf`."""

    reach = NO_EXPONENTIAL

    @staticmethod
    def density(z: Tensor) -> Tensor:
        return torch.exp(-z * z) * math.pi**-0.5

    @staticmethod
    def distribution(z: Tensor) -> Tensor:
        return torch.erf(z) * 0.5
