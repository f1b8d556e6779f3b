"""`ByEquation`: the derivative of a solution, by the `Jacobian` of its `Equation`, at every order."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from fullgrad._core.autocast import matmul
from fullgrad._dispatch import is_tracing
from fullgrad._engine.call import Result
from fullgrad._engine.closure import Refusing
from fullgrad._engine.differentiated import is_differentiated, may_differ
from fullgrad._engine.opaque import opaque_values
from fullgrad._engine.rule import Maybe, Rule, declared
from fullgrad._engine.transpose import scattered, transpose, transposed
from fullgrad.implicit._linear_solve import DENSE, LinearSolve, Tensors
from fullgrad.implicit._vectors import flat, unflat


class ByEquation:
    r"""The derivative of a solution z by the tensors v of its equation; the inputs of the rule are v and then z.

    .. math::
        D = -A^{-1}\,\partial_v f(z, v)

    ``solve(A, b, point)`` is `Jacobian.solve`, or what is taken in its place.
    """

    def __init__(self, equation: "Equation", solve: Callable[..., Tensor] | None = None) -> None:
        self.equation, self.solve = equation, solve or Jacobian.solve

    def declared(self, z: Tensors, v: Tensors) -> list[Tensor]:
        """The solution with its derivative."""
        return declared(Rule(self._pull, self._push), z, [*v, *z]) if is_differentiated(v) else [*z]

    def pulled(self, z: Tensors, v: Tensors, cotangents: Tensors, where: Sequence[int]) -> Tensors:
        """The gradients of the tensors of v at ``where``: minus the transposed derivative times the solution for cotangents."""
        # A gradient that is expanded is no vector where its size is not known.
        dense = [g.clone(memory_format=torch.contiguous_format) for g in cotangents] if is_tracing() else cotangents
        w = self.solve(Jacobian(self.equation).T, flat(dense), [*z, *v])
        return self.equation.back([len(z) + i for i in where])(*z, *v, -w)

    def pushed(self, z: Tensors, v: Tensors, tangents: Tensors, where: Sequence[int]) -> list[Tensor]:
        """The tangents of z along tangents of the tensors of v at ``where``: the solution for minus the derivative along them."""
        point = [*z, *v]
        along = self.equation.along([len(z) + i for i in where], point, tangents)
        return unflat(self.solve(Jacobian(self.equation), -along, point), z)

    def _pull(self, inputs: Tensors, cotangents: Tensors, needs: Sequence[bool]) -> Maybe:
        z, v = self._parts(inputs)
        where = tuple([i for i, x in enumerate(v) if needs[i] and may_differ(x)])
        return scattered(len(inputs), where, self.pulled(z, v, cotangents, where))

    def _push(self, inputs: Tensors, tangents: Maybe, like: Any) -> Tensors:
        z, v = self._parts(inputs)
        where = [i for i, t in enumerate(tangents[: len(v)]) if t is not None]
        return self.pushed(z, v, [t for t in tangents[: len(v)] if t is not None], where)

    def _parts(self, inputs: Tensors) -> tuple[list[Tensor], Tensors]:
        """The solution, which has its derivative in a derivative of this one, and the tensors by which it has one."""
        v, z = inputs[: -self.equation.count], inputs[-self.equation.count :]
        return self.declared(z, v), v


def neumann(terms: int, jacobian: "Jacobian", b: Tensor, point: Tensors) -> Tensor:
    """The first terms of the series of the inverse of the Jacobian, times a vector."""
    total = term = b
    for _ in range(terms):
        term = term - jacobian.times(term, point)
        total = total + term
    return total


class Jacobian(NamedTuple):
    r"""The matrix :math:`A = \partial_z f(z, v)` of an equation, or its transpose: products and solutions of vectors at a point.

    Both are differentiable by the vector and the point at every order, since the derivatives of a solution are solutions again:

    .. math::
        A w = b, \qquad dw = A^{-1} (db - dA\,w)
    """

    equation: "Equation"
    is_transposed: bool = False

    @property
    def T(self) -> "Jacobian":
        """The transpose."""
        return Jacobian(self.equation, not self.is_transposed)

    def times(self, w: Tensor, point: Tensors) -> Tensor:
        """``A w``, differentiable code."""
        z, where = point[: self.equation.count], range(self.equation.count)
        if self.is_transposed:
            return flat(self.equation.back(where)(*point, w))
        return self.equation.along(where, point, unflat(w, z))

    def solve(self, b: Tensor, point: Tensors) -> Tensor:
        """The solution w of ``A w = b``."""
        if is_dynamo_compiling() and b.shape[-1] <= DENSE:  # compiled autograd, which traces a backward
            unit = torch.eye(b.shape[-1], dtype=b.dtype, device=b.device)
            inverse = torch.linalg.inv(torch.func.vmap(lambda w: Jacobian(self.equation, True).times(w, point))(unit))
            return matmul(inverse.mT if self.is_transposed else inverse, b)
        like = lambda b, *_: Result(torch.empty_like(b))  # noqa: E731
        own = self.equation
        w = opaque_values(Refusing(own.label), "broadcast", self._solved, like, [b, *point], symbols=own.symbols).whole()
        return self._solution(w, [b, *point])

    def _solved(self, b: Tensor, *point: Tensor) -> Result:
        """The solution for plain tensors, a batch in front."""
        if not b.numel():
            return Result(torch.zeros_like(b))
        z, residual = self.equation.recorded(b.ndim - 1, point)
        return Result(self.equation.linear.solved(b, self.is_transposed, z, residual, point))

    def _solution(self, w: Tensor, inputs: Tensors) -> Tensor:
        """A solution that is known, with its derivative by the right-hand side and the point."""
        return declared(Rule(self._pull, self._push), [w], [*inputs, w])[0] if is_differentiated(inputs) else w

    def _pull(self, inputs: Tensors, cotangents: Tensors, needs: Sequence[bool]) -> Maybe:
        _, *point, w = inputs
        u = self.T.solve(cotangents[0], point)
        where = tuple([i for i, x in enumerate(point) if needs[i + 1] and may_differ(x)])
        grads = transpose(self._product, [*point, self._solution(w, inputs[:-1])], where)(-u) if where else ()
        return [u, *scattered(len(point), where, grads), None]

    def _push(self, inputs: Tensors, tangents: Maybe, like: Any) -> Tensors:
        b, *point, w = inputs
        of_b, *of_point, _ = tangents
        right = torch.zeros_like(b) if of_b is None else of_b
        where = tuple([i for i, t in enumerate(of_point) if t is not None])
        if where:
            back = lambda *all: transpose(self._product, all[:-1], where)(all[-1])  # noqa: E731
            along = transposed(back, [*point, self._solution(w, inputs[:-1])], like)
            right = right - along(*[t for t in of_point if t is not None])[0]
        return [self.solve(right, point)]

    def _product(self, *point_and_w: Tensor) -> list[Tensor]:
        return [self.times(point_and_w[-1], point_and_w[:-1])]


class Equation:
    r"""The equation :math:`f(z, v) = 0` of tensors.

    ``f`` takes the tensors of a point, of which the first ``count`` are z, and returns a vector.
    """

    def __init__(
        self,
        label: str,
        f: Callable[..., Tensor],
        count: int,
        method: Any,
        otherwise: str,
        tol: float | None,
        symbols: Sequence[Any] = (),
    ) -> None:
        self.label, self.f, self.count, self.symbols = label, f, count, symbols
        self.linear = LinearSolve(label, method, otherwise, tol)

    def back(self, where: Sequence[int]) -> Callable[..., Tensors]:
        """The transpose of the derivative of f by the tensors of a point at ``where``, a function of the point and a vector."""
        return lambda *all: transpose(lambda *point: [self.f(*point)], all[:-1], tuple(where))(all[-1])

    def along(self, where: Sequence[int], point: Tensors, tangents: Tensors) -> Tensor:
        """The derivative of f along tangents of the tensors of a point at ``where``."""
        z = point[: self.count]
        size = sum([t.numel() * (1 + t.dtype.is_complex) for t in z])  # not of a shape, which fixes a symbol
        return transposed(self.back(where), point, [((size,), z[0].dtype.to_real(), z[0].device)])(*tangents)[0]

    def batched(self, leading: int) -> Callable[..., Tensor]:
        """The residual for tensors that have some dimensions more in front."""
        f = self.f
        for _ in range(leading):
            f = torch.func.vmap(f)
        return f

    def recorded(self, leading: int, point: Tensors) -> tuple[list[Tensor], Tensor]:
        """The tensors of z at a plain point with leading dimensions, and the residual with its graph by them."""
        with torch.inference_mode(False), torch.enable_grad():
            point = [t.clone() if t.is_inference() else t.detach() for t in point]
            z = [t.requires_grad_() for t in point[: self.count]]
            return z, self.batched(leading)(*point)
