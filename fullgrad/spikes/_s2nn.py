"""`s2nn`."""

from typing import Any

import torch
from torch import Tensor

from fullgrad.spikes._arguments import Parameter, checked_step
from fullgrad.spikes._formulas import bell, right_or_left, where_left, where_right
from fullgrad.spikes._surrogate import Step


def s2nn(
    v: Tensor,
    alpha: Parameter = 4.0,
    beta: Parameter = 1.0,
    threshold: Parameter = 0.0,
    grad_scale: Parameter = 1.0,
    tie: float = 1.0,
) -> Tensor:
    r"""A spike with a logistic slope below the threshold and a hyperbola above.

    .. math::
        u = v - t, \qquad y = [\,u \ge 0\,], \qquad u < 0: \quad d = \alpha\, s(\alpha u)\, s(-\alpha u),
        \quad R = s(\alpha u) - \tfrac12, \quad \frac{\partial R}{\partial \alpha} = \frac{u d}{\alpha}; \qquad
        \text{else} \quad d = \frac{\beta}{1 + u}, \quad R = \beta \log(1 + u),
        \quad \frac{\partial R}{\partial \beta} = \log(1 + u)

    The slope jumps at the threshold, where it is that of the side of the value: from the right for ``tie=1.0``. spikingjelly
    2.0.0 has a NaN in its second derivative at a distance of -1.

    Args:
        v: The membrane potential, any shape; floating, or integer (which gives the default dtype).
        alpha: The inverse width below the threshold, positive: a number, or a tensor that broadcasts with ``v`` and gets its
            own gradient.
        beta: The slope at the threshold from above, positive, a number or a tensor.
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
        >>> torch.func.vmap(torch.func.grad(fullgrad.spikes.s2nn))(v)
        tensor([0.0707, 1.0000, 0.6667])

    Source: ``spikingjelly.activation_based.surrogate.S2NN``; https://arxiv.org/abs/2201.10879.
    """
    v = checked_step("s2nn", v, threshold, grad_scale, tie, {"alpha": alpha, "beta": beta})
    return S2nn.apply(v, alpha, beta, threshold, grad_scale, tie)


class S2nn(Step):
    """The operator of :func:`s2nn`."""

    parameters = ("alpha", "beta")
    jumps_at_threshold = True

    @staticmethod
    def slope(u: Tensor, alpha: Any, beta: Any, tie: float) -> Tensor:
        right = beta / (1 + torch.clamp(u, min=0))
        return right_or_left(right, bell(u, alpha) * alpha, u, tie)

    @staticmethod
    def rise(u: Tensor, alpha: Any, beta: Any, tie: float) -> Tensor:
        right = torch.log1p(torch.clamp(u, min=0)) * beta
        return where_right(right, u, tie) + where_left(torch.tanh(u * alpha * 0.5) * 0.5, u, tie)

    @staticmethod
    def rise_by(i: int, u: Tensor, alpha: Any, beta: Any, tie: float) -> Tensor:
        return where_left(u * bell(u, alpha), u, tie) if i == 0 else where_right(torch.log1p(torch.clamp(u, min=0)), u, tie)
