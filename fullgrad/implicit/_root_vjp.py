"""`root_vjp` and `root_jvp`: the derivative of a solution of an equation, for custom rules."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._engine.call import Call, Result
from fullgrad._engine.checks import check_like
from fullgrad._engine.closure import Closure
from fullgrad._engine.differentiated import may_differ
from fullgrad._engine.node import one_node
from fullgrad._engine.transpose import kept_alone, scattered
from fullgrad.implicit._checks import check_kinds
from fullgrad.implicit._equation import ByEquation
from fullgrad.implicit._linear_solve import check_linear_solve
from fullgrad.implicit._residual import Stated, by_equation, left_of_root


@one_node
def root_vjp(
    f: Callable[..., Any],
    solution: Any,
    args: Sequence[Any],
    cotangent: Any,
    *,
    linear_solve: str | Callable[..., Tensor] | None = None,
    tol: float | None = 1e-3,
) -> tuple[Any, ...]:
    r"""The gradients of the arguments of an equation :math:`f(z, x) = 0`, by the gradient of its solution.

    .. math::
        \bar x = -\left(\frac{\partial f}{\partial x}\right)^T \left(\frac{\partial f}{\partial z}\right)^{-T} \bar z

    For a custom rule, where a decorator such as :func:`fullgrad.implicit.root` does not fit. Linear equations are solved as
    there. The gradients are differentiable with respect to everything that they are made of, at every order; nothing says that
    the solution is one. Saved: the tensors among the arguments.

    Args:
        f: The equation, ``f(solution, *args)``, as in :func:`fullgrad.implicit.root`.
        solution: Its solution z.
        args: The other arguments of ``f``, in a tuple or list.
        cotangent: The gradient of z, like the solution; None in a place means 0.
        linear_solve: As in :func:`fullgrad.implicit.root`.
        tol: As in :func:`fullgrad.implicit.root`, for an iterative ``linear_solve``.

    Returns:
        A tuple with the gradient of each argument, a structure like it: None for a tensor without derivatives, a dict by name
        for a module, 0 for a number.

    Raises:
        TypeError: As in :func:`fullgrad.implicit.root`, or ``cotangent`` has another structure or dtype than the solution.
        ValueError: As in :func:`fullgrad.implicit.root`, or ``cotangent`` has another shape.
        RuntimeError: The Jacobian is singular, or an iterative solver fails.

    Example:
        >>> import torch, fullgrad
        >>> def f(z, x):
        ...     return z**2 - x
        >>> fullgrad.implicit.root_vjp(f, torch.tensor([2.0, 3.0]), (torch.tensor([4.0, 9.0]),), torch.ones(2))
        (tensor([0.2500, 0.1667]),)

    Source: ``jaxopt.implicit_diff.root_vjp``.
    """
    label = "implicit.root_vjp"
    by, z, v, known = _derivative(label, f, solution, args, linear_solve, tol)
    found = known.solution.flattened(cotangent, f"{label}: `cotangent`")
    g = [_like(f"{label}: a cotangent", t, x) for t, x in zip(found, z, strict=True)]
    where = [i for i, x in enumerate(v[: known.count]) if may_differ(x)]
    k, n = len(z), len(z) + len(v)
    pulled = kept_alone(lambda *all: by.pulled(all[:k], all[k:n], all[n:], where), [*z, *v, *g])
    return known.call.beside([*z, *scattered(known.count, tuple(where), pulled)])[1:-1]


@one_node
def root_jvp(
    f: Callable[..., Any],
    solution: Any,
    args: Sequence[Any],
    tangents: Sequence[Any],
    *,
    linear_solve: str | Callable[..., Tensor] | None = None,
    tol: float | None = 1e-3,
) -> Any:
    r"""The tangent of the solution of an equation :math:`f(z, x) = 0`, by tangents of its arguments.

    .. math::
        \dot z = -\left(\frac{\partial f}{\partial z}\right)^{-1} \frac{\partial f}{\partial x}\,\dot x

    All else is as in :func:`root_vjp`.

    Args:
        f: The equation, ``f(solution, *args)``, as in :func:`fullgrad.implicit.root`.
        solution: Its solution z.
        args: The other arguments of ``f``, in a tuple or list.
        tangents: A tangent for each of ``args``, a structure like it, in which None means 0.
        linear_solve: As in :func:`fullgrad.implicit.root`.
        tol: As in :func:`fullgrad.implicit.root`, for an iterative ``linear_solve``.

    Returns:
        The tangent of the solution, a structure like it.

    Raises:
        TypeError: As in :func:`root_vjp`.
        ValueError: As in :func:`root_vjp`.
        RuntimeError: As in :func:`root_vjp`.

    Example:
        >>> import torch, fullgrad
        >>> def f(z, x):
        ...     return z**2 - x
        >>> fullgrad.implicit.root_jvp(f, torch.tensor([2.0, 3.0]), (torch.tensor([4.0, 9.0]),), (torch.ones(2),))
        tensor([0.2500, 0.1667])

    Source: ``jaxopt.implicit_diff.root_jvp``.
    """
    label = "implicit.root_jvp"
    by, z, v, known = _derivative(label, f, solution, args, linear_solve, tol)
    if not isinstance(tangents, (tuple, list)) or len(tangents) != len(args):
        raise TypeError(
            f"{label}: `tangents` must be a tuple with one for each of the {len(args)} arguments, got {tangents!r:.80}."
        )
    parts = known.call.parts[1:-1]
    pairs = zip(parts, tangents, strict=True)
    found = [t for i, (part, t) in enumerate(pairs) for t in part.flattened(t, f"{label}: the tangent of argument {i}")]
    where = [i for i, (t, x) in enumerate(zip(found, v, strict=False)) if t is not None and may_differ(x)]
    if not where:
        return known.solution.tree([torch.zeros_like(x) for x in z])
    given = [_like(f"{label}: a tangent", found[i], v[i]) for i in where]
    k, n = len(z), len(z) + len(v)
    pushed = kept_alone(lambda *all: by.pushed(all[:k], all[k:n], all[n:], where), [*z, *v, *given])
    return known.solution.tree(pushed)


class _Known(NamedTuple):
    """The arguments of a call, its first one, the solution, and how many tensors the others have."""

    call: Call
    solution: Result
    count: int


def _derivative(
    label: str, f: Any, solution: Any, args: Any, linear_solve: Any, tol: float | None
) -> tuple[ByEquation, list[Tensor], list[Tensor], "_Known"]:
    """The derivative by an equation, the tensors of the solution and those by which it has one, and the structure of both."""
    if torch.jit.is_tracing():
        raise NotImplementedError(
            f"{label}: torch.jit.trace cannot record the solution of its linear equations; use torch.compile."
        )
    checks.function(label, "f", f)
    check_linear_solve(label, linear_solve)
    if not isinstance(args, (tuple, list)):
        raise TypeError(f"{label}: `args` must be a tuple or list of arguments, got a value of type {type(args).__name__}.")
    call = Call([solution, *args, {}])
    closure, k = Closure(label, f, objects=call.objects()), call.parts[0].count
    check_kinds(label, call.tensors)
    z, rest = call.tensors[:k], call.tensors[k:]
    structure = Result(call.parts[0].filled(z, []))
    structure.release()
    by, v = by_equation(Stated(label, f, left_of_root, linear_solve, "gmres", tol), closure, structure, z, (*args, {}), rest)
    return by, z, v, _Known(call, structure, len(rest))


def _like(label: str, t: Any, x: Tensor) -> Tensor:
    return torch.zeros_like(x) if t is None else check_like(label, "its argument", t, x.shape, x.dtype, or_none=True)
