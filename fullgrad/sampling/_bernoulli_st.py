"""`bernoulli_st`."""

import torch
from torch import Generator, Tensor

from fullgrad._core import checks
from fullgrad._core.fast import replaceable
from fullgrad._core.noise import noise_for
from fullgrad._core.pieces import pointwise
from fullgrad.rounding._straight_through import StraightThrough


def bernoulli_st(probs: Tensor, *, noise: Tensor | None = None, generator: Generator | None = None) -> Tensor:
    r"""A random 0 or 1 with a given probability and the straight-through derivative.

    .. math::
        y = [\,u < p\,], \qquad D_p = 1

    The value is never 1 at p = 0, always 1 at p = 1, and NaN where p is NaN. As in :func:`torch.bernoulli`, a
    probability outside of [0, 1] raises on the CPU; on a device, in compiled code and inside transforms, where nobody can look
    without waiting, it counts as the nearer bound. Higher derivatives are 0. Nothing is saved.

    Args:
        probs: The probabilities p, any shape; floating.
        noise: Uniform numbers u in [0, 1) of the shape of ``probs``, a constant; None to draw them by
            :func:`fullgrad.sampling.uniform_like`.
        generator: Draws them; None for torch's default generator.

    Returns:
        A tensor of the shape and dtype of ``probs``.

    Raises:
        TypeError: ``probs`` or ``noise`` is not a floating tensor, or ``generator`` is not a generator.
        ValueError: ``probs`` has an element below 0 or above 1, on the CPU; ``noise`` has another shape, or is given with a
            generator.

    Example:
        >>> import torch, fullgrad
        >>> p = torch.tensor([0.1, 0.5, 0.9])
        >>> fullgrad.sampling.bernoulli_st(p, noise=torch.tensor([0.3, 0.3, 0.3]))
        tensor([0., 1., 1.])

    Source: Bengio, Léonard, Courville, https://arxiv.org/abs/1308.3432.
    """
    checks.floating_tensor("bernoulli_st", "probs", probs)
    checks.probabilities("bernoulli_st", "probs", probs)
    return BernoulliST.apply(probs, noise_for("bernoulli_st", probs, noise, generator))


class BernoulliST(StraightThrough):
    """The operator of :func:`bernoulli_st`."""

    reads = {0: (), 1: ()}

    @staticmethod
    def forward(probs: Tensor, noise: Tensor) -> Tensor:
        return indicator(probs, noise, probs.dtype)


@replaceable
@pointwise
def indicator(probs: Tensor, noise: Tensor, dtype: torch.dtype) -> Tensor:
    """1 where ``noise < probs``, else 0; NaN where ``probs`` is NaN."""
    # Only positive differences round up to 1.
    return torch.ceil(probs - noise).clamp(0, 1).abs().to(dtype)
