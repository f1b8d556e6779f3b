"""`poisson_st`."""

import torch
from torch import Generator, Tensor

from fullgrad._core import checks
from fullgrad._core.noise import noise_for
from fullgrad._dispatch import opaque
from fullgrad.rounding._straight_through import StraightThrough

# From this rate on torch's incomplete gamma function is wrong in its tails.
_LARGE = 2.0**20


def poisson_st(rate: Tensor, *, noise: Tensor | None = None, generator: Generator | None = None) -> Tensor:
    r"""A random count with a given mean and the straight-through derivative.

    .. math::
        y = \min \{ n : u < F(n; \lambda) \}, \qquad F(n; \lambda) = e^{-\lambda} \sum_{m \le n} \frac{\lambda^m}{m!}, \qquad
        D_\lambda = 1

    The count is found by bisection of the distribution function in float64, from a rate of 2^20 on by Giles's expansion of its
    inverse. It is 0 at rate 0, and NaN where the rate is NaN or negative. u = 0 counts as the smallest normal number of
    float32, or of float64 for such noise. Higher derivatives are 0. Nothing is saved.

    On a device the host waits once, for the number of steps of a bisection.

    Args:
        rate: The means λ, any shape; floating.
        noise: Uniform numbers u in [0, 1) of the shape of ``rate``, a constant; None to draw them.
        generator: Draws them; None for torch's default generator.

    Returns:
        A tensor of the shape and dtype of ``rate``.

    Raises:
        TypeError: ``rate`` or ``noise`` is not a floating tensor, or ``generator`` is not a generator.
        ValueError: ``noise`` has another shape, or is given with a generator.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.sampling.poisson_st(torch.tensor([0.3, 7.0, 100.0]), noise=torch.tensor([0.8, 0.8, 0.8]))
        tensor([  1.,   9., 108.])

    Source: the inverse distribution function; ``torch.poisson`` with the straight-through derivative.
    """
    checks.floating_tensor("poisson_st", "rate", rate)
    return PoissonST.apply(rate, noise_for("poisson_st", rate, noise, generator))


class PoissonST(StraightThrough):
    """The operator of :func:`poisson_st`."""

    reads = {0: (), 1: ()}

    @staticmethod
    @opaque("poisson_quantile", fake=lambda rate, noise: torch.empty_like(rate), reads_values=True)
    def forward(rate: Tensor, noise: Tensor) -> Tensor:
        """The smallest count whose distribution function is above the noise."""
        least = torch.finfo(torch.promote_types(noise.dtype, torch.float32)).tiny
        rates, u = rate.double(), noise.double().clamp(min=least)
        wide = torch.where(rates < _LARGE, rates, 0)
        # Less probability than the smallest u is below the brackets, and less than the smallest 1 - u above them.
        deviation = wide.sqrt()
        low, high = torch.floor(wide - 38 * deviation - 1).clamp(min=-1), torch.floor(wide + 10 * deviation + 60)
        steps = int(torch.nan_to_num(high - low, 0, 0, 0).max()).bit_length() if high.numel() else 0
        for _ in range(steps):
            middle = torch.floor((low + high) / 2)
            above = (torch.special.gammaincc(middle.clamp(min=0) + 1, wide) > u) & (middle >= 0)
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        # A comparison with NaN is false.
        counts = torch.where(rates < _LARGE, high, _quantile_of_large(rates, u))
        return torch.where((rates >= 0) & (u < 1), counts, torch.nan).to(rate.dtype)


def _quantile_of_large(rate: Tensor, u: Tensor) -> Tensor:
    """The quantile of a large rate: the terms left out of the expansion are less than 1e-7 in the whole range of u.

    Giles, Algorithm 955, https://doi.org/10.1145/2699466.
    """
    w, s = torch.special.ndtri(u), rate.sqrt()
    w2 = w * w
    small = (w2 / 6 + 1 / 3) - w * (w2 / 72 + 1 / 36) / s + ((w2 / 270 + 7 / 810) * w2 - 8 / 405) / rate
    return torch.where(rate.isinf(), rate, torch.floor(rate + (s * w + small)))
