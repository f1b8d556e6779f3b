"""`relaxed_bernoulli`: the binary concrete distribution."""

import torch
from torch import Generator, Tensor

from fullgrad._core import checks
from fullgrad._core.noise import noise_for
from fullgrad._core.opmath import to_opmath
from fullgrad.sampling._arguments import Temperature, check_temperature
from fullgrad.soft._sigmoidal import Sigmoidal


def relaxed_bernoulli(
    logits: Tensor, tau: Temperature = 1.0, *, noise: Tensor | None = None, generator: Generator | None = None
) -> Tensor:
    r"""A random number between 0 and 1 that is close to either at a low temperature.

    .. math::
        s = \sigma\Bigl(\frac{\theta - \operatorname{logit} u}{\tau}\Bigr), \qquad D_\theta = \frac{s (1 - s)}{\tau}, \qquad
        D_\tau = -\frac{s (1 - s) (\theta - \operatorname{logit} u)}{\tau^2}

    The derivative is the true one, of every order, of the noise too. s is above 1/2 where :func:`bernoulli_logits_st` of the
    same noise is 1. u = 0 counts as the smallest normal number of float32, or of float64 for such noise. Saved: the value; the
    scores where ``tau`` is a tensor.

    Args:
        logits: The logits θ, any shape; floating.
        tau: The temperature, positive: a number, or a tensor that broadcasts and gets its own gradient.
        noise: Uniform numbers u in [0, 1) of the shape of ``logits``; None to draw them.
        generator: Draws them; None for torch's default generator.

    Returns:
        A tensor of the shape and dtype of ``logits``.

    Raises:
        TypeError: ``logits`` or ``noise`` is not a floating tensor, or another argument has a wrong type.
        ValueError: ``tau`` is a number that is not positive or does not broadcast, or ``noise`` has another shape or is given
            with a generator.

    Example:
        >>> import torch, fullgrad
        >>> x, u = torch.tensor([-2.0, 0.0, 2.0]), torch.tensor([0.3, 0.3, 0.3])
        >>> fullgrad.sampling.relaxed_bernoulli(x, 0.5, noise=u)
        tensor([0.0907, 0.8448, 0.9966])

    Source: Maddison, Mnih, Teh, https://arxiv.org/abs/1611.00712; Jang, Gu, Poole, https://arxiv.org/abs/1611.01144;
    ``torch.distributions.RelaxedBernoulli`` with 1 - u.
    """
    checks.floating_tensor("relaxed_bernoulli", "logits", logits)
    check_temperature("relaxed_bernoulli", "tau", tau, logits)
    noise = noise_for("relaxed_bernoulli", logits, noise, generator)
    return binary_concrete(logits, tau, noise).to(logits.dtype)


def binary_concrete(logits: Tensor, tau: Temperature, noise: Tensor) -> Tensor:
    """The value of `relaxed_bernoulli`, in float32 at least."""
    wide, tau, noise = to_opmath(logits, tau, noise)
    u = noise.clamp(min=torch.finfo(noise.dtype).tiny)  # less than any other number of half precision
    # Its rules multiply no infinity by a slope of 0, at any temperature.
    return Sigmoidal.apply(wide - (u.log() - torch.log1p(-u)), tau, "smooth", False)
