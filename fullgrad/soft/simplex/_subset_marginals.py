"""`subset_marginals`."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.opmath import to_opmath
from fullgrad._core.recomputed import Recomputed, pulled_back, saved_inputs
from fullgrad.soft._relaxation import floating
from fullgrad.soft.simplex._capped_simplex import has_answer

# The logarithm of 0: finite, so that differences have slopes, and below every sum of logits.
_LOG_0 = -1e30


def subset_marginals(logits: Tensor, k: int, dim: int = -1) -> Tensor:
    r"""The probabilities that the elements are in a random subset of k.

    .. math::
        \mu_i = P(z_i = 1) = \frac{\partial \log E_k}{\partial \theta_i}, \qquad
        P(z) = \frac{e^{\langle \theta, z \rangle}}{E_k}, \quad z \in \{0, 1\}^n, \ \sum z = k, \qquad
        D = \operatorname{Cov}(z)

    with :math:`E_k` the elementary symmetric polynomial of :math:`e^\theta`. The probabilities sum to k; with k = 1 they are
    a softmax. The derivative is symmetric, and the true one at every order. Computed by a balanced tree of products of
    polynomials, in logarithms: nothing overflows. A logit far above all others, by a million in float32, costs digits of theirs;
    float64 has more.
    Saved: ``logits``.

    Args:
        logits: The logits θ, any shape; floating, or integer (which gives the default dtype).
        k: The size of the subset.
        dim: The dimension of the elements.

    Returns:
        A tensor of the shape of ``logits``. A row is NaN where it has a NaN or plus infinity, or fewer than k finite
        logits; minus infinity among others has the probability 0.

    Raises:
        TypeError: ``logits`` is not a real tensor, or ``k`` or ``dim`` is not an integer.
        ValueError: ``k`` is not from 0 to the number of elements.
        IndexError: ``logits`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.subset_marginals(torch.tensor([0.3, 0.6, 0.5, 0.2]), 2)
        tensor([0.4665, 0.5663, 0.5335, 0.4337])

    Source: Ahmed et al., https://arxiv.org/abs/2210.01941; Swersky et al., https://papers.nips.cc/paper/4702.
    """
    name = "subset_marginals"
    checks.real_tensor(name, "logits", logits)
    logits = floating(logits)
    checks.one_dim(name, dim, logits.ndim)
    n = logits.shape[dim] if logits.ndim else 1
    checks.integer_between(name, "k", k, 0, n)
    if not logits.ndim:
        return SubsetMarginals.apply(logits.reshape(1), k).reshape(())
    return SubsetMarginals.apply(logits.movedim(dim, -1), k).movedim(-1, dim)


class SubsetMarginals(Recomputed):
    """The operator of :func:`subset_marginals`, on rows. The tree is rebuilt for each derivative."""

    @staticmethod
    def forward(logits: Tensor, k: int) -> Tensor:
        return marginals(logits, k)

    relaxed = forward

    @classmethod
    def jvp(cls, ctx: Any, t: Tensor, _: None) -> Tensor:
        # The derivative is a covariance: it is symmetric.
        return pulled_back(marginals, saved_inputs(ctx), (0,), t)[0]


def marginals(logits: Tensor, k: int) -> Tensor:
    """The probabilities, in plain code that autograd can differentiate: up the tree for the polynomials of the nodes, down it
    for the polynomials of all elements outside of each node.
    """
    (theta,) = to_opmath(logits)
    n = int(theta.shape[-1])  # a tensor to torch.jit.trace
    if k == 0 or k == n:
        theta = theta * has_answer(theta, k)
        return (0 * torch.where(theta.isinf(), 0, theta) + float(k > 0)).to(logits.dtype)
    theta = theta * has_answer(theta, k)
    top = theta.amax(-1, keepdim=True)
    theta = theta - top.detach()  # changes no probability
    theta = torch.where(theta == -torch.inf, _LOG_0, theta)
    size = 1 << (n - 1).bit_length()
    theta = torch.nn.functional.pad(theta, (0, size - n), value=_LOG_0)
    level = torch.stack((torch.zeros_like(theta), theta), -1)  # (…, node, degree), of the polynomials 1 + e^theta x
    tree = [level]
    while level.shape[-2] > 1:
        level = _product(level[..., 0::2, :], level[..., 1::2, :], min(k, 2 * (level.shape[-1] - 1)))
        tree.append(level)
    total = tree.pop()[..., 0, k : k + 1]
    # For each number of elements that a node takes: the weight of all ways in which the others take the rest.
    root = torch.where(torch.arange(k + 1, device=theta.device) == k, 0.0, _LOG_0).to(theta)
    outside = root.expand(*theta.shape[:-1], 1, k + 1)
    for level in reversed(tree):
        siblings = torch.stack((level[..., 1::2, :], level[..., 0::2, :]), -2).flatten(-3, -2)
        outside = _correlation(outside.repeat_interleave(2, -2), siblings, level.shape[-1] - 1)
    mu = torch.exp(outside[..., :n, 1] + theta[..., :n] - total)
    return mu.to(logits.dtype)


def _product(a: Tensor, b: Tensor, degree: int) -> Tensor:
    """The product of polynomials in logarithms, up to a degree: the coefficient of degree d sums a_i b_{d-i} over i."""
    m = a.shape[-1]
    b = torch.nn.functional.pad(b, (m - 1, max(degree + 1 - b.shape[-1], 0)), value=_LOG_0)
    shifted = torch.stack([b[..., m - 1 - i : m + degree - i] for i in range(m)], -1)
    return (shifted + a.unsqueeze(-2)).logsumexp(-1)


def _correlation(a: Tensor, b: Tensor, degree: int) -> Tensor:
    """The sums over i of a_{d+i} b_i in logarithms, for d up to a degree."""
    m = b.shape[-1]
    a = torch.nn.functional.pad(a, (0, max(degree + m - a.shape[-1], 0)), value=_LOG_0)
    shifted = torch.stack([a[..., i : i + degree + 1] for i in range(m)], -1)
    return (shifted + b.unsqueeze(-2)).logsumexp(-1)
