"""`multi_spike`."""

from typing import Any

import torch
from torch import Tensor

from fullgrad.spikes._arguments import Parameter, checked_count
from fullgrad.spikes._surrogate import Surrogate
from fullgrad.spikes._values import count, expanded


def multi_spike(
    v: Tensor, threshold: Parameter = 1.0, max_spikes: int | None = None, window: Parameter = 1.0, grad_scale: Parameter = 1.0
) -> Tensor:
    r"""The number of times the threshold is reached at once, with a constant slope from a distance below it.

    .. math::
        y = \operatorname{clamp}\bigl(\lfloor v / t \rfloor, 0, n\bigr), \qquad D_v = s\,[\,v \ge t - w\,] / t, \qquad
        D_t = -s v / t^2, \quad D_w = 0, \quad D_s = v / t - 1; \quad
        \text{below } t - w: \; D_t = s w / t^2, \; D_w = -s / t, \; D_s = -w / t

    The slope does not end at the largest count. With ``max_spikes=1`` the value is ``v >= threshold``. sinabs has -0.0 for
    negative numbers, NaN for minus infinity, no gradient for the threshold, and second derivatives without that of the slope.
    Half precision is computed in float32 and rounded once; a number as threshold is first rounded to the dtype of ``v``. Saved:
    the tensors among the arguments.

    Args:
        v: The membrane potential, any shape; floating, or integer (which gives the default dtype).
        threshold: Positive: a number, or a tensor that broadcasts with ``v`` and gets its own gradient.
        max_spikes: The largest count, a positive integer; None for any.
        window: How far below the threshold the slope begins, positive, in the unit of ``v``, a number or a tensor.
        grad_scale: A factor of the slope, a number or a tensor.

    Returns:
        A tensor of the broadcast shape, of the dtype of ``v / threshold``.

    Raises:
        TypeError: ``v`` is not a real tensor, or another argument is neither a real tensor nor a number.
        ValueError: A parameter is a number out of its range.

    Example:
        >>> import torch, fullgrad
        >>> v = torch.tensor([-0.5, 0.5, 2.5])
        >>> fullgrad.spikes.multi_spike(v)
        tensor([0., 0., 2.])
        >>> torch.func.vmap(torch.func.grad(fullgrad.spikes.multi_spike))(v)
        tensor([0., 1., 1.])

    Source: ``sinabs.activation.MultiSpike``, ``SingleSpike``, ``MaxSpike``, with ``Heaviside``.
    """
    v, max_spikes = checked_count("multi_spike", v, max_spikes, grad_scale, {"threshold": threshold, "window": window})
    return MultiSpike.apply(v, threshold, max_spikes, window, grad_scale)


class MultiSpike(Surrogate):
    """The operator of :func:`multi_spike`."""

    reads = dict.fromkeys((0, 1, 3, 4), (0, 1, 3, 4))
    threshold_at = 1

    @staticmethod
    def forward(v: Tensor, threshold: Parameter, max_spikes: int | None, window: Parameter, grad_scale: Parameter) -> Tensor:
        return expanded(count(v, threshold, max_spikes), window, grad_scale)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Tensor, threshold: Any, max_spikes: Any, window: Any, grad_scale: Any) -> Tensor:
        right = x >= threshold - window
        if i == 4:
            return v * (torch.where(right, x - threshold, -window) / threshold)
        if i == 1:
            return v / threshold * grad_scale * (torch.where(right, -x, window) / threshold)
        return (torch.where(right, v, 0) if i == 0 else torch.where(right, 0, -v)) / threshold * grad_scale
