"""`plackett_luce_st`."""

from typing import Any

from torch import Generator, Tensor

from fullgrad._core import checks
from fullgrad._core.noise import gumbel_like, noise_for
from fullgrad._core.opmath import to_opmath
from fullgrad._core.shards import with_whole_rows
from fullgrad.sampling._arguments import Temperature, check_rows
from fullgrad.sampling._rows import largest
from fullgrad.soft.order import argsort_st
from fullgrad.soft.order.methods import PERMUTATION_METHODS, PermutationMethod


def plackett_luce_st(
    scores: Tensor,
    tau: Temperature = 1.0,
    dim: int = -1,
    method: PermutationMethod = "softsort",
    *,
    noise: Tensor | None = None,
    generator: Generator | None = None,
) -> Tensor:
    r"""A random order as a permutation matrix, the best first, with the derivative of a soft order.

    .. math::
        y = e_{\operatorname{argsort}(s + G)}, \qquad P(\pi) = \prod_i \frac{e^{s_{\pi_i}}}{\sum_{j \ge i} e^{s_{\pi_j}}}, \qquad
        D = \text{that of } \operatorname{argsort}_{\text{soft}}(s + G)

    at every order, of the noise too, with :func:`fullgrad.soft.argsort` of softness :math:`\tau`, descending and not
    standardized. Saved: the scores with the noise.

    Args:
        scores: The scores s, any shape; floating.
        tau: The softness of the derivative, positive: a number, or a 0-dimensional tensor, which has a gradient.
        dim: The dimension of the elements.
        method: ``"softsort"``, ``"neuralsort"``, ``"ot"`` or ``"sorting_network"``.
        noise: Gumbel noise G of the shape of ``scores``; None to draw it.
        generator: Draws it; None for torch's default generator.

    Returns:
        Zeros and ones: the positions where ``dim`` was, and the elements in a new last dimension. A row with NaN or
        infinity is NaN, or where all are minus infinity. Some elements of minus infinity are the last, in their order; the
        gradient of their row is NaN: to learn, mask by a number far below the other scores.

    Raises:
        TypeError: ``scores`` or ``noise`` is not a floating tensor, or another argument has a wrong type.
        ValueError: ``tau`` is a number that is not positive or a tensor with dimensions, ``method`` is unknown, or ``noise`` has
            another shape or is given with a generator.
        IndexError: ``scores`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> s, noise = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([2.5, 0.1, 0.2])
        >>> fullgrad.sampling.plackett_luce_st(s, noise=noise)
        tensor([[1., 0., 0.],
                [0., 0., 1.],
                [0., 1., 0.]])

    Source: Plackett, https://doi.org/10.2307/2346567; Grover et al., https://arxiv.org/abs/1903.08850; Prillo, Eisenschlos,
    https://arxiv.org/abs/2006.16038 (softsort); ``softjax.random.permutation_st``.
    """
    name = "plackett_luce_st"
    dim = check_rows(name, "scores", scores, dim)
    checks.positive_number_or_tensor(name, "tau", tau)
    if isinstance(tau, Tensor) and tau.ndim:
        raise ValueError(f"{name}: `tau` must be a number or a tensor without dimensions, got shape {tuple(tau.shape)}.")
    checks.choice(name, "method", method, PERMUTATION_METHODS)
    scores = with_whole_rows(scores, dim)
    noise = noise_for(name, scores, noise, generator, gumbel_like)
    noisy: Any = to_opmath(scores)[0] + noise
    first, _ = largest(noisy.detach(), dim, noisy.dtype)  # a one-hot vector, or NaN
    permutation = argsort_st(noisy, dim, True, tau, method=method, standardize=False)
    return (permutation * first.sum(dim, keepdim=True).unsqueeze(-1)).to(scores.dtype)
