"""`gumbel_sinkhorn`."""

from torch import Generator, Tensor

from fullgrad._core import checks
from fullgrad._core.noise import gumbel_like, noise_for
from fullgrad._core.opmath import wide_dtype
from fullgrad._dispatch import at_least, holds, uses_last_dims
from fullgrad.sampling._arguments import Temperature
from fullgrad.soft import proj_transport_polytope


@uses_last_dims(2)
def gumbel_sinkhorn(
    scores: Tensor, tau: Temperature = 1.0, *, noise: Tensor | None = None, generator: Generator | None = None
) -> Tensor:
    r"""A random doubly stochastic matrix that is close to a permutation at a low temperature.

    .. math::
        y = \lim_{m \to \infty} \operatorname{Sinkhorn}^m \Bigl(\exp \frac{S + G}{\tau}\Bigr)

    whose rows and columns sum to 1. The operator is :func:`fullgrad.soft.proj_transport_polytope` of the cost :math:`-(S + G)`,
    with its derivative, the true one of every order, of the noise too. Saved: what it saves.
    On a device the host waits for the solver, each round of which looks at numbers.

    Args:
        scores: The scores S, shape (…, n, n); floating.
        tau: The temperature, positive: a number, or a tensor that broadcasts with ``scores``, of size 1 in the last two
            dimensions.
        noise: Gumbel noise G of the shape of ``scores``; None to draw it.
        generator: Draws it; None for torch's default generator.

    Returns:
        A tensor of the shape and dtype of ``scores``. NaN or infinity make their matrix NaN.

    Raises:
        TypeError: ``scores`` or ``noise`` is not a floating tensor, or another argument has a wrong type.
        ValueError: ``scores`` are not square, ``tau`` is a number that is not positive, or ``noise`` has another shape or is
            given with a generator.
        RuntimeError: The solver did not converge.

    Example:
        >>> import torch, fullgrad
        >>> s, noise = torch.tensor([[0.0, 1.0], [0.5, 0.5]]), torch.tensor([[2.5, 0.1], [0.2, 0.0]])
        >>> fullgrad.sampling.gumbel_sinkhorn(s, noise=noise)
        tensor([[0.6457, 0.3543],
                [0.3543, 0.6457]])

    Source: Mena et al., https://arxiv.org/abs/1802.08665.
    """
    name = "gumbel_sinkhorn"
    checks.floating_tensor(name, "scores", scores)
    checks.positive_number_or_tensor(name, "tau", tau)
    if scores.ndim < 2 or not holds(scores.shape[-1] == scores.shape[-2]):
        raise ValueError(f"{name}: `scores` must be square matrices (…, n, n), got shape {tuple(scores.shape)}.")
    noise = noise_for(name, scores, noise, generator, gumbel_like)
    shares = scores.detach().new_full(scores.shape[-1:], 1 / at_least(scores.shape[-1], 1), dtype=wide_dtype(scores))
    return proj_transport_polytope(-(scores + noise), shares, shares, tau).to(scores.dtype)
