"""`gumbel_topk`."""

import torch
from torch import Generator, Tensor

from fullgrad._core.noise import gumbel_like, noise_for
from fullgrad._core.opmath import to_opmath
from fullgrad._core.recomputed import Recomputed
from fullgrad._core.shards import with_whole_rows
from fullgrad.sampling._arguments import Temperature, check_count, check_rows, check_temperature
from fullgrad.sampling._rows import largest, over_temperature


def gumbel_topk(
    logits: Tensor,
    k: int,
    tau: Temperature = 1.0,
    hard: bool = False,
    dim: int = -1,
    *,
    noise: Tensor | None = None,
    generator: Generator | None = None,
) -> Tensor:
    r"""Random weights that are close to a subset of k classes at a low temperature, or that subset with their derivative.

    .. math::
        y = \sum_{j=1}^k a_j, \qquad a_j = \operatorname{softmax}(\alpha_j / \tau), \qquad \alpha_1 = \theta + G, \quad
        \alpha_{j+1} = \alpha_j + \log(1 - a_j)

    ``hard``: ones at the k largest of :math:`\theta + G`, a sample without replacement, with the same derivative. The derivative
    is the true one of the weights, at every order, of the noise too. A logit of minus infinity is a class that is never drawn and
    has the gradient 0. Saved: inputs and the noise; the k softmaxes are computed again.

    Args:
        logits: The logits θ, any shape; floating.
        k: The size of the subset.
        tau: The temperature, positive: a number, or a tensor that broadcasts and gets its own gradient.
        hard: Whether the value is of zeros and ones.
        dim: The dimension of the classes.
        noise: Gumbel noise G of the shape of ``logits``; None to draw it.
        generator: Draws it; None for torch's default generator.

    Returns:
        A tensor of the shape and dtype of ``logits``. A row is NaN where it has a NaN or infinity, or fewer than k finite logits;
        it is 0 for k = 0.

    Raises:
        TypeError: ``logits`` or ``noise`` is not a floating tensor, or another argument has a wrong type.
        ValueError: ``k`` is not from 0 to the number of classes, ``tau`` is a number that is not positive or does not broadcast,
            or ``noise`` has another shape or is given with a generator.
        IndexError: ``logits`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x, noise = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([2.5, 0.1, 0.2])
        >>> fullgrad.sampling.gumbel_topk(x, 2, noise=noise)
        tensor([0.9251, 0.3075, 0.7674])
        >>> fullgrad.sampling.gumbel_topk(x, 2, hard=True, noise=noise)
        tensor([1., 0., 1.])

    Source: Xie, Ermon, https://arxiv.org/abs/1901.10517; Kool, van Hoof, Welling, https://arxiv.org/abs/1903.06059.
    """
    name = "gumbel_topk"
    dim = check_rows(name, "logits", logits, dim)
    k = check_count(name, k, logits, dim)
    check_temperature(name, "tau", tau, logits)
    logits = with_whole_rows(logits, dim)
    noise = noise_for(name, logits, noise, generator, gumbel_like)
    if not logits.ndim:
        return gumbel_topk(logits.reshape(1), k, tau, hard, noise=noise.reshape(1)).reshape(())
    if isinstance(tau, Tensor):
        tau = tau.expand(logits.shape).movedim(dim, -1)
    y = GumbelTopK.apply(logits.movedim(dim, -1), noise.movedim(dim, -1), tau, k, bool(hard))
    return y.movedim(-1, dim)


class GumbelTopK(Recomputed):
    """The operator of :func:`gumbel_topk`, of rows."""

    @staticmethod
    def forward(logits: Tensor, noise: Tensor, tau: Temperature, k: int, hard: bool) -> Tensor:
        if hard:
            return largest(to_opmath(logits)[0] + noise, -1, logits.dtype, k)[0]
        return GumbelTopK.relaxed(logits, noise, tau, k, hard)

    @staticmethod
    def relaxed(logits: Tensor, noise: Tensor, tau: Temperature, k: int, hard: bool) -> Tensor:
        wide, tau = to_opmath(logits, tau)
        scores = wide + noise
        total = torch.where((scores.detach() > -torch.inf).sum(-1, keepdim=True) < k, torch.nan, torch.zeros_like(scores))
        for j in range(k):
            a = torch.softmax(over_temperature(scores, tau), -1)
            total = total + a
            if j < k - 1:
                scores = scores + log_of_rest(a, scores, tau)
        return total.to(logits.dtype)


def log_of_rest(a: Tensor, scores: Tensor, tau: Temperature) -> Tensor:
    """log(1 - a): for an element above 1/2, the logarithm of the sum of the others."""
    most = a.detach() > 0.5
    z = over_temperature(scores, tau)
    others = torch.where(most, -torch.inf, z).logsumexp(-1, keepdim=True) - z.logsumexp(-1, keepdim=True)
    return torch.where(most, others, torch.log1p(-torch.where(most, 0, a)))
