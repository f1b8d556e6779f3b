"""`System`: linear equations whose matrix is the Jacobian of a residual, as operators of every order."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from fullgrad._core.autocast import matmul
from fullgrad._core.warn import warn
from fullgrad._engine.closure import Refusing
from fullgrad._engine.rule import Maybe, Rule, declared, is_differentiated, may_differ, scattered, transpose, transposed
from fullgrad._engine.values import opaque_values
from fullgrad.implicit._linear import LU, Product, cg_and_curvature, gmres, norm, normal_cg

METHODS = ("dense", "cg", "normal_cg", "gmres")
DENSE = 512  # the most unknowns for which the matrix is made, if nothing is said


class System:
    r"""The equations :math:`A w = b` and :math:`A^T w = b` for :math:`A = \partial_z f(z, v)`, where b and w are vectors.

    ``f`` takes ``count`` tensors of z and those of v, and returns a vector. A solution is differentiable by b, z and v at every
    order, since its derivatives are solutions of the two equations again:

    .. math::
        dw = A^{-1} (db - dA\,w)
    """

    matrix = "the Jacobian of the equation by its solution"

    def __init__(self, label: str, f: Callable[..., Tensor], count: int, method: Any, otherwise: str, tol: float | None) -> None:
        self.label, self.f, self.count, self.method, self.otherwise, self.tol = label, f, count, method, otherwise, tol
        self.factors: tuple[Any, Sequence[Tensor], LU] | None = None

    def product(self, is_transposed: bool, w: Tensor, zv: Sequence[Tensor]) -> Tensor:
        """``A w`` or ``A.mT w`` as differentiable code."""
        z, where = zv[: self.count], tuple(range(self.count))

        def back(*all: Tensor) -> Sequence[Tensor]:
            return transpose(lambda *zv: [self.f(*zv)], all[:-1], where)(all[-1])

        if is_transposed:
            return flat(back(*zv, w))
        return transposed(back, zv, [(w.shape, w.dtype, w.device)])(*unflat(w, z))[0]

    def solved(self, is_transposed: bool, b: Tensor, zv: Sequence[Tensor]) -> Tensor:
        """The solution of ``A w = b`` or ``A.mT w = b``."""
        if is_dynamo_compiling() and b.shape[-1] <= DENSE:  # compiled autograd, which traces a backward
            unit = torch.eye(b.shape[-1], dtype=b.dtype, device=b.device)
            inverse = torch.linalg.inv(torch.func.vmap(lambda w: self.product(True, w, zv))(unit))
            return matmul(inverse.mT if is_transposed else inverse, b)
        function = functools.partial(self._value, is_transposed)
        w = opaque_values(Refusing(self.label), "broadcast", function, lambda b, *_: [torch.empty_like(b)], [b, *zv])[0]
        return self._differentiable(is_transposed, w, [b, *zv])

    def _differentiable(self, is_transposed: bool, w: Tensor, bzv: Sequence[Tensor]) -> Tensor:
        """A solution that is known, with its derivative."""
        if not is_differentiated(bzv):
            return w
        rule = Rule(functools.partial(self._pull, is_transposed), functools.partial(self._push, is_transposed))
        return declared(rule, [w], [*bzv, w])[0]

    def _pull(self, is_transposed: bool, inputs: Sequence[Tensor], cotangents: Sequence[Tensor], needs: Sequence[bool]) -> Maybe:
        bzv, zv = inputs[:-1], inputs[1:-1]
        u = self.solved(not is_transposed, cotangents[0], zv)
        where = tuple([i for i, x in enumerate(zv) if needs[i + 1] and may_differ(x)])
        grads: Sequence[Tensor] = ()
        if where:
            w = self._differentiable(is_transposed, inputs[-1], bzv)
            grads = transpose(self._products(is_transposed), [*zv, w], where)(-u)
        return [u, *scattered(len(zv), where, grads), None]

    def _push(self, is_transposed: bool, inputs: Sequence[Tensor], tangents: Maybe, like: Any) -> Sequence[Tensor]:
        bzv, zv, t = inputs[:-1], inputs[1:-1], tangents[1:-1]
        right = torch.zeros_like(inputs[0]) if tangents[0] is None else tangents[0]
        where = tuple([i for i, x in enumerate(t) if x is not None])
        if where:
            w, products = self._differentiable(is_transposed, inputs[-1], bzv), self._products(is_transposed)
            back = lambda *all: transpose(products, all[:-1], where)(all[-1])  # noqa: E731
            right = right - transposed(back, [*zv, w], like)(*[t[i] for i in where])[0]
        return [self.solved(is_transposed, right, zv)]

    def _products(self, is_transposed: bool) -> Callable[..., list[Tensor]]:
        return lambda *zvw: [self.product(is_transposed, zvw[-1], zvw[:-1])]

    # --- Numbers, on plain tensors with a batch in front ----------------------------------------------------------------

    def batched(self, leading: int) -> Callable[..., Tensor]:
        """The residual for tensors that have some dimensions more in front."""
        f = self.f
        for _ in range(leading):
            f = torch.func.vmap(f)
        return f

    @torch.no_grad()
    def _value(self, is_transposed: bool, b: Tensor, *zv: Tensor) -> list[Tensor]:
        if not b.numel():
            return [torch.zeros_like(b)]
        own = torch.promote_types(b.dtype, torch.float32)
        right, n = b.to(own), b.shape[-1]
        method = self.method or ("dense" if n <= DENSE else self.otherwise)
        back, ahead = self._products_of(b, zv)
        if method == "dense":
            w = self._lu(back, right, zv).solve(right, is_transposed)
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
        return [w.to(b.dtype)]

    def _products_of(self, b: Tensor, zv: Sequence[Tensor]) -> tuple[Product, Product]:
        """The products with the transpose and with A. The residual is computed once."""
        leading = b.ndim - 1
        with torch.inference_mode(False), torch.enable_grad():
            zv = [t.clone() if t.is_inference() else t.detach() for t in zv]
            z = [t.requires_grad_() for t in zv[: self.count]]
            pull = gradient([self.batched(leading)(*zv)], z)

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

    def _lu(self, back: Product, b: Tensor, zv: Sequence[Tensor]) -> LU:
        """The factors of A, made once for one z and v."""
        # An inference tensor does not tell when it changes.
        kept = not any(t.is_inference() for t in zv)
        key = [(t.data_ptr(), t.shape, t.stride(), t._version) for t in zv] if kept else None
        if self.factors is None or not kept or self.factors[0] != key:
            n = b.shape[-1]
            rows = torch.eye(n, dtype=b.dtype, device=b.device).reshape(n, *[1] * (b.ndim - 1), n).expand(n, *b.shape)
            lu = LU(torch.func.vmap(back)(rows).movedim(0, -2))
            if lu.singular.any():
                raise RuntimeError(
                    f"{self.label}: {self.matrix} is singular{sample_of(lu.singular)}, so there is no solution, or no derivative."
                )
            self.factors = key, zv, lu  # the tensors, so that no others have their addresses
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
