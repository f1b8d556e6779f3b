"""`piecewise_exp`."""

import torch
from torch import Tensor

from fullgrad.spikes._arguments import Parameter, checked_step
from fullgrad.spikes._formulas import NO_EXPONENTIAL, one_less_exp
from fullgrad.spikes._surrogate import ScaledStep


def piecewise_exp(
    v: Tensor, alpha: Parameter = 1.0, threshold: Parameter = 0.0, grad_scale: Parameter = 1.0, tie: float = 1.0
) -> Tensor:
    r"""A spike with a slope that decays exponentially on both sides.

    .. math::
        u = v - t, \qquad y = [\,u \ge 0\,], \qquad d(u) = \frac{\alpha}{2} e^{-\alpha |u|}, \qquad
        R(u) = \tfrac12 \operatorname{sign}(u) \bigl(1 - e^{-\alpha |u|}\bigr)

    The slope has a corner at the threshold, where the second derivative is 0. sinabs' ``SingleExponential(w, c)`` at a threshold
    t is ``piecewise_exp(v, 1 / (t * w), t, 2 * c)``.

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
        >>> torch.func.vmap(torch.func.grad(fullgrad.spikes.piecewise_exp))(v)
        tensor([0.1839, 0.5000, 0.3033])

    Source: ``spikingjelly.activation_based.surrogate.PiecewiseExp``.
    """
    v = checked_step("piecewise_exp", v, threshold, grad_scale, tie, {"alpha": alpha})
    return PiecewiseExp.apply(v, alpha, threshold, grad_scale, tie)


class PiecewiseExp(ScaledStep):
    """The operator of :func:`piecewise_exp`."""

    reach = NO_EXPONENTIAL

    @staticmethod
    def density(z: Tensor) -> Tensor:
        return torch.exp(-z.abs()) * 0.5

    @staticmethod
    def distribution(z: Tensor) -> Tensor:
        return torch.sign(z) * one_less_exp(z.abs()) * 0.5
