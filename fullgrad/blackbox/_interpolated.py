"""`interpolated`."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.opmath import cast
from fullgrad._dispatch import of_one_instance
from fullgrad._engine.blackbox import Code, point
from fullgrad._engine.node import one_node
from fullgrad.blackbox._differences import difference_of_solutions


@of_one_instance
@one_node
def interpolated(solver: Callable[[Tensor], Any], x: Tensor, lam: float = 1.0, *, vmap_method: str = "sequential") -> Tensor:
    r"""A solution, with the gradient of an interpolation of the loss between two solutions.

    .. math::
        y = s(x), \quad s(x) = \operatorname{argmin}_y \langle y, x \rangle, \qquad
        \mathrm{vjp}(g) = -\frac{s(x) - s(x + \lambda g)}{\lambda}

    for a solver that minimizes costs x. The gradient is that of a piecewise linear interpolation of the loss, which is linearized
    at the solution; the larger :math:`\lambda`, the wider the pieces. It calls the solver once. As a function of the cotangent
    it is piecewise constant and not linear, so there is no tangent and forward mode raises; higher derivatives are 0. Saved:
    ``x`` and the solution.

    Args:
        solver: A function of one tensor, any code, which returns the y of the shape of ``x`` that minimizes
            :math:`\langle y, x \rangle`. For a solver that maximizes, see :func:`imle` with ``noise_scale=0``, which has the
            signs of this one for rewards. It gets float32 in place of half precision.
        x: The costs of one instance, any shape; floating. A batch is a dimension of `torch.func.vmap`.
        lam: How far the costs move along the gradient, positive. Gradients are 0 where the move does not change the solution.
        vmap_method: As in :func:`perturbed`, of a tensor without draws.

    Returns:
        A tensor of the shape and dtype of ``x``.

    Raises:
        TypeError: ``solver`` is not callable or returns no numbers, ``x`` is not a floating tensor, or ``lam`` is not a number.
        ValueError: ``lam`` is not positive, ``vmap_method`` is another string, or a solution has not the shape of ``x``.
        RuntimeError: ``solver`` changes its argument in place, or uses another tensor that needs a derivative.
        NotImplementedError: A forward-mode derivative is taken.

    Example:
        >>> import torch, fullgrad
        >>> def cheapest(x):
        ...     return torch.nn.functional.one_hot(x.argmin(), 3)
        >>> x = torch.tensor([1.0, 2.0, 4.0])
        >>> fullgrad.blackbox.interpolated(cheapest, x)
        tensor([1., 0., 0.])
        >>> torch.func.grad(lambda x: fullgrad.blackbox.interpolated(cheapest, x, 0.5) @ torch.tensor([3.0, 0.0, 0.0]))(x)
        tensor([-2.,  2.,  0.])

    Source: Vlastelica, Paulus, Musil, Martius, Rolínek, Differentiation of blackbox combinatorial solvers,
    https://arxiv.org/abs/1912.02175.
    """
    name = "interpolated"
    code = Code(name, "solver", solver, vmap_method, None)
    wide = point(name, x)
    checks.positive_number(name, "lam", lam)
    return cast(difference_of_solutions(name, code, wide, None, float(lam), minimizes=True), x.dtype)
