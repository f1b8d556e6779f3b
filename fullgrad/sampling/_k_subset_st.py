"""`k_subset_st`."""

import torch
from torch import Generator, Tensor

from fullgrad._core.noise import noise_for
from fullgrad._core.opmath import to_opmath
from fullgrad._core.recomputed import Recomputed
from fullgrad._dispatch import opaque
from fullgrad.sampling._arguments import check_count, check_rows
from fullgrad.soft.simplex import subset_marginals


def k_subset_st(
    logits: Tensor, k: int, dim: int = -1, *, noise: Tensor | None = None, generator: Generator | None = None
) -> Tensor:
    r"""A random subset of k classes, with the derivative of the probabilities of its elements.

    .. math::
        y = z, \quad P(z) = \frac{e^{\langle \theta, z \rangle}}{E_k}, \quad z \in \{0, 1\}^n, \ \sum z = k, \qquad
        D = \text{that of } \mu, \quad \mu_i = P(z_i = 1)

    at every order, with :math:`\mu` of :func:`fullgrad.soft.subset_marginals` and :math:`E_k` the elementary symmetric polynomial
    of :math:`e^\theta`. The draw is exact: in order, i is taken where
    :math:`u_i < e^{\theta_i} E_{j-1}(i + 1, \dots) / E_j(i, \dots)`, with j still to take. The distribution is not that of
    :func:`gumbel_topk`, which draws the elements one by one. The cost is O(n k). A logit of minus infinity is a class that is
    never drawn and has the gradient 0. Saved: ``logits``.

    Args:
        logits: The logits θ, any shape; floating.
        k: The size of the subset.
        dim: The dimension of the classes.
        noise: Uniform numbers u in [0, 1) of the shape of ``logits``, a constant; None to draw them.
        generator: Draws them; None for torch's default generator.

    Returns:
        A tensor of the shape and dtype of ``logits``. A row is NaN where it has a NaN or infinity, or fewer than k finite logits.

    Raises:
        TypeError: ``logits`` or ``noise`` is not a floating tensor, or another argument has a wrong type.
        ValueError: ``k`` is not from 0 to the number of classes, or ``noise`` has another shape or is given with a generator.
        IndexError: ``logits`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x, u = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.9, 0.3, 0.3])
        >>> fullgrad.sampling.k_subset_st(x, 2, noise=u)
        tensor([0., 1., 1.])

    Source: Ahmed et al., https://arxiv.org/abs/2210.01941.
    """
    name = "k_subset_st"
    dim = check_rows(name, "logits", logits, dim)
    k = check_count(name, k, logits, dim)
    noise = noise_for(name, logits, noise, generator).detach()
    if not logits.ndim:
        return k_subset_st(logits.reshape(1), k, noise=noise.reshape(1)).reshape(())
    return KSubsetST.apply(logits.movedim(dim, -1), noise.movedim(dim, -1), k).movedim(-1, dim)


class KSubsetST(Recomputed):
    """The operator of :func:`k_subset_st`, of rows."""

    @staticmethod
    @opaque("subset_sample", fake=lambda logits, noise, k: torch.empty_like(logits, memory_format=torch.contiguous_format))
    def forward(logits: Tensor, noise: Tensor, k: int) -> Tensor:
        """The value, from the polynomials of all suffixes of a row, in logarithms."""
        theta, u = to_opmath(logits)[0].movedim(-1, 0), noise.movedim(-1, 0)
        n, shape = theta.shape[0], theta.shape[1:]
        known = (theta == theta).all(0)
        if n:
            top = theta.amax(0)
            known &= top < torch.inf
            theta = theta - torch.where(top.isfinite(), top, 0)  # changes no probability, and keeps the digits of a sum
        never = theta.new_full((*shape, 1), -torch.inf)
        # log E_j, from j = -1, where it is minus infinity, to k, of the elements from i on.
        polynomial = torch.cat((never, torch.zeros_like(never), never.expand(*shape, k)), -1)
        suffixes = [polynomial]
        for i in range(n - 1, 0, -1):
            taken = torch.cat((never, polynomial[..., :-1] + theta[i].unsqueeze(-1)), -1)
            polynomial = torch.logaddexp(polynomial, taken)
            suffixes.append(polynomial)
        left = torch.full((*shape, 1), k + 1, dtype=torch.int64, device=theta.device)  # the position of E_j
        chosen = []
        for i in range(n):
            rest = suffixes.pop()
            without, with_it = rest.gather(-1, left), rest.gather(-1, (left - 1).clamp(min=0)) + theta[i].unsqueeze(-1)
            take = u[i].unsqueeze(-1) < torch.exp(with_it - torch.logaddexp(without, with_it))
            left = left - take.to(left.dtype)
            chosen.append(take)
        sample = torch.cat(chosen, -1) if chosen else torch.zeros_like(logits, dtype=torch.bool)
        known &= left.squeeze(-1) == 1
        return torch.where(known.unsqueeze(-1), sample.to(logits.dtype), torch.nan)

    @staticmethod
    def relaxed(logits: Tensor, noise: Tensor, k: int) -> Tensor:
        return subset_marginals(logits, k)
