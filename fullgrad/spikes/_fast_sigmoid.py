"""`fast_sigmoid`."""

from typing import Any

from torch import Tensor

from fullgrad.spikes._arguments import Parameter, checked_step
from fullgrad.spikes._formulas import by_sum, nearness, saturating, times
from fullgrad.spikes._surrogate import Step


def fast_sigmoid(
    v: Tensor, slope: Parameter = 25.0, threshold: Parameter = 0.0, grad_scale: Parameter = 1.0, tie: float = 1.0
) -> Tensor:
    r"""A spike with the slope of a fast sigmoid, 1 at the threshold.

    .. math::
        u = v - t, \qquad y = [\,u \ge 0\,], \qquad d(u) = \frac{1}{(1 + k |u|)^2}, \qquad R(u) = \frac{u}{1 + k |u|}, \qquad
        \frac{\partial R}{\partial k} = -\frac{u |u|}{(1 + k |u|)^2}

    The slope has a corner at the threshold, where the second derivative is 0. SuperSpike, and spikingjelly's ``SuperSpike(a)``,
    is ``fast_sigmoid(v, 1.0, grad_scale=a)``; norse's ``superspike_fn`` ignores its ``alpha``.

    Args:
        v: The membrane potential, any shape; floating, or integer (which gives the default dtype).
        slope: How fast the slope falls, positive: a number, or a tensor that broadcasts with ``v`` and gets its own gradient.
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
        >>> torch.func.vmap(torch.func.grad(fullgrad.spikes.fast_sigmoid))(v)
        tensor([0.0015, 1.0000, 0.0055])

    Source: ``snntorch.surrogate.fast_sigmoid`` (with ``tie=0.0``); https://arxiv.org/abs/1705.11146.
    """
    v = checked_step("fast_sigmoid", v, threshold, grad_scale, tie, {"slope": slope})
    return FastSigmoid.apply(v, slope, threshold, grad_scale, tie)


class FastSigmoid(Step):
    """The operator of :func:`fast_sigmoid`."""

    in_pieces = "half"
    parameters = ("slope",)
    inverse_width = 0

    @classmethod
    def slope_times(cls, v: Tensor, u: Tensor, slope: Any) -> Tensor:
        return times(v, nearness(by_sum, u, slope), 2)  # as in `HeavyTailedStep`

    @staticmethod
    def rise(u: Tensor, slope: Any) -> Tensor:
        return saturating(u, slope)

    @staticmethod
    def rise_by(i: int, u: Tensor, slope: Any) -> Tensor:
        r = saturating(u, slope)
        return -r * r.abs()
