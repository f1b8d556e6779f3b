"""`atan`."""

import math

import torch
from torch import Tensor

from fullgrad.spikes._arguments import Parameter, checked_step
from fullgrad.spikes._surrogate import HeavyTailedStep


def atan(v: Tensor, alpha: Parameter = 2.0, threshold: Parameter = 0.0, grad_scale: Parameter = 1.0, tie: float = 1.0) -> Tensor:
    r"""A spike with the slope of an arctangent.

    .. math::
        u = v - t, \qquad y = [\,u \ge 0\,], \qquad d(u) = \frac{\alpha / 2}{1 + (\pi \alpha u / 2)^2}, \qquad
        R(u) = \frac1\pi \arctan\Bigl(\frac{\pi \alpha u}{2}\Bigr)

    Smooth, with tails that fall as the inverse square. Where the square overflows the slope is 0.

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
        >>> torch.func.vmap(torch.func.grad(fullgrad.spikes.atan))(v)
        tensor([0.0920, 1.0000, 0.2884])

    Source: ``spikingjelly.activation_based.surrogate.ATan``, ``snntorch.surrogate.atan`` (with ``tie=0.0``).
    """
    v = checked_step("atan", v, threshold, grad_scale, tie, {"alpha": alpha})
    return Atan.apply(v, alpha, threshold, grad_scale, tie)


class Atan(HeavyTailedStep):
    """The operator of :func:`atan`."""

    decay = 2
    width = 2 / math.pi
    distance = torch.hypot

    @staticmethod
    def distribution(z: Tensor) -> Tensor:
        return torch.atan(z * (math.pi / 2)) / math.pi
