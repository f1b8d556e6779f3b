"""`sigmoid`."""

import torch
from torch import Tensor

from fullgrad.spikes._arguments import Parameter, checked_step
from fullgrad.spikes._formulas import NO_EXPONENTIAL, bell
from fullgrad.spikes._surrogate import ScaledStep


def sigmoid(
    v: Tensor, alpha: Parameter = 4.0, threshold: Parameter = 0.0, grad_scale: Parameter = 1.0, tie: float = 1.0
) -> Tensor:
    r"""A spike with the slope of a logistic function.

    .. math::
        u = v - t, \qquad y = [\,u \ge 0\,], \qquad d(u) = \alpha\, s(\alpha u)\, s(-\alpha u),
        \qquad R(u) = s(\alpha u) - \tfrac12

    with :math:`s` the logistic function. Smooth. snntorch 1.0.0 loses all digits far from the threshold, and its slope is NaN
    beyond; norse's ``tanh`` of width k is ``sigmoid(v, 2 * k, grad_scale=2 / k)``.

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
        >>> torch.func.vmap(torch.func.grad(fullgrad.spikes.sigmoid))(v)
        tensor([0.0707, 1.0000, 0.4200])

    Source: ``spikingjelly.activation_based.surrogate.Sigmoid``.
    """
    v = checked_step("sigmoid", v, threshold, grad_scale, tie, {"alpha": alpha})
    return Sigmoid.apply(v, alpha, threshold, grad_scale, tie)


class Sigmoid(ScaledStep):
    """The operator of :func:`sigmoid`."""

    in_pieces = True
    reach = NO_EXPONENTIAL

    @staticmethod
    def density(z: Tensor) -> Tensor:
        return bell(z)

    @staticmethod
    def distribution(z: Tensor) -> Tensor:
        return torch.tanh(z * 0.5) * 0.5
