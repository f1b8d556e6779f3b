"""`negative_identity`."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.opmath import cast
from fullgrad._dispatch import of_one_instance, surely
from fullgrad._engine.blackbox import Code, point
from fullgrad._engine.differentiated import is_differentiated
from fullgrad._engine.node import one_node
from fullgrad._engine.rule import Maybe, Rule, declared

_PROJECTIONS = ("none", "mean", "norm", "both")


@of_one_instance
@one_node
def negative_identity(
    solver: Callable[[Tensor], Any],
    x: Tensor,
    *,
    maximize: bool = False,
    projection: str = "none",
    vmap_method: str = "sequential",
) -> Tensor:
    r"""A solution, with the negative identity as the derivative by the costs.

    .. math::
        y = s(p(x)), \quad s(x) = \operatorname{argmin}_y \langle y, x \rangle, \qquad D(x) = -p'(x)

    for a solver that minimizes costs, and :math:`D(x) = p'(x)` for one that maximizes weights: where the loss wants less of an
    element of the solution, its cost grows. The derivative is linear, so that there is forward mode, and calls no solver. The
    projection p takes out of the costs, and of their gradients, what does not change a solution; its derivative is the true one,
    at every order. An infinite cost, which forbids or forces an element, is left out of the projection: it stays, as a constant.
    Saved: ``x``, if there is a projection.

    Args:
        solver: A function of one tensor, any code, which returns a solution of the shape of ``x``. It gets float32 in place of
            half precision.
        x: The costs of one instance, any shape; floating. A batch is a dimension of `torch.func.vmap`.
        maximize: Whether the solver maximizes.
        projection: ``"none"``; ``"mean"``, :math:`p(x) = x - \bar x` with the mean of all elements, for solutions that all have
            the same number of ones; ``"norm"``, :math:`p(x) = x / \|x\|`; ``"both"``, first the mean and then the norm.
        vmap_method: As in :func:`perturbed`, of a tensor without draws.

    Returns:
        A tensor of the shape and dtype of ``x``.

    Raises:
        TypeError: ``solver`` is not callable or returns no numbers, or ``x`` is not a floating tensor.
        ValueError: A name is not one of the choices, or a solution has not the shape of ``x``.
        RuntimeError: ``solver`` changes its argument in place, or uses another tensor that needs a derivative.

    Example:
        >>> import torch, fullgrad
        >>> def cheapest(x):
        ...     return torch.nn.functional.one_hot(x.argmin(), 3)
        >>> x = torch.tensor([1.0, 2.0, 4.0])
        >>> loss = lambda x: fullgrad.blackbox.negative_identity(cheapest, x, projection="mean") @ torch.tensor([3.0, 0.0, 0.0])
        >>> torch.func.grad_and_value(loss)(x)
        (tensor([-2.,  1.,  1.]), tensor(3.))

    Source: Sahoo, Paulus, Vlastelica, Musil, Kuleshov, Martius, Backpropagation through combinatorial algorithms: identity with
    projection works, https://arxiv.org/abs/2205.15213.
    """
    name = "negative_identity"
    code = Code(name, "solver", solver, vmap_method, None)
    wide = point(name, x)
    checks.choice(name, "projection", projection, _PROJECTIONS)
    projected = _projected(wide, projection)
    y, _ = code.first(projected.detach().clone())  # code of another library may write to it
    code.check_shape(y, x)
    if is_differentiated([projected]):
        y = declared(_OF_MAXIMIZER if maximize else _OF_MINIMIZER, [y], [projected])[0]
    return cast(y, x.dtype)


def _projected(x: Tensor, projection: str) -> Tensor:
    if projection == "none" or surely(x.numel() == 0):
        return x
    infinite = x.detach().isinf()
    p = torch.where(infinite, 0, x)
    if projection == "both":  # which does not depend on a factor: a power of two, by which differences do not overflow
        largest = p.detach().abs().amax()
        p = p * torch.where(largest > 2, torch.exp2(-torch.log2(largest).floor()), 1)
    if projection in ("mean", "both"):
        # Each is divided before the sum, which does not overflow then.
        count = (~infinite).sum().clamp(min=1)
        p = torch.where(infinite, 0, p - (p / count).sum())
    if projection in ("norm", "both"):
        # In a unit in which squares do not overflow; the projection does not depend on it.
        largest = p.detach().abs().amax()
        p = p / torch.where((largest > 0) & largest.isfinite(), largest, 1)
        square = (p * p).sum()
        p = p * torch.where(square > 0, square, 1).rsqrt()
    return torch.where(infinite, x.detach(), p)


def _scaled(factor: float) -> Rule:
    def pull(_: Any, cotangents: Sequence[Tensor], needs: Sequence[bool]) -> Maybe:
        return [factor * cotangents[0]]

    def push(_: Any, tangents: Maybe, like: Any) -> Sequence[Tensor]:
        return [factor * t for t in tangents if t is not None]

    return Rule(pull, push, saves=False)


_OF_MINIMIZER, _OF_MAXIMIZER = _scaled(-1.0), _scaled(1.0)
