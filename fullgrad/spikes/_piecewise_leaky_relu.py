"""`piecewise_leaky_relu`."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core.fast import replaceable
from fullgrad._core.windows import where_inside, where_positive
from fullgrad.spikes._arguments import Parameter, checked_step
from fullgrad.spikes._surrogate import Step


def piecewise_leaky_relu(
    v: Tensor, w: Parameter = 1.0, c: Parameter = 0.01, threshold: Parameter = 0.0, grad_scale: Parameter = 1.0, tie: float = 1.0
) -> Tensor:
    r"""A spike with a rectangle as its slope, and another slope beyond.

    .. math::
        u = v - t, \qquad y = [\,u \ge 0\,], \qquad |u| < w: \quad d = \frac{1}{2w}, \quad R = \frac{u}{2w},
        \quad \frac{\partial R}{\partial w} = -\frac{u}{2w^2}, \quad \frac{\partial R}{\partial c} = 0; \qquad
        \text{else} \quad d = c, \quad R = \operatorname{sign}(u) \bigl(\tfrac12 + c (|u| - w)\bigr),
        \quad \frac{\partial R}{\partial w} = -c \operatorname{sign} u,
        \quad \frac{\partial R}{\partial c} = \operatorname{sign}(u) (|u| - w)

    At the ends of the rectangle, and where ``v`` is NaN, the slope is ``c``.

    Args:
        v: The membrane potential, any shape; floating, or integer (which gives the default dtype).
        w: Half the width, positive: a number, or a tensor that broadcasts with ``v`` and gets its own gradient.
        c: The slope beyond the rectangle, a number or a tensor, of any sign.
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
        >>> torch.func.vmap(torch.func.grad(fullgrad.spikes.piecewise_leaky_relu))(v)
        tensor([0.0100, 0.5000, 0.5000])

    Source: ``spikingjelly.activation_based.surrogate.PiecewiseLeakyReLU``.
    """
    v = checked_step("piecewise_leaky_relu", v, threshold, grad_scale, tie, {"w": w}, {"c": c})
    return PiecewiseLeakyRelu.apply(v, w, c, threshold, grad_scale, tie)


class PiecewiseLeakyRelu(Step):
    """The operator of :func:`piecewise_leaky_relu`."""

    parameters = ("w", "c")

    @staticmethod
    @replaceable
    def slope_times(v: Tensor, u: Tensor, w: Any, c: Any) -> Tensor:
        inside = where_inside(v, u, -w, w) * 0.5 / w
        return inside if c.__class__ is float and c == 0.0 else inside + where_positive(v, ~(u.abs() < w)) * c

    @staticmethod
    def rise(u: Tensor, w: Any, c: Any) -> Tensor:
        return torch.where(u.abs() < w, where_inside(u, u, -w, w) * 0.5 / w, torch.sign(u) * (0.5 + c * (u.abs() - w)))

    @staticmethod
    def rise_by(i: int, u: Tensor, w: Any, c: Any) -> Tensor:
        if i == 0:
            return torch.where(u.abs() < w, where_inside(u, u, -w, w) / w * -0.5 / w, torch.sign(u) * -c)
        return torch.where(u.abs() < w, 0, torch.sign(u) * (u.abs() - w))
