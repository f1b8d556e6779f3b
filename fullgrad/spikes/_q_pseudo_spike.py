"""`q_pseudo_spike`."""

import math
from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._dispatch import holds
from fullgrad.spikes._arguments import Parameter, checked_step
from fullgrad.spikes._formulas import by_sum, clamp_to_finite, nearness, one_less_exp
from fullgrad.spikes._surrogate import Step


def q_pseudo_spike(
    v: Tensor, alpha: Parameter = 2.0, threshold: Parameter = 0.0, grad_scale: Parameter = 1.0, tie: float = 1.0
) -> Tensor:
    r"""A spike with a slope whose tails fall as a power.

    .. math::
        u = v - t, \qquad y = [\,u \ge 0\,], \qquad q = 1 + \frac{2 |u|}{\alpha - 1}, \qquad d(u) = q^{-\alpha},
        \qquad R(u) = \frac{\operatorname{sign} u}{2} (1 - q^{1 - \alpha}), \qquad
        \frac{\partial R}{\partial \alpha} = \frac{\operatorname{sign} u}{2} q^{1 - \alpha} \Bigl(\log q - 1 + \frac1q\Bigr)

    The slope has a corner at the threshold, where the second derivative is 0.

    Args:
        v: The membrane potential, any shape; floating, or integer (which gives the default dtype).
        alpha: How fast the tails fall, above 1: a number, or a tensor that broadcasts with ``v`` and gets its own gradient.
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
        >>> torch.func.vmap(torch.func.grad(fullgrad.spikes.q_pseudo_spike))(v)
        tensor([0.1111, 1.0000, 0.2500])

    Source: ``spikingjelly.activation_based.surrogate.QPseudoSpike``; https://arxiv.org/abs/2202.00282.
    """
    checks.real_number_or_tensor("q_pseudo_spike", "alpha", alpha)
    if not isinstance(alpha, Tensor) and not (holds(alpha > 1) and holds(alpha < math.inf)):
        raise ValueError(f"q_pseudo_spike: `alpha` must be greater than 1 and finite, got {alpha}.")
    v = checked_step("q_pseudo_spike", v, threshold, grad_scale, tie, {"alpha": alpha})
    return QPseudoSpike.apply(v, alpha, threshold, grad_scale, tie)


class QPseudoSpike(Step):
    """The operator of :func:`q_pseudo_spike`."""

    parameters = ("alpha",)

    @staticmethod
    def bounded(u: Tensor, alpha: Any) -> Tensor:
        return clamp_to_finite(u, 2 / (alpha - 1))

    @classmethod
    def slope(cls, u: Tensor, alpha: Any) -> Tensor:
        return torch.pow(cls._nearness(u, alpha), alpha)

    @classmethod
    def rise(cls, u: Tensor, alpha: Any) -> Tensor:
        return torch.sign(u) * one_less_exp(torch.log1p(u.abs() * (2 / (alpha - 1))) * (alpha - 1)) * 0.5

    @classmethod
    def rise_by(cls, i: int, u: Tensor, alpha: Any) -> Tensor:
        p = cls._nearness(u, alpha)
        return torch.sign(u) * torch.pow(p, alpha - 1) * (p - 1 - torch.log(p)) * 0.5

    @staticmethod
    def _nearness(u: Tensor, alpha: Any) -> Tensor:
        """The inverse of ``q``, whose derivatives are not 0 before those of its powers are."""
        return nearness(by_sum, u, 2 / (alpha - 1))
