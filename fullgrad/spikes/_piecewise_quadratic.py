"""`piecewise_quadratic`."""

import torch
from torch import Tensor

from fullgrad.spikes._arguments import Parameter, checked_step
from fullgrad.spikes._surrogate import ScaledStep


def piecewise_quadratic(
    v: Tensor, alpha: Parameter = 1.0, threshold: Parameter = 0.0, grad_scale: Parameter = 1.0, tie: float = 1.0
) -> Tensor:
    r"""A spike with a triangle as its slope.

    .. math::
        u = v - t, \qquad y = [\,u \ge 0\,], \qquad z = \alpha u, \qquad d(u) = \alpha \max(0, 1 - |z|), \qquad
        R(u) = \bar z - \tfrac12 \bar z |\bar z|, \quad \bar z = \operatorname{clamp}(z, -1, 1)

    The slope has corners at the threshold and at both ends, where the second derivative is 0. norse's ``triangle`` of height a is
    ``piecewise_quadratic(v, 1.0, grad_scale=a, tie=0.0)``.

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
        >>> torch.func.vmap(torch.func.grad(fullgrad.spikes.piecewise_quadratic))(v)
        tensor([0.0000, 1.0000, 0.5000])

    Source: ``spikingjelly.activation_based.surrogate.PiecewiseQuadratic``.
    """
    v = checked_step("piecewise_quadratic", v, threshold, grad_scale, tie, {"alpha": alpha})
    return PiecewiseQuadratic.apply(v, alpha, threshold, grad_scale, tie)


class PiecewiseQuadratic(ScaledStep):
    """The operator of :func:`piecewise_quadratic`."""

    @staticmethod
    def density(z: Tensor) -> Tensor:
        return torch.relu(1 - z.abs())

    @staticmethod
    def distribution(z: Tensor) -> Tensor:
        z = torch.clamp(z, -1, 1)
        return z - z * z.abs() * 0.5
