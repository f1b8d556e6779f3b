"""`gumbel_rao`."""

import torch
from torch import Generator, Tensor

from fullgrad._core import checks
from fullgrad._core.noise import gumbel_like, noise_for
from fullgrad._core.opmath import to_opmath
from fullgrad._core.shards import with_whole_rows
from fullgrad.functions import replace_grad
from fullgrad.sampling._arguments import Temperature, check_rows, check_temperature
from fullgrad.sampling._rows import largest, over_temperature


def gumbel_rao(
    logits: Tensor,
    tau: Temperature = 1.0,
    samples: int = 10,
    dim: int = -1,
    *,
    noise: Tensor | None = None,
    generator: Generator | None = None,
) -> Tensor:
    r"""A random class as a one-hot vector, with the derivative of Gumbel-softmax averaged over noise that gives that class.

    .. math::
        y = e_i, \quad i = \arg\max_j (\theta_j + G^0_j), \qquad
        D = \text{that of } \frac1K \sum_k \operatorname{softmax}\Bigl(\frac{\theta + c^k}{\tau}\Bigr), \quad c^k = G^k - \theta

    with constants :math:`c^k`: scores :math:`G^k` of new noise n, given that the largest is that of i,

    .. math::
        G_i = n_i + \log \sum_j e^{\theta_j}, \qquad G_j = -\log(e^{-n_j - \theta_j} + e^{-G_i})

    The mean is that of :func:`gumbel_softmax` with ``hard``; the variance is less, the more samples. A logit of minus infinity is
    a class that is never drawn and has the gradient 0. Saved: K softmaxes.

    Args:
        logits: The logits θ, any shape; floating.
        tau: The temperature, positive: a number, or a tensor that broadcasts and gets its own gradient.
        samples: K, the number of samples of the noise.
        dim: The dimension of the classes.
        noise: Gumbel noise of the shape (K + 1, \*logits.shape), a constant, whose first row draws the class; None to draw it.
        generator: Draws it; None for torch's default generator.

    Returns:
        A tensor of the shape and dtype of ``logits``. A row is NaN where it has a NaN or infinity, or all are minus infinity.

    Raises:
        TypeError: ``logits`` or ``noise`` is not a floating tensor, or another argument has a wrong type.
        ValueError: ``tau`` is a number that is not positive or does not broadcast, ``samples`` is not positive, or ``noise`` has
            another shape or is given with a generator.
        IndexError: ``logits`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x, noise = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([[2.5, 0.1, 0.2], [0.0, 0.1, 0.2], [1.0, 0.0, 0.5]])
        >>> torch.func.grad(lambda x: fullgrad.sampling.gumbel_rao(x, samples=2, noise=noise) @ torch.arange(3.0))(x)
        tensor([-0.3762,  0.0370,  0.3392])

    Source: Paulus, Maddison, Krause, https://arxiv.org/abs/2010.04838.
    """
    name = "gumbel_rao"
    dim = check_rows(name, "logits", logits, dim)
    check_temperature(name, "tau", tau, logits)
    samples = checks.positive_integer(name, "samples", samples, 2**31)
    logits = with_whole_rows(logits, dim)
    noise = noise_for(name, logits, noise, generator, gumbel_like, (samples + 1,))
    wide, tau = to_opmath(logits, tau)
    x, n = wide.detach(), noise.detach()
    sample, index = largest(x + n[0], dim, logits.dtype)
    if not logits.ndim:
        return torch.softmax(logits, -1)
    scores = given_largest(x, index, n[1:], dim)
    # A class of minus infinity is masked, and its score stays minus infinity.
    shift = torch.where(x == -torch.inf, 0, scores - x)
    soft = torch.softmax(over_temperature(wide + shift, tau), dim).mean(0)
    return replace_grad(sample, soft.to(logits.dtype))


def given_largest(x: Tensor, index: Tensor, noise: Tensor, dim: int) -> Tensor:
    """Gumbel scores of logits, given which one is the largest; ``noise`` may have more dimensions in front."""
    index = index.expand(*noise.shape[: noise.ndim - x.ndim], *index.shape)
    top = noise.gather(dim, index) + x.logsumexp(dim, keepdim=True)
    return (-torch.logaddexp(-noise - x, -top)).scatter(dim, index, top)
