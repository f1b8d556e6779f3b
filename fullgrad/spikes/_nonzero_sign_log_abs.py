"""`nonzero_sign_log_abs`."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad.spikes._arguments import Parameter, checked_step
from fullgrad.spikes._formulas import by_sum, clamp_to_finite, in_units, saturating
from fullgrad.spikes._surrogate import ScaledStep


def nonzero_sign_log_abs(
    v: Tensor, alpha: Parameter = 1.0, threshold: Parameter = 0.0, grad_scale: Parameter = 1.0, tie: float = 1.0
) -> Tensor:
    r"""A spike with a slope that falls as the inverse distance.

    .. math::
        u = v - t, \qquad y = [\,u \ge 0\,], \qquad d(u) = \frac{\alpha}{1 + \alpha |u|},
        \qquad R(u) = \operatorname{sign}(u) \log(1 + \alpha |u|)

    The slope has a corner at the threshold, where the second derivative is 0. The area under it is infinite.

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
        >>> torch.func.vmap(torch.func.grad(fullgrad.spikes.nonzero_sign_log_abs))(v)
        tensor([0.5000, 1.0000, 0.6667])

    Source: ``spikingjelly.activation_based.surrogate.NonzeroSignLogAbs``.
    """
    v = checked_step("nonzero_sign_log_abs", v, threshold, grad_scale, tie, {"alpha": alpha})
    return NonzeroSignLogAbs.apply(v, alpha, threshold, grad_scale, tie)


class NonzeroSignLogAbs(ScaledStep):
    """The operator of :func:`nonzero_sign_log_abs`."""

    @classmethod
    def bounded(cls, u: Tensor, *parameters: Any) -> Tensor:
        return u  # the slope ends at 1 / abs(u), and is 0 at infinity

    @classmethod
    def slope_times(cls, v: Tensor, u: Tensor, *parameters: Any) -> Tensor:
        (alpha,) = parameters
        u, b, per_unit = in_units(u, alpha)
        return (v if per_unit.__class__ is float and per_unit == 1.0 else v * per_unit) / by_sum(u, b)

    @classmethod
    def shape_terms(cls, needed: Sequence[bool], v: Tensor, u: Tensor, *parameters: Any) -> Sequence[Tensor | None]:
        (alpha,) = parameters
        needs_u, needs_alpha = needed
        by_alpha = v * saturating(clamp_to_finite(u, alpha), alpha) if needs_alpha else None
        return cls.slope_times(v, u, alpha) if needs_u else None, by_alpha

    @staticmethod
    def distribution(z: Tensor) -> Tensor:
        return torch.sign(z) * torch.log1p(torch.clamp(z.abs(), max=torch.finfo(z.dtype).max))
