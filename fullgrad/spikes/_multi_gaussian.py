"""`multi_gaussian`."""

from typing import Any

from torch import Tensor

from fullgrad.spikes._arguments import Parameter, checked_step
from fullgrad.spikes._formulas import clamp_within, normal, normal_integral
from fullgrad.spikes._surrogate import Step


def multi_gaussian(
    v: Tensor,
    sigma: Parameter = 0.5,
    mu: Parameter = 0.0,
    h: Parameter = 0.15,
    s: Parameter = 6.0,
    threshold: Parameter = 0.0,
    grad_scale: Parameter = 1.0,
    tie: float = 1.0,
) -> Tensor:
    r"""A spike with a Gaussian with negative side lobes as its slope.

    .. math::
        u = v - t, \qquad y = [\,u \ge 0\,],
        \qquad d(u) = (1 + h) N_\sigma(u - \mu) - h N_{s\sigma}(u - \sigma) - h N_{s\sigma}(u + \sigma)

    with :math:`N_w` the normal density of deviation w; R is its integral, by error functions. ``h=0.0`` gives a Gaussian.
    Smooth.

    Args:
        v: The membrane potential, any shape; floating, or integer (which gives the default dtype).
        sigma: The deviation, positive: a number, or a tensor that broadcasts with ``v`` and gets its own gradient.
        mu: The distance of the peak from the threshold, a number or a tensor, of any sign.
        h: The height of the side lobes, a number or a tensor.
        s: The deviation of the side lobes in units of ``sigma``, positive.
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
        >>> torch.func.vmap(torch.func.grad(fullgrad.spikes.multi_gaussian))(v)
        tensor([0.0869, 0.8782, 0.5177])

    Source: ``sinabs.activation.MultiGaussian``, ``Gaussian``; https://arxiv.org/abs/2103.12593.
    """
    v = checked_step("multi_gaussian", v, threshold, grad_scale, tie, {"sigma": sigma, "s": s}, {"mu": mu, "h": h})
    return MultiGaussian.apply(v, sigma, mu, h, s, threshold, grad_scale, tie)


class MultiGaussian(Step):
    """The operator of :func:`multi_gaussian`."""

    parameters = ("sigma", "mu", "h", "s")

    @staticmethod
    def bounded(u: Tensor, sigma: Any, mu: Any, h: Any, s: Any) -> Tensor:
        return clamp_within(u, 100 * sigma * (1 + s) + abs(mu))  # where all densities are 0

    @staticmethod
    def slope(u: Tensor, sigma: Any, mu: Any, h: Any, s: Any) -> Tensor:
        lobes = normal(u - sigma, s * sigma) + normal(u + sigma, s * sigma)
        return normal(u - mu, sigma) * (1 + h) - lobes * h

    @classmethod
    def rise(cls, u: Tensor, sigma: Any, mu: Any, h: Any, s: Any) -> Tensor:
        return cls._center(u, sigma, mu, h, s) * (1 + h) - cls._lobes(u, sigma, mu, h, s) * h

    @classmethod
    def rise_by(cls, i: int, u: Tensor, sigma: Any, mu: Any, h: Any, s: Any) -> Tensor:
        if i == 2:
            return cls._center(u, sigma, mu, h, s) - cls._lobes(u, sigma, mu, h, s)
        peak, at_zero = normal(u - mu, sigma), normal(u.new_zeros(()) - mu, sigma)
        if i == 1:
            return (at_zero - peak) * (1 + h)
        left, right = normal(u - sigma, s * sigma), normal(u + sigma, s * sigma)
        if i == 3:
            return ((u - sigma) * left + (u + sigma) * right) * (h / s)
        return u * (left + right) * (h / sigma) - ((u - mu) * peak + mu * at_zero) * ((1 + h) / sigma)

    @staticmethod
    def _center(u: Tensor, sigma: Any, mu: Any, h: Any, s: Any) -> Tensor:
        return normal_integral(u - mu, sigma) - normal_integral(u.new_zeros(()) - mu, sigma)

    @staticmethod
    def _lobes(u: Tensor, sigma: Any, mu: Any, h: Any, s: Any) -> Tensor:
        return normal_integral(u - sigma, s * sigma) + normal_integral(u + sigma, s * sigma)
