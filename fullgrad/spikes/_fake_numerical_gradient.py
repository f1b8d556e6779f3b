"""`fake_numerical_gradient`."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core.fast import replaceable
from fullgrad.spikes._arguments import Parameter, checked_step
from fullgrad.spikes._surrogate import Step


def fake_numerical_gradient(
    v: Tensor, alpha: Parameter = 0.3, threshold: Parameter = 0.0, grad_scale: Parameter = 1.0, tie: float = 1.0
) -> Tensor:
    r"""A spike with the slope of its difference quotient, at most alpha.

    .. math::
        u = v - t, \qquad y = [\,u \ge 0\,], \qquad d(u) = \min(1 / |u|, \alpha), \qquad R(u) = \alpha u, \;
        \text{beyond } |u| = 1 / \alpha: \; \operatorname{sign}(u) (1 + \log \alpha |u|), \qquad
        \frac{\partial R}{\partial \alpha} = \operatorname{clamp}(u, -1 / \alpha, 1 / \alpha)

    The slope has corners where the two parts meet. spikingjelly 2.0.0 has minus infinity at -0.0, and NaN in the second
    derivative at 0.

    Args:
        v: The membrane potential, any shape; floating, or integer (which gives the default dtype).
        alpha: The largest slope, positive: a number, or a tensor that broadcasts with ``v`` and gets its own gradient.
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
        >>> torch.func.vmap(torch.func.grad(fullgrad.spikes.fake_numerical_gradient))(v)
        tensor([0.3000, 0.3000, 0.3000])

    Source: ``spikingjelly.activation_based.surrogate.FakeNumericalGradient``.
    """
    v = checked_step("fake_numerical_gradient", v, threshold, grad_scale, tie, {"alpha": alpha})
    return FakeNumericalGradient.apply(v, alpha, threshold, grad_scale, tie)


class FakeNumericalGradient(Step):
    """The operator of :func:`fake_numerical_gradient`."""

    parameters = ("alpha",)

    @staticmethod
    @replaceable
    def slope_times(v: Tensor, u: Tensor, alpha: Any) -> Tensor:
        near = u.abs() * alpha <= 1  # elsewhere the slope does not depend on alpha
        return torch.where(near, v * alpha, v / torch.where(near, 1, u.abs()))

    @staticmethod
    def rise(u: Tensor, alpha: Any) -> Tensor:
        z = u * alpha  # may be infinite
        return torch.where(z.abs() <= 1, z, torch.sign(z) * (1 + torch.log(torch.clamp(z.abs(), 1, torch.finfo(z.dtype).max))))

    @staticmethod
    def rise_by(i: int, u: Tensor, alpha: Any) -> Tensor:
        near = u.abs() * alpha <= 1
        return torch.where(near, u, torch.sign(u) / torch.where(near, 1.0, alpha))
