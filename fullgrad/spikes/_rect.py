"""`rect`."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core.fast import replaceable
from fullgrad._core.windows import where_inside
from fullgrad.spikes._arguments import Parameter, checked_step
from fullgrad.spikes._surrogate import Step


def rect(v: Tensor, alpha: Parameter = 1.0, threshold: Parameter = 0.0, grad_scale: Parameter = 1.0, tie: float = 1.0) -> Tensor:
    r"""A spike with a rectangle as its slope.

    .. math::
        u = v - t, \qquad y = [\,u \ge 0\,], \qquad d(u) = \alpha\,[\,|u| < 1 / 2\alpha\,],
        \qquad R(u) = \operatorname{clamp}(\alpha u, -\tfrac12, \tfrac12)

    The slope is 0 at the ends of the rectangle, and where ``v`` is NaN. Higher derivatives by ``v`` are 0.

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
        >>> torch.func.vmap(torch.func.grad(fullgrad.spikes.rect))(v)
        tensor([0., 1., 0.])

    Source: ``spikingjelly.activation_based.surrogate.Rect``; STBP, https://arxiv.org/abs/1706.02609.
    """
    v = checked_step("rect", v, threshold, grad_scale, tie, {"alpha": alpha})
    return Rect.apply(v, alpha, threshold, grad_scale, tie)


class Rect(Step):
    """The operator of :func:`rect`."""

    in_pieces = "half"
    parameters = ("alpha",)
    inverse_width = 0

    @staticmethod
    @replaceable
    def slope_times(v: Tensor, u: Tensor, alpha: Any) -> Tensor:
        return where_inside(v, u, -0.5 / alpha, 0.5 / alpha) * alpha

    @staticmethod
    def rise_by(i: int, u: Tensor, alpha: Any) -> Tensor:
        return where_inside(u, u, -0.5 / alpha, 0.5 / alpha)

    @staticmethod
    def rise(u: Tensor, alpha: Any) -> Tensor:
        return torch.clamp(u * alpha, -0.5, 0.5)
