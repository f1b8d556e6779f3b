"""`log_tailed_relu`."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core.windows import where_positive
from fullgrad.spikes._arguments import Parameter, checked_step
from fullgrad.spikes._formulas import where_left
from fullgrad.spikes._surrogate import Step


def log_tailed_relu(
    v: Tensor, alpha: Parameter = 0.0, threshold: Parameter = 0.0, grad_scale: Parameter = 1.0, tie: float = 1.0
) -> Tensor:
    r"""A spike with the slope 1 above the threshold, and a tail that falls as the inverse distance.

    .. math::
        u = v - t, \qquad y = [\,u \ge 0\,], \qquad u \le 0: \; d = \alpha, \; R = \alpha u;
        \quad 0 < u \le 1: \; d = 1, \; R = u; \quad \text{else} \; d = \frac1u, \; R = 1 + \log u; \qquad
        \frac{\partial R}{\partial \alpha} = \min(u, 0)

    At the threshold the slope is :math:`\alpha`, whatever ``tie`` is. spikingjelly's slope is 1 where ``v`` is NaN, and NaN
    here.

    Args:
        v: The membrane potential, any shape; floating, or integer (which gives the default dtype).
        alpha: The slope below the threshold: a number, or a tensor that broadcasts with ``v`` and gets its own gradient.
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
        >>> torch.func.vmap(torch.func.grad(fullgrad.spikes.log_tailed_relu))(v)
        tensor([0., 0., 1.])

    Source: ``spikingjelly.activation_based.surrogate.LogTailedReLU``; https://arxiv.org/abs/1702.00953.
    """
    v = checked_step("log_tailed_relu", v, threshold, grad_scale, tie, real={"alpha": alpha})
    return LogTailedRelu.apply(v, alpha, threshold, grad_scale, tie)


class LogTailedRelu(Step):
    """The operator of :func:`log_tailed_relu`."""

    parameters = ("alpha",)

    @staticmethod
    def slope_times(v: Tensor, u: Tensor, alpha: Any) -> Tensor:
        # Right is where u is not below 0 and not 0: NaN included.
        right = where_positive(v / torch.clamp(u, min=1), u)
        return right if alpha.__class__ is float and alpha == 0.0 else right + where_left(v, u, 0.0) * alpha

    @staticmethod
    def rise(u: Tensor, alpha: Any) -> Tensor:
        tail = torch.where(u <= 1, u, 1 + torch.log(torch.clamp(u, min=1)))
        return torch.where(u <= 0, u * alpha, tail)

    @staticmethod
    def rise_by(i: int, u: Tensor, alpha: Any) -> Tensor:
        return torch.clamp(u, max=0)
