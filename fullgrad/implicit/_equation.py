"""`Equation` and its `Jacobian`, an operator whose solutions have derivatives of every order, and so have roots: `ByEquation`."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from fullgrad._core.autocast import matmul
from fullgrad._core.warn import warn
from fullgrad._dispatch import is_tracing
from fullgrad._engine.call import Result
from fullgrad._engine.closure import Refusing
from fullgrad._engine.opaque import opaque_values
from fullgrad._engine.rule import Maybe, Rule, declared, is_differentiated, may_differ, scattered, transpose, transposed
from fullgrad.implicit._linear import LU, Product, cg_and_curvature, gmres, norm, normal_cg

METHODS = ("dense", "cg", "normal_cg", "gmres")
DENSE = 512  # the most unknowns for which the matrix is made, if nothing is said
Tensors = Sequence[Tensor]


class Equation:
    r"""The equation :math:`f(z, v) = 0` of tensors.

    ``f`` takes the tensors of a point, of which the first ``count`` are z, and returns a vector. ``method`` solves linear
    equations with its Jacobian, and if that is None and there are many unknowns, ``otherwise`` does.
    """

    # In messages.
    name, matrix = "equation", "the Jacobian of the equation by its solution"
    advice = "Its derivative is that of a solution. More iterations help, or another `init`;"

    def __init__(self, label: str, f: Callable[..., Tensor], count: int, method: Any, otherwise: str, tol: float | None) -> None:
        self.label, self.f, self.count, self.method, self.otherwise, self.tol = label, f, count, method, otherwise, tol
        self.factors: tuple[Any, Tensors, LU] | None = None

    def solver(self, n: int) -> Any:
        """The name or function by which equations with n unknowns are solved."""
        return self.method or ("dense" if n <= DENSE else self.otherwise)

    def back(self, where: Sequence[int]) -> Callable[..., Tensors]:
        """The transpose of the derivative of f by the tensors of a point at ``where``, a function of the point and a vector."""
        return lambda *all: transpose(lambda *point: [self.f(*point)], all[:-1], tuple(where))(all[-1])

    def along(self, where: Sequence[int], point: Tensors, tangents: Tensors) -> Tensor:
        """The derivative of f along tangents of the tensors of a point at ``where``."""
        z = point[: self.count]
        size = sum([t.numel() * (1 + t.dtype.is_complex) for t in z])  # not of a shape, which fixes a symbol
        return transposed(self.back(where), point, [((size,), real(z[0]), z[0].device)])(*tangents)[0]

    # --- Numbers, on plain tensors with a batch in front ----------------------------------------------------------------

    def batched(self, leading: int) -> Callable[..., Tensor]:
        """The residual for tensors that have some dimensions more in front."""
        f = self.f
        for _ in range(leading):
            f = torch.func.vmap(f)
        return f

    @torch.no_grad()
    def solved(self, is_transposed: bool, b: Tensor, *point: Tensor) -> Result:
        """The solution w of ``A w = b`` or ``A.mT w = b``."""
        if not b.numel():
            return Result(torch.zeros_like(b))
        own = torch.promote_types(b.dtype, torch.float32)
        right, n = b.to(own), b.shape[-1]
        method = self.solver(n)
        back, ahead = self._products(b, point)
        if method == "dense":
            w = self._lu(back, right, point).solve(right, is_transposed)
        else:
            matvec, rmatvec = (back, ahead) if is_transposed else (ahead, back)
            indefinite = None
            if method == "cg":
                w, indefinite = cg_and_curvature(matvec, right)
            elif method == "normal_cg":
                w = normal_cg(matvec, rmatvec, right)
            else:
                solver: Any = gmres if method == "gmres" else method
                w = solver(matvec, right)
            self._check(method, matvec, w, right, b.dtype, indefinite)
        return Result(w.to(b.dtype))

    def _products(self, b: Tensor, point: Tensors) -> tuple[Product, Product]:
        """The products with the transpose and with A. The residual is computed once."""
        leading = b.ndim - 1
        with torch.inference_mode(False), torch.enable_grad():
            point = [t.clone() if t.is_inference() else t.detach() for t in point]
            z = [t.requires_grad_() for t in point[: self.count]]
            pull = gradient([self.batched(leading)(*point)], z)

        @functools.cache
        def push() -> Callable[..., Sequence[Tensor]]:
            with torch.inference_mode(False), torch.enable_grad():
                w = torch.zeros_like(b).requires_grad_()
                return gradient(pull([w], create_graph=True), [w])

        def back(w: Tensor) -> Tensor:
            return flat(pull([w.to(b.dtype)]), leading).to(w.dtype)

        def ahead(w: Tensor) -> Tensor:
            return push()(unflat(w.to(b.dtype), z, leading))[0].to(w.dtype)

        return back, ahead

    def _lu(self, back: Product, b: Tensor, point: Tensors) -> LU:
        """The factors of A, made once for a point."""
        # An inference tensor does not tell when it changes.
        kept = not any(t.is_inference() for t in point)
        key = [(t.data_ptr(), t.shape, t.stride(), t._version) for t in point] if kept else None
        if self.factors is None or not kept or self.factors[0] != key:
            n = b.shape[-1]
            rows = torch.eye(n, dtype=b.dtype, device=b.device).reshape(n, *[1] * (b.ndim - 1), n).expand(n, *b.shape)
            lu = LU(torch.func.vmap(back)(rows).movedim(0, -2))
            if lu.singular.any():
                raise RuntimeError(
                    f"{self.label}: {self.matrix} is singular{sample_of(lu.singular)}, so there is no solution, or no derivative."
                )
            self.factors = key, point, lu  # the tensors, so that no others have their addresses
        return self.factors[2]

    def _check(self, method: Any, matvec: Product, w: Tensor, b: Tensor, dtype: torch.dtype, indefinite: Tensor | None) -> None:
        """Look at the residual of an iterative solver."""
        if not isinstance(w, Tensor) or w.shape != b.shape:
            found = tuple(w.shape) if isinstance(w, Tensor) else type(w).__name__
            raise ValueError(f"{self.label}: `linear_solve` must return a tensor of shape {tuple(b.shape)}, got {found}.")
        if self.tol is None and not isinstance(method, str):
            return
        # Subnormal vectors have no digits in which a residual could be small. torch.func.linearize runs such ones once.
        info = torch.finfo(b.dtype)
        off = (norm(b - matvec(w)) / norm(b).clamp_min(info.tiny / info.eps)).squeeze(-1)
        least = max(1e-3 if self.tol is None else self.tol, 16 * torch.finfo(dtype).eps)
        failed = off > 0.5 if indefinite is None else (off > 0.5) | (indefinite & (off > least))
        if isinstance(method, str) and failed.any():
            raise RuntimeError(
                f"{self.label}: {method} does not solve the linear equations{sample_of(failed)}: the residual is "
                f"{off[failed].nan_to_num(0).max():.2g} of the right-hand side. Either {self.matrix} is singular, or of another "
                'kind (cg takes symmetric definite ones); linear_solve="dense" is exact.'
            )
        large = off > least
        if self.tol is not None and large.any():
            warn(
                f"{self.label}: {_name(method)} leaves a residual of {off.nan_to_num(0).max():.2g} of the right-hand side in the "
                f"linear equations{sample_of(large)}.",
                RuntimeWarning,
            )


class Jacobian(NamedTuple):
    r"""The matrix :math:`A = \partial_z f(z, v)` of an equation, or its transpose: products and solutions of vectors at a point.

    Both are differentiable by the vector and the point at every order, since the derivatives of a solution are solutions again:

    .. math::
        A w = b, \qquad dw = A^{-1} (db - dA\,w)
    """

    equation: Equation
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
        solved, like = functools.partial(self.equation.solved, self.is_transposed), lambda b, *_: Result(torch.empty_like(b))
        w = opaque_values(Refusing(self.equation.label), "broadcast", solved, like, [b, *point]).whole()
        return self._solution(w, [b, *point])

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


class ByEquation:
    r"""The derivative of a solution z by the tensors v of its equation; the inputs of the rule are v and then z.

    .. math::
        D = -A^{-1}\,\partial_v f(z, v)

    ``solve(A, b, point)`` is `Jacobian.solve`, or what is taken in its place.
    """

    def __init__(self, equation: Equation, solve: Callable[..., Tensor] = Jacobian.solve) -> None:
        self.equation, self.solve = equation, solve

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


def neumann(terms: int, jacobian: Jacobian, b: Tensor, point: Tensors) -> Tensor:
    """The first terms of the series of the inverse of the Jacobian, times a vector."""
    total = term = b
    for _ in range(terms):
        term = term - jacobian.times(term, point)
        total = total + term
    return total


def real(tensor: Tensor) -> torch.dtype:
    """The dtype of the numbers in a real or complex tensor."""
    return tensor.dtype.to_real() if tensor.dtype.is_complex else tensor.dtype


def gradient(y: Sequence[Tensor], x: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
    """The function of cotangents of y that returns the gradients of x, by the graph of y, which it keeps."""
    if not all(v.requires_grad for v in y):
        return lambda g, **_: [torch.zeros_like(v) for v in x]
    return lambda g, create_graph=False: torch.autograd.grad(
        y, x, g, retain_graph=True, create_graph=create_graph, materialize_grads=True
    )


def flat(tensors: Sequence[Tensor], leading: int = 0) -> Tensor:
    """Tensors of one dtype as one real vector, behind some leading dimensions."""
    parts = [torch.view_as_real(t.resolve_conj()) if t.dtype.is_complex else t for t in tensors]
    parts = [t.reshape([*t.shape[:leading], math.prod(t.shape[leading:])]) for t in parts]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def unflat(vector: Tensor, like: Sequence[Tensor], leading: int = 0) -> list[Tensor]:
    """The tensors of a vector."""
    is_complex = like[0].dtype.is_complex
    shapes = [(*t.shape[leading:], 2) if is_complex else t.shape[leading:] for t in like]
    parts = [vector] if len(shapes) == 1 else vector.split([math.prod(s) for s in shapes], -1)
    parts = [p.reshape([*p.shape[:leading], *s]) for p, s in zip(parts, shapes, strict=True)]
    return [torch.view_as_complex(p) for p in parts] if is_complex else parts


def _name(method: Any) -> str:
    return method if isinstance(method, str) else getattr(method, "__name__", "linear_solve")


def sample_of(bad: Tensor) -> str:
    """Where the first True is, for a message, if there is a batch."""
    if not bad.ndim:
        return ""
    index = tuple(bad.nonzero()[0].tolist())
    return f" in sample {index[0] if len(index) == 1 else index}"
