"""`sso`."""

from typing import Any

from torch import Tensor

from fullgrad.spikes._arguments import Parameter, checked_step, uniform_noise
from fullgrad.spikes._formulas import where_left, where_right
from fullgrad.spikes._surrogate import Step


def sso(
    v: Tensor,
    mean: Parameter = 0.0,
    variance: Parameter = 0.2,
    noise: Tensor | None = None,
    threshold: Parameter = 0.0,
    grad_scale: Parameter = 1.0,
    tie: float = 1.0,
) -> Tensor:
    r"""A spike with the slope 1 above the threshold and a random one below.

    .. math::
        u = v - t, \qquad y = [\,u \ge 0\,], \qquad u < 0: \; d = \lambda = \sigma (r - \tfrac12 + \mu); \qquad
        \text{else} \; d = 1; \qquad R(u) = d u, \qquad
        \frac{\partial R}{\partial \mu} = \sigma \min(u, 0),
        \quad \frac{\partial R}{\partial \sigma} = (r - \tfrac12 + \mu) \min(u, 0)

    for the mean :math:`\mu`, the variance :math:`\sigma` and noise r. At the threshold the slope is that of the side of the
    value. The noise is drawn with the value, so that all derivatives of a call see the same noise, and ``vmap`` needs its
    ``randomness``; snntorch draws it in the backward. Saved: the noise, too.

    Args:
        v: The membrane potential, any shape; floating, or integer (which gives the default dtype).
        mean: Half of what the slope below the threshold is on average, over ``variance``: a number, or a tensor that broadcasts
            with ``v`` and gets its own gradient.
        variance: How much the slope varies below the threshold, a number or a tensor.
        noise: Numbers between 0 and 1 that broadcast with ``v``; None to draw them, in float32 for half precision.
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
        >>> r = torch.tensor([0.0, 0.5, 1.0])
        >>> torch.func.vmap(torch.func.grad(lambda v, r: fullgrad.spikes.sso(v, noise=r)))(v, r)
        tensor([-0.1000,  1.0000,  1.0000])

    Source: ``snntorch.surrogate.SSO`` (with ``tie=0.0``).
    """
    v = checked_step("sso", v, threshold, grad_scale, tie, real={"mean": mean, "variance": variance})
    noise = uniform_noise("sso", v, noise)
    return Sso.apply(v, mean, variance, noise, threshold, grad_scale, tie)


class Sso(Step):
    """The operator of :func:`sso`."""

    parameters = ("mean", "variance", "noise")
    constants = ("noise",)
    jumps_at_threshold = True

    @staticmethod
    def slope_times(v: Tensor, u: Tensor, mean: Any, variance: Any, noise: Any, tie: float) -> Tensor:
        return where_right(v, u, tie) + where_left(v, u, tie) * variance * (noise - 0.5 + mean)

    @staticmethod
    def rise(u: Tensor, mean: Any, variance: Any, noise: Any, tie: float) -> Tensor:
        return where_right(u, u, tie) + where_left(u, u, tie) * variance * (noise - 0.5 + mean)

    @staticmethod
    def rise_by(i: int, u: Tensor, mean: Any, variance: Any, noise: Any, tie: float) -> Tensor:
        return where_left(u, u, tie) * ((noise - 0.5 + mean) if i else variance)
