"""`by_equation`: the derivative of a solution by the equation that a user's function states, and `look`, at what it leaves."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullgrad._core.warn import warn
from fullgrad._dispatch import is_traced
from fullgrad._engine.call import Call, Result
from fullgrad._engine.closure import Closure, Refusing
from fullgrad._engine.copies import frozen
from fullgrad._engine.opaque import opaque_values
from fullgrad._engine.transpose import transpose
from fullgrad._engine.values import plain_values
from fullgrad.implicit._checks import check_solution, vector_of
from fullgrad.implicit._equation import ByEquation, Equation, neumann
from fullgrad.implicit._linear_algorithms import norm
from fullgrad.implicit._linear_solve import Tensors, sample_of
from fullgrad.implicit._vectors import flat

_STEP = 2.0**-7  # by how much of itself a solution is changed to see the scale of an equation
# The left-hand side of an equation by the vector of the function's value, the tensors of the arguments, those of the solution
# in front, and how many these are; None for an objective, whose gradient it is.
Left = Callable[[Tensor, Tensors, int], Tensor] | None


class Stated(NamedTuple):
    """The equation that a user states, and how linear equations with its Jacobian are solved."""

    label: str
    f: Callable[..., Any]
    left: Left
    linear_solve: Any
    otherwise: str  # by which many linear equations are solved, if nothing is said
    tol: float | None
    terms: int | None = None  # of the series that stands for the inverse of the Jacobian


def by_equation(
    stated: Stated, closure: Closure, solution: Result, z: Tensors, args: Sequence[Any], tensors: Tensors
) -> tuple[ByEquation, list[Tensor]]:
    """The derivative of the tensors z of a solution, and the tensors v by which it has one: those of the arguments, and those
    that the function captures.
    """
    check_solution(stated.label, z)
    residual = _Residual(stated, closure, solution, z, args)
    v = residual.noted([*z, *tensors])
    symbols = [*residual.call.symbols(), *solution.symbols()]
    equation = Equation(stated.label, residual, len(z), stated.linear_solve, stated.otherwise, stated.tol, symbols)
    return ByEquation(equation, None if stated.terms is None else functools.partial(neumann, stated.terms)), v


class _Residual:
    """The left-hand side of an equation as a vector, a function of the tensors z and v."""

    def __init__(self, stated: Stated, closure: Closure, solution: Result, z: Tensors, args: Sequence[Any]) -> None:
        self.label, self.left, self.f = stated.label, stated.left, stated.f
        self.closure, self.solution, self.count = closure, solution, len(z)
        self.call = Call([solution.tree(z), *args])
        self.n = len(self.call.release())

    def noted(self, tensors: list[Tensor]) -> list[Tensor]:
        """The tensors v, of which a call of the function shows those that it captures."""
        with self.closure.replay.none():
            plain_values(self.closure, functools.partial(self._of, self.f), tensors)
        self.f = frozen(self.f)
        noted, self.captured = self.closure.release()
        return [*tensors[self.count :], *noted]

    def __call__(self, *zv: Tensor) -> Tensor:
        if self.left is not None:
            return self._again(*zv)
        pull = transpose(lambda *zv: [self._again(*zv)], zv, tuple(range(self.count)))
        return flat(pull(zv[0].new_ones((), dtype=zv[0].dtype.to_real())))

    def _again(self, *zv: Tensor) -> Tensor:
        return self.captured.again(functools.partial(self._of, self.f), zv[: self.n], zv[self.n :])

    def _of(self, f: Callable[..., Any], *zv: Tensor) -> Tensor:
        """The left-hand side as a vector, or the objective, at tensors of the solution and of the arguments."""
        found = self.call.run(lambda *args: f(*args[:-1], **args[-1]), zv)
        label, z = f"{self.label}: the value of the function", zv[: self.count]
        if self.left is not None:
            return self.left(vector_of(label, self.solution.flattened(found, label), z), zv, self.count)
        if not isinstance(found, Tensor) or found.ndim or not found.is_floating_point():
            raise TypeError(f"{label} must be a real scalar tensor, as it is the objective, got {found!r:.80}.")
        return found.to(zv[0].dtype.to_real())


def left_of_root(value: Tensor, zv: Tensors, k: int) -> Tensor:
    """`root`: the value."""
    return value


def left_of_fixed_point(value: Tensor, zv: Tensors, k: int) -> Tensor:
    """`fixed_point`: the solution minus the value."""
    return flat(zv[:k]) - value


def left_of_solve(value: Tensor, zv: Tensors, k: int) -> Tensor:
    """`solve`: the value minus the right-hand side, the first argument."""
    return value - flat(zv[k : 2 * k])


_ADVICE = "Its derivative is that of a solution. More iterations help, or another `init`;"


def look(equation: Equation, name: str, tol: float, start: Tensors, z: Tensors, v: Tensors, advice: str = _ADVICE) -> None:
    """Warn if a solution leaves a residual that is not small in the scale of the equation, at it or where it started."""
    if is_traced(*z, *v):
        return
    texts = equation.label, name, advice
    start, k = start if [x.shape for x in start] == [x.shape for x in z] else z, len(z)

    def of_batch(batch: Tensor, *all: Tensor) -> Result:
        leading, start, solution, v = batch.ndim, all[:k], all[k : 2 * k], all[2 * k :]
        if solution[0].numel():
            f = equation.batched(leading)
            r = f(*solution, *v)
            near = [x * (1 + _STEP) for x in solution]
            is_finite = flat(solution, leading).isfinite().all(-1)
            _warn(texts, tol, r, is_finite, lambda: [(f(*near, *v) - r) / _STEP, f(*start, *v)])
        return Result(())

    opaque_values(Refusing(equation.label), "broadcast", of_batch, lambda *_: Result(()), [torch.empty(()), *start, *z, *v])


@torch.no_grad()
def _warn(texts: tuple[str, str, str], tol: float, r: Tensor, is_finite: Tensor, scales: Callable[[], Tensors]) -> None:
    size = norm(r).squeeze(-1)
    if not (size != 0).any():
        return
    scale = torch.stack([_scale(s) for s in scales()]).amax(0)
    bad = (size > max(tol, 16 * torch.finfo(r.dtype).eps) * scale) | ~size.isfinite()
    bad = bad & is_finite  # infinity and NaN are loud enough
    if bad.any():
        (label, name, advice), first = texts, tuple(bad.nonzero()[0].tolist())
        warn(
            f"{label}: the solution leaves a residual of {size[first]:.2g}{sample_of(bad)}, where the {name} "
            f"has the scale {scale[first]:.2g}. {advice} `tol` sets the limit, and None leaves this out.",
            RuntimeWarning,
        )


def _scale(a: Tensor) -> Tensor:
    """The norm of vectors, infinity where a number overflows, and 0 where there is none."""
    return torch.where(a.isinf().any(-1), torch.inf, norm(a).squeeze(-1).nan_to_num(0))
