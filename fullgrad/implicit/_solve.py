"""`solve`: the solution of linear equations that a function gives, as an operator."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from fullgrad._core import checks
from fullgrad._dispatch import clone_if_view
from fullgrad._engine.call import Call, Result
from fullgrad._engine.closure import Closure
from fullgrad._engine.operator import label_of
from fullgrad.implicit._checks import check_kinds, check_solution, vector_of
from fullgrad.implicit._equation import Jacobian
from fullgrad.implicit._linear_solve import check_linear_solve
from fullgrad.implicit._residual import Stated, by_equation, left_of_solve, look
from fullgrad.implicit._vectors import flat, unflat


def solve(
    matvec: Callable[..., Any],
    b: Any,
    *args: Any,
    linear_solve: str | Callable[..., Tensor] | None = None,
    tol: float | None = 1e-3,
) -> Any:
    r"""The solution of linear equations whose matrix is a function.

    .. math::
        A(x)\,w = b, \qquad dw = A^{-1} (db - dA\,w)

    at every order and under every transform. Derivatives solve equations with the same matrix or its transpose, which autograd
    finds; arguments and tensors that ``matvec`` closes over get derivatives, too. Compiled code makes the matrix and its inverse.
    On a device the host waits, to learn whether the matrix is singular. Saved: the arguments and the solution.

    Args:
        matvec: The function :math:`w \mapsto A(x)\,w`, as ``matvec(w, *args)``: torch code that is linear in w, which is like b.
            It may add a vector, which the right-hand side gets with the other sign.
        b: The right-hand side, a tensor or a structure of tensors of one dtype.
        args: Arguments of ``matvec``: any structure of tensors, modules and constants.
        linear_solve: As in :func:`fullgrad.implicit.root`.
        tol: The threshold of a warning, not where a solver stops: an iterative solution warns if its residual is larger than
            ``tol`` times ``b``, and a dense one if ``matvec`` is not linear. None gives no warning. An iterative solver that
            stops earlier is ``linear_solve=functools.partial(fullgrad.implicit.cg, tol=1e-3)``.

    Returns:
        The solution, like ``b``.

    Raises:
        TypeError: ``matvec`` is not callable or returns another structure, or ``b`` has integers or several dtypes.
        ValueError: ``linear_solve`` is not one of the choices, or ``matvec`` returns another shape.
        RuntimeError: The matrix is singular, or an iterative solver fails.

    Example:
        >>> import torch, fullgrad
        >>> def f(scale):
        ...     return fullgrad.implicit.solve(lambda w: scale * w + w.sum(), torch.tensor([1.0, 3.0]))
        >>> f(torch.tensor(2.0))
        tensor([0., 1.])
        >>> torch.func.jacfwd(f)(torch.tensor(2.0))
        tensor([ 0.1250, -0.3750])

    Source: ``jax.lax.custom_linear_solve``.
    """
    checks.callables("implicit.solve", matvec=matvec)
    check_linear_solve("implicit.solve", linear_solve)
    if is_dynamo_compiling() or torch.jit.is_tracing():
        return _of_matrix(matvec, b, args)
    f, label = functools.partial(_without_b, matvec), label_of("implicit.solve", matvec)
    return _solved(Stated(label, f, left_of_solve, linear_solve, "gmres", tol), b, args)


def _without_b(matvec: Callable[..., Any], w: Any, _: Any, *args: Any) -> Any:
    return matvec(w, *args)


def _solved(stated: Stated, b: Any, args: tuple[Any, ...]) -> Any:
    """The solution with its derivative. Its equation has the right-hand side as the first argument."""
    call = Call([b, *args, {}])
    check_kinds(stated.label, call.tensors)
    closure = Closure(stated.label, stated.f, objects=call.objects())
    b = call.run(lambda b, *_: b, call.tensors)
    solution, tensors = Result(b), call.release()
    z = [torch.zeros_like(t) for t in solution.release()]
    by, v = by_equation(stated, closure, solution, z, (b, *args, {}), tensors)
    equation = by.equation
    equation.linear.matrix = "the matrix"
    point = [t.detach() for t in (*z, *v)]
    right = -equation.f(*point)  # less what a function adds to its product
    z = [clone_if_view(w) for w in unflat(Jacobian(equation).solve(right.detach(), point), z)]
    # What an iterative solver leaves has a warning of its own.
    if stated.tol is not None and equation.linear.method_for(len(right)) == "dense":
        look(equation, "equation", stated.tol, [], z, v, "`matvec` is not linear in w: use implicit.root with a solver;")
    return solution.tree(by.declared(z, v))


def _of_matrix(matvec: Callable[..., Any], b: Any, args: tuple[Any, ...]) -> Any:
    """The solution by the inverse of the matrix, in code that a compiler differentiates.

    `torch.linalg.solve` is wrong in forward mode over forward mode: https://github.com/pytorch/pytorch/issues/192540.
    """
    structure = Result(b)
    right = structure.release()
    check_solution("implicit.solve", right)

    def product(w: Tensor) -> Tensor:
        label = "implicit.solve: the value of the function"
        found = matvec(structure.tree(unflat(w, right)), *args)
        return vector_of(label, structure.flattened(found, label), right)

    b = flat(right)
    added = product(torch.zeros_like(b))
    unit = torch.eye(b.shape[0], dtype=b.dtype, device=b.device)
    # torch.jit.trace knows no vmap.
    rows = torch.stack([product(w) for w in unit]) if torch.jit.is_tracing() else torch.func.vmap(product)(unit)
    # Not by `@`, which torch does not compile for a size that data decides.
    return structure.tree(unflat(((b - added).unsqueeze(-1) * torch.linalg.inv(rows - added)).sum(0), right))
