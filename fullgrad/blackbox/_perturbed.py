"""`perturbed`."""

from collections.abc import Callable
from typing import Any

from torch import Generator, Tensor

from fullgrad._core.opmath import cast
from fullgrad._dispatch import of_one_instance
from fullgrad._engine.blackbox import Code, point
from fullgrad._engine.node import one_node
from fullgrad.blackbox._mean_of_draws import drawn, mean_of_draws


@of_one_instance
@one_node
def perturbed(
    solver: Callable[[Tensor], Any],
    x: Tensor,
    *,
    samples: int = 1,
    sigma: float = 1.0,
    distribution: str = "normal",
    noise: Tensor | None = None,
    generator: Generator | None = None,
    vmap_method: str = "sequential",
    like: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    r"""The mean of a solver's results for a perturbed argument, with an unbiased estimator of the derivative of its expectation.

    .. math::
        y = \frac1S \sum_{i=1}^S y_i, \quad y_i = s(x + \sigma Z_i), \qquad
        D(x)\,t = \frac1{\sigma S} \sum_{i=1}^S (y_i - b_i) \langle \nu(Z_i), t \rangle

    where :math:`\nu(z)` is :math:`z` for normal and :math:`1 - e^{-z}` for Gumbel noise, and the baseline :math:`b_i` is the mean
    of the other draws, or 0 if there is one draw: it leaves the expectation as it is, and makes the variance smaller. Value and
    derivative share the draws; a derivative calls no solver. Derivatives of higher order are those of the mean in which each draw
    is weighted by the quotient of the densities of the noise at x and at its present value, and unbiased, too; their
    variance grows with the order. An infinite element of x has the gradient 0. Saved: ``x``, the noise and the results.

    For Gumbel noise and the argmax the expectation is the softmax of :math:`x / \sigma`. The solver may minimize or maximize; it
    may be any function, also one that is constant almost everywhere.

    Args:
        solver: A function of one tensor, any code, which gets tensors without a derivative and returns one tensor, array or
            number, of any shape. It gets float32 in place of half precision.
        x: Any shape; floating.
        samples: The number of draws S.
        sigma: The scale of the noise, positive.
        distribution: ``"normal"`` or ``"gumbel"``.
        noise: Noise Z of the shape ``(samples, *x.shape)``, a constant of that distribution; None to draw it.
        generator: Draws it; None for torch's default generator.
        vmap_method: How the solver is called. ``"sequential"``: for each draw, and each sample of `torch.func.vmap`, by itself;
            ``"broadcast"``: once, on a tensor with the draws in front, and before these the batches; ``"map"``: inside
            `torch.func.vmap`, for torch code.
        like: For compiled code where the result has not the shape of ``x``: a function of x that returns an empty tensor of the
            shape of the result.

    Returns:
        A tensor of the shape of the solver's result, and the dtype of ``x``.

    Raises:
        TypeError: ``solver`` is not callable or returns no numbers, ``x`` or ``noise`` is not a floating tensor, or another
            argument has a wrong type.
        ValueError: ``samples`` or ``sigma`` is not positive, ``noise`` has another shape or is given with a generator, a name is
            not one of the choices, or a result lacks the dimensions in front.
        RuntimeError: ``solver`` changes its argument in place, or uses another tensor that needs a derivative.

    Example:
        >>> import torch, fullgrad
        >>> def argmax(x):
        ...     return torch.nn.functional.one_hot(x.argmax(), 3)
        >>> x, noise = torch.tensor([1.0, 2.0, 0.0]), torch.tensor([[0.0, 1.0, 0.0], [2.0, -1.0, 0.0]])
        >>> fullgrad.blackbox.perturbed(argmax, x, samples=2, noise=noise)
        tensor([0.5000, 0.5000, 0.0000])
        >>> torch.func.jacrev(lambda x: fullgrad.blackbox.perturbed(argmax, x, samples=2, noise=noise))(x)
        tensor([[ 1., -1.,  0.],
                [-1.,  1.,  0.],
                [ 0.,  0.,  0.]])

    Source: Berthet, Blondel, Teboul, Cuturi, Vert, Bach, Learning with differentiable perturbed optimizers,
    https://arxiv.org/abs/2002.08676.
    """
    name = "perturbed"
    code = Code(name, "solver", solver, vmap_method, like)
    wide = point(name, x)
    z = drawn(name, wide, samples, sigma, distribution, noise, generator)
    y, _ = code.first(wide.detach() + sigma * z, draws=True)
    return cast(mean_of_draws(wide, y, z, float(sigma), distribution), x.dtype)
