"""`by_equation`: the derivative of a solution by the equation that a user's function states, and `look`, at what it leaves."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._core.warn import warn
from fullgrad._dispatch import has_shape, is_traced
from fullgrad._engine.call import Call, Result
from fullgrad._engine.closure import Closure, Refusing
from fullgrad._engine.held import frozen
from fullgrad._engine.opaque import opaque_values
from fullgrad._engine.rule import is_floating, transpose
from fullgrad._engine.values import plain_values
from fullgrad.implicit._equation import ByEquation, Equation, Jacobian, Tensors, flat, neumann, real, sample_of
from fullgrad.implicit._linear import norm

_STEP = 2.0**-7  # by how much of itself a solution is changed to see the scale of an equation
# The left-hand side of an equation by the vector of the function's value, the tensors of the arguments, those of the solution
# in front, and how many these are; None for an objective, whose gradient it is.
Left = Callable[[Tensor, Tensors, int], Tensor] | None


def left_of_root(value: Tensor, zv: Tensors, k: int) -> Tensor:
    """`root`: the value."""
    return value


def left_of_fixed_point(value: Tensor, zv: Tensors, k: int) -> Tensor:
    """`fixed_point`: the solution minus the value."""
    return flat(zv[:k]) - value


def left_of_solve(value: Tensor, zv: Tensors, k: int) -> Tensor:
    """`solve`: the value minus the right-hand side, the first argument."""
    return value - flat(zv[k : 2 * k])


def by_equation(
    owner: Any, closure: Closure, solution: Result, z: Tensors, args: Sequence[Any], tensors: Tensors
) -> tuple[ByEquation, list[Tensor]]:
    """The derivative of the tensors z of a solution, and the tensors v by which it has one: those of the arguments, and those
    that the owner's function captures.
    """
    check_solution(owner.label, z)
    residual = _Residual(owner.label, owner.left, closure, solution, z, args)
    v = residual.noted(owner.given, [*z, *tensors])
    equation = Equation(owner.label, residual, len(z), owner.linear_solve, owner.otherwise, owner.tol)
    if owner.left is None:
        equation.name = "gradient"
    return ByEquation(equation, Jacobian.solve if owner.terms is None else functools.partial(neumann, owner.terms)), v


class _Residual:
    """The left-hand side of an equation as a vector, a function of the tensors z and v."""

    def __init__(self, label: str, left: Left, closure: Closure, solution: Result, z: Tensors, args: Sequence[Any]) -> None:
        self.label, self.left, self.closure, self.solution, self.count = label, left, closure, solution, len(z)
        self.call = Call([solution.tree(z), *args])
        self.n = len(self.call.release())
        self.f: Any = None

    def noted(self, f: Callable[..., Any], tensors: list[Tensor]) -> list[Tensor]:
        """The tensors v, of which a call of the function shows those that it captures."""
        with self.closure.replay.none():
            plain_values(self.closure, functools.partial(self._of, f), tensors)
        self.f = frozen(f)
        noted, self.captured = self.closure.release()
        return [*tensors[self.count :], *noted]

    def __call__(self, *zv: Tensor) -> Tensor:
        if self.left is not None:
            return self._again(*zv)
        pull = transpose(lambda *zv: [self._again(*zv)], zv, tuple(range(self.count)))
        return flat(pull(zv[0].new_ones((), dtype=real(zv[0]))))

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
        return found.to(real(zv[0]))


def look(equation: Equation, tol: float, start: Tensors, z: Tensors, v: Tensors) -> None:
    """Warn if a solution leaves a residual that is not small in the scale of the equation, at it or where it started."""
    if is_traced(*z, *v):
        return
    start, k = start if [x.shape for x in start] == [x.shape for x in z] else z, len(z)

    def of_batch(batch: Tensor, *all: Tensor) -> Result:
        leading, start, solution, v = batch.ndim, all[:k], all[k : 2 * k], all[2 * k :]
        if solution[0].numel():
            f = equation.batched(leading)
            r = f(*solution, *v)
            near = [x * (1 + _STEP) for x in solution]
            is_finite = flat(solution, leading).isfinite().all(-1)
            _warn(equation, tol, r, is_finite, lambda: [(f(*near, *v) - r) / _STEP, f(*start, *v)])
        return Result(())

    opaque_values(Refusing(equation.label), "broadcast", of_batch, lambda *_: Result(()), [torch.empty(()), *start, *z, *v])


@torch.no_grad()
def _warn(equation: Equation, tol: float, r: Tensor, is_finite: Tensor, scales: Callable[[], Tensors]) -> None:
    size = norm(r).squeeze(-1)
    if not (size != 0).any():
        return
    scale = torch.stack([norm(s).squeeze(-1).nan_to_num(0, posinf=torch.inf) for s in scales()]).amax(0)
    bad = (size > max(tol, 16 * torch.finfo(r.dtype).eps) * scale) | ~size.isfinite()
    bad = bad & is_finite  # infinity and NaN are loud enough
    if bad.any():
        first = tuple(bad.nonzero()[0].tolist())
        warn(
            f"{equation.label}: the solution leaves a residual of {size[first]:.2g}{sample_of(bad)}, where the {equation.name} "
            f"has the scale {scale[first]:.2g}. {equation.advice} `tol` sets the limit, and None leaves this out.",
            RuntimeWarning,
        )


def check_kinds(label: str, tensors: Sequence[Tensor]) -> None:
    """Refuse tensors that have no derivatives, or that are no vectors."""
    for t in tensors:
        if t.is_quantized:
            raise TypeError(f"{label}: an argument must be a real tensor, got dtype {t.dtype}.")
        if torch.masked.is_masked_tensor(t):
            raise NotImplementedError(f"{label}: masked tensors are not taken; use their data, x.get_data().")
        if t.is_nested:
            raise NotImplementedError(f"{label}: nested tensors are not taken; use torch.func.vmap, or the buffer, x.values().")


def check_solution(label: str, tensors: Sequence[Tensor]) -> None:
    """Check that a solution consists of tensors of one floating dtype."""
    if not tensors or len({t.dtype for t in tensors}) > 1 or not is_floating(tensors[0].dtype):
        found = sorted({str(t.dtype) for t in tensors}) or "none"
        raise TypeError(f"{label}: the solution must be tensors of one floating dtype, got {found}.")


def vector_of(label: str, values: Sequence[Any], like: Sequence[Tensor]) -> Tensor:
    """The vector of values of an equation, which are like the solution. Autocast may change their dtype."""
    for r, z in zip(values, like, strict=True):
        if not isinstance(r, Tensor):
            raise TypeError(f"{label} must be tensors like the solution, got a value of type {type(r).__name__}.")
        if not has_shape(r.shape, z.shape):
            raise ValueError(f"{label} must have the shape of the solution, {tuple(z.shape)}, got {tuple(r.shape)}.")
        if r.dtype.is_complex and not z.dtype.is_complex:
            raise TypeError(f"{label} must be real, as the solution is, got {r.dtype}.")
    return flat([r.to(z.dtype) for r, z in zip(values, like, strict=True)])
