"""`ste_heaviside`."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core.windows import where_between
from fullgrad.spikes._arguments import Parameter, checked_step, positive_or_none
from fullgrad.spikes._surrogate import Step


def ste_heaviside(
    v: Tensor, clip_value: Parameter | None = 1.0, threshold: Parameter = 0.0, grad_scale: Parameter = 1.0, tie: float = 1.0
) -> Tensor:
    r"""A spike with the straight-through slope 1 in a window.

    .. math::
        u = v - t, \qquad y = [\,u \ge 0\,], \qquad d(u) = [\,|u| \le c\,],
        \qquad R(u) = \operatorname{clamp}(u, -c, c),
        \qquad \frac{\partial R}{\partial c} = \operatorname{sign}(u)\,[\,|u| > c\,]

    The ends belong to the window. Higher derivatives by ``v`` are 0. spikingjelly's ``DeterministicPass`` and snntorch's
    ``straight_through_estimator`` are ``clip_value=None``.

    Args:
        v: The membrane potential, any shape; floating, or integer (which gives the default dtype).
        clip_value: Half the width, positive: a number, or a tensor that broadcasts with ``v`` and gets its own gradient; None
            for the slope 1 everywhere.
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
        >>> torch.func.vmap(torch.func.grad(fullgrad.spikes.ste_heaviside))(v)
        tensor([1., 1., 1.])

    Source: ``larq.quantizers.SteHeaviside`` (with ``tie=0.0``).
    """
    v = checked_step("ste_heaviside", v, threshold, grad_scale, tie, positive_or_none(clip_value))
    return SteHeaviside.apply(v, clip_value, threshold, grad_scale, tie)


class SteHeaviside(Step):
    """The operator of :func:`ste_heaviside`."""

    in_pieces = "half"
    parameters = ("clip_value",)

    @staticmethod
    def slope_times(v: Tensor, u: Tensor, clip_value: Any) -> Tensor:
        return v if clip_value is None else where_between(v, u, -clip_value, clip_value)

    @staticmethod
    def rise(u: Tensor, clip_value: Any) -> Tensor:
        return u if clip_value is None else torch.clamp(u, -clip_value, clip_value)

    @staticmethod
    def rise_by(i: int, u: Tensor, clip_value: Any) -> Tensor:
        return torch.where(u.abs() > clip_value, torch.sign(u), 0)
