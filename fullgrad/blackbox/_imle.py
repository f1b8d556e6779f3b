"""`imle`."""

from collections.abc import Callable
from typing import Any

from torch import Generator, Tensor

from fullgrad._core import checks
from fullgrad._core.noise import gumbel_like, scaled_noise
from fullgrad._core.opmath import cast
from fullgrad._dispatch import of_one_instance
from fullgrad._engine.blackbox import Code, point
from fullgrad._engine.node import one_node
from fullgrad.blackbox._differences import difference_of_solutions


@of_one_instance
@one_node
def imle(
    solver: Callable[[Tensor], Any],
    x: Tensor,
    *,
    lam: float = 1.0,
    noise_scale: float = 1.0,
    noise: Tensor | None = None,
    generator: Generator | None = None,
    vmap_method: str = "sequential",
) -> Tensor:
    r"""A random solution, with the gradient of implicit maximum likelihood: a difference of two solutions.

    .. math::
        y = s(x + c\,G), \quad s(\theta) = \operatorname{argmax}_y \langle y, \theta \rangle, \qquad
        \mathrm{vjp}(g) = \frac{s(x + c\,G) - s(x - \lambda g + c\,G)}{\lambda}

    for a solver that maximizes: the perturbed solution is a sample, and the gradient moves x towards the solution that the loss
    prefers. It calls the solver once, with the same noise. It is piecewise constant and not linear in the cotangent, so there is
    no tangent and forward mode raises; higher derivatives are 0. An element of minus infinity stays there. Saved: ``x``, the
    noise and the solution. For the k largest elements, `fullgrad.sampling.imle_topk` is the same and faster.

    Args:
        solver: A function of one tensor, any code, which returns the y of the shape of ``x`` that maximizes
            :math:`\langle y, x \rangle`. For one that minimizes costs c, ``imle(lambda x: solver(-x), -c)``. It gets float32 in
            place of half precision.
        x: The weights of one instance, any shape; floating. A batch is a dimension of `torch.func.vmap`.
        lam: How far the weights move along the gradient, positive.
        noise_scale: The factor c of the noise, not negative; 0 for the solution without noise, which draws none.
        noise: Noise G of the shape of ``x``, a constant; None to draw Gumbel noise. The paper's is a sum of Gamma variables.
        generator: Draws it; None for torch's default generator.
        vmap_method: As in :func:`perturbed`, of a tensor without draws.

    Returns:
        A tensor of the shape and dtype of ``x``.

    Raises:
        TypeError: ``solver`` is not callable or returns no numbers, ``x`` or ``noise`` is not a floating tensor, or another
            argument has a wrong type.
        ValueError: ``lam`` is not positive, ``noise_scale`` is negative, ``noise`` has another shape or is given with a
            generator, ``vmap_method`` is another string, or a solution has not the shape of ``x``.
        RuntimeError: ``solver`` changes its argument in place, or uses another tensor that needs a derivative.
        NotImplementedError: A forward-mode derivative is taken.

    Example:
        >>> import torch, fullgrad
        >>> def largest(x):
        ...     return torch.nn.functional.one_hot(x.argmax(), 3)
        >>> x, noise = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([2.5, 0.1, 0.2])
        >>> fullgrad.blackbox.imle(largest, x, noise=noise)
        tensor([1., 0., 0.])
        >>> torch.func.grad(lambda x: fullgrad.blackbox.imle(largest, x, noise=noise) @ torch.tensor([1.0, 0.0, -1.0]))(x)
        tensor([ 1.,  0., -1.])

    Source: Niepert, Minervini, Franceschi, Implicit MLE, https://arxiv.org/abs/2106.01798.
    """
    name = "imle"
    code = Code(name, "solver", solver, vmap_method, None)
    wide = point(name, x)
    checks.positive_number(name, "lam", lam)
    found = scaled_noise(name, wide, noise_scale, noise, generator, gumbel_like)
    moved = None if found is None else float(noise_scale) * found.to(wide.dtype)
    return cast(difference_of_solutions(name, code, wide, moved, float(lam), minimizes=False), x.dtype)
