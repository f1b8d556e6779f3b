"""`poisson_st`."""

import torch
from torch import Generator, Tensor

from fullgrad import _checks
from fullgrad._dispatch import opaque
from fullgrad._elementwise import Elementwise
from fullgrad._noise import noise_for


def poisson_st(rate: Tensor, *, noise: Tensor | None = None, generator: Generator | None = None) -> Tensor:
    r"""A random count with a mean, with the straight-through derivative.

    .. math::
        y = \min \{ n : u < F(n; \lambda) \}, \qquad F(n; \lambda) = e^{-\lambda} \sum_{m \le n} \frac{\lambda^m}{m!}, \qquad
        D_\lambda = 1

    The count is found by bisection of the distribution function in float64. It is 0 at rate 0, and NaN where the rate is NaN or
    negative. u = 0 counts as the smallest normal number. Higher derivatives are 0. Nothing is saved.

    Args:
        rate: The means λ, any shape; floating.
        noise: Uniform numbers u in [0, 1) of the shape of ``rate``, a constant; None to draw them.
        generator: What draws them; None for torch's own.

    Returns:
        A tensor of the shape and dtype of ``rate``.

    Raises:
        TypeError: ``rate`` or ``noise`` is not a floating tensor, or ``generator`` not a generator.
        ValueError: ``noise`` has another shape, or there is a generator as well.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.sampling.poisson_st(torch.tensor([0.3, 7.0, 100.0]), noise=torch.tensor([0.8, 0.8, 0.8]))
        tensor([  1.,   9., 108.])

    Source: the inverse distribution function; ``torch.poisson`` with the straight-through derivative.
    """
    _checks.floating_tensor("poisson_st", "rate", rate)
    return PoissonST.apply(rate, noise_for("poisson_st", rate, noise, generator))


class PoissonST(Elementwise):
    """The operator of :func:`poisson_st`."""

    reads = {0: (), 1: ()}

    @staticmethod
    def forward(rate: Tensor, noise: Tensor) -> Tensor:
        return poisson_quantile(rate, noise)

    @staticmethod
    def vjp_term(i: int, v: Tensor, rate: None, noise: None) -> Tensor | None:
        return v if i == 0 else None


def _like(rate: Tensor, noise: Tensor) -> Tensor:
    return torch.empty_like(rate)


@opaque("poisson_quantile", fake=_like, reads_values=True)
def poisson_quantile(rate: Tensor, noise: Tensor) -> Tensor:
    """The smallest count whose distribution function is above the noise."""
    wide, u = rate.double(), noise.clamp(min=torch.finfo(noise.dtype).tiny).double()
    # Outside of the brackets there is less than the smallest u, and less than the smallest difference of u from 1.
    deviation = wide.sqrt()
    low, high = torch.floor(wide - 38 * deviation - 1).clamp(min=-1), torch.floor(wide + 10 * deviation + 60)
    steps = int(torch.nan_to_num(high - low, 0, 0, 0).max()).bit_length() if high.numel() else 0
    for _ in range(steps):
        middle = torch.floor((low + high) / 2)
        above = (torch.special.gammaincc(middle.clamp(min=0) + 1, wide) > u) & (middle >= 0)
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    # A comparison with NaN is false.
    return torch.where((wide >= 0) & (u < 1), high, torch.nan).to(rate.dtype)
