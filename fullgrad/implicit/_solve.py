"""`solve`: the solution of linear equations that a function gives, as an operator."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from fullgrad._dispatch import clone_if_view
from fullgrad._engine.call import Result
from fullgrad.implicit._equation import Equation, Jacobian, flat, unflat
from fullgrad.implicit._root import Root, Solution, check_linear_solve, check_solution, vector_of


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
        b: The right-hand side, a tensor or a structure of tensors of one dtype.
        args: Arguments of ``matvec``: any structure of tensors, modules and constants.
        linear_solve: As in :func:`fullgrad.implicit.root`.
        tol: As in :func:`fullgrad.implicit.root`, for an iterative ``linear_solve``.

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
    if not callable(matvec):
        raise TypeError(f"implicit.solve: `matvec` must be callable, got a value of type {type(matvec).__name__}.")
    check_linear_solve("implicit.solve", linear_solve)
    if is_dynamo_compiling() or torch.jit.is_tracing():
        return _of_matrix(matvec, b, args)
    owner = Root("solve", matvec, linear_solve, "gmres", None, "map", False, tol, None, matvec)
    return _LinearSolution(owner, (b, *args), {}).result()


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
    unit = torch.eye(b.shape[0], dtype=b.dtype, device=b.device)
    # torch.jit.trace knows no vmap.
    rows = torch.stack([product(w) for w in unit]) if torch.jit.is_tracing() else torch.func.vmap(product)(unit)
    # Not by `@`, which torch does not compile for a size that data decides.
    return structure.tree(unflat((b.unsqueeze(-1) * torch.linalg.inv(rows)).sum(0), right))


class _LinearSolution(Solution):
    """One call, whose right-hand side is in the place of `init`, and has a derivative."""

    def _solve(self) -> tuple[list[Tensor], list[Tensor]]:
        b = self.call.run(lambda b, *_: b, self.call.tensors)
        self.solution, self.rest = Result(b), (b, *self.rest)
        z = [torch.zeros_like(t) for t in self.solution.release()]
        self.length, self.count = len(z), 0
        return z, []

    def _call(self, given: Callable[..., Any], z: Any, *args: Any) -> Any:
        return super()._call(given, z, *args[1:])

    def _side(self, value: Tensor, zv: Sequence[Tensor]) -> Tensor:
        return value - flat(zv[self.length : 2 * self.length])

    def _found(self, equation: Equation, z: Sequence[Tensor], v: Sequence[Tensor]) -> list[Tensor]:
        equation.matrix = "the matrix"
        b, *point = [t.detach() for t in (flat(v[: self.length]), *z, *v)]
        return [clone_if_view(w) for w in unflat(Jacobian(equation).solve(b, point), z)]
