"""`difference_of_solutions`: gradients of solvers that are called again where the gradient moves their argument."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._engine.blackbox import Code
from fullgrad._engine.differentiated import is_differentiated
from fullgrad._engine.rule import Maybe, Rule, declared


def difference_of_solutions(name: str, code: Code, x: Tensor, noise: Tensor | None, lam: float, minimizes: bool) -> Tensor:
    """The solution at ``x + noise``, with its difference to that at ``x - lam g + noise``, over lam, as gradient.

    For a solver that minimizes the move and the gradient have the other sign.

    An element of minus infinity, which no solution has, stays there.
    """
    start = x.detach().clone()  # code of another library may write to it
    y, held = code.first(start if noise is None else start + noise)
    code.check_shape(y, x)
    if not is_differentiated([x]):
        return y

    def pull(inputs: Sequence[Tensor], cotangents: Sequence[Tensor], needs: Sequence[bool]) -> Maybe:
        x, y, *rest = inputs
        (g,) = cotangents
        to = torch.where(x == -torch.inf, x, x + lam * g if minimizes else x - lam * g)
        found = code.again(to if noise is None else to + rest[0], rest[1:] if noise is not None else rest)
        code.check_shape(found, y)
        gradient = (found - y if minimizes else y - found) / lam
        if is_differentiated([x, g]):
            gradient = declared(_CONSTANT, [gradient], [x, g])[0]
        return [gradient, *[None] * (len(inputs) - 1)]

    def push(*_: Any) -> Sequence[Tensor]:
        raise NotImplementedError(
            f"blackbox.{name}: there is no tangent, as the gradient is no linear map of the cotangent; use reverse mode, "
            "or blackbox.perturbed, which has both."
        )

    given = [] if noise is None else [noise]
    return declared(Rule(pull, push), [y], [x, y, *given, *held])[0]


# The derivative of what is piecewise constant in two tensors like it.
_CONSTANT = Rule(
    lambda _, given, __: [torch.zeros_like(given[0])] * 2,
    lambda _, given, __: [torch.zeros_like(next(t for t in given if t is not None))],
    saves=False,
)
