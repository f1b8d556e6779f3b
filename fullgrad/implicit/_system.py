"""`System`: linear equations whose matrix is the Jacobian of a residual, as operators of every order."""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad.functions._closures import Refusing
from fullgrad.functions._declared import Maybe, Rule, declared, is_differentiated, may_differ, transpose, transposed
from fullgrad.functions._opaque import opaque_values
from fullgrad.implicit._linear import LU, Product, cg, gmres, norm, nonzero, normal_cg

METHODS = ("dense", "cg", "normal_cg", "gmres")
DENSE = 512  # the most unknowns for which the matrix is made, if nothing is said


class System:
    r"""The equations :math:`A w = b` and :math:`A^T w = b` for :math:`A = \partial_z f(z, v)`, where z is a vector.

    A solution is differentiable by b, z and v at every order, since its derivatives are solutions of the two equations again:

    .. math::
        dw = A^{-1} (db - dA\,w)
    """

    def __init__(self, label: str, f: Callable[..., Tensor], method: Any, otherwise: str, tol: float | None) -> None:
        self.label, self.f, self.method, self.otherwise, self.tol = label, f, method, otherwise, tol
        self.factors: tuple[Any, list[Tensor], LU] | None = None

    def product(self, transposed_: bool, w: Tensor, z: Tensor, v: Sequence[Tensor]) -> Tensor:
        """``A w`` or ``A.mT w`` as differentiable code."""

        def back(*all: Tensor) -> Sequence[Tensor]:
            return transpose(lambda *zv: [self.f(*zv)], all[:-1], (0,))(all[-1])

        if transposed_:
            return back(z, *v, w)[0]
        return transposed(back, [z, *v], [(w.shape, w.dtype, w.device)])(w)[0]

    def solved(self, transposed_: bool, b: Tensor, z: Tensor, v: Sequence[Tensor]) -> Tensor:
        """The solution of ``A w = b`` or ``A.mT w = b``."""
        function = functools.partial(self._value, transposed_)
        w = opaque_values(Refusing(self.label), "broadcast", function, lambda b, *_: [torch.empty_like(b)], [b, z, *v])[0]
        return self._differentiable(transposed_, w, [b, z, *v])

    def _differentiable(self, transposed_: bool, w: Tensor, bzv: Sequence[Tensor]) -> Tensor:
        """A solution that is known, with its derivative."""
        if not is_differentiated(bzv):
            return w
        rule = Rule(functools.partial(self._pull, transposed_), functools.partial(self._push, transposed_))
        return declared(rule, [w], [*bzv, w])[0]

    def _pull(self, transposed_: bool, inputs: Sequence[Tensor], cotangents: Sequence[Tensor], needs: Sequence[bool]) -> Maybe:
        bzv, zv = inputs[:-1], inputs[1:-1]
        u = self.solved(not transposed_, cotangents[0], zv[0], zv[1:])
        found: list[Tensor | None] = [u, *[None] * (len(inputs) - 1)]
        where = tuple([i for i, x in enumerate(zv) if needs[i + 1] and may_differ(x)])
        if where:
            w = self._differentiable(transposed_, inputs[-1], bzv)
            for i, g in zip(where, transpose(self._products(transposed_), [*zv, w], where)(-u), strict=True):
                found[i + 1] = g
        return found

    def _push(self, transposed_: bool, inputs: Sequence[Tensor], tangents: Maybe, like: Any) -> Sequence[Tensor]:
        bzv, zv, t = inputs[:-1], inputs[1:-1], tangents[1:-1]
        right = torch.zeros_like(inputs[0]) if tangents[0] is None else tangents[0]
        where = tuple([i for i, x in enumerate(t) if x is not None])
        if where:
            w, products = self._differentiable(transposed_, inputs[-1], bzv), self._products(transposed_)
            back = lambda *all: transpose(products, all[:-1], where)(all[-1])  # noqa: E731
            right = right - transposed(back, [*zv, w], like)(*[t[i] for i in where])[0]
        return [self.solved(transposed_, right, zv[0], zv[1:])]

    def _products(self, transposed_: bool) -> Callable[..., list[Tensor]]:
        return lambda z, *vw: [self.product(transposed_, vw[-1], z, vw[:-1])]

    # --- Numbers, on plain tensors with a batch in front ----------------------------------------------------------------

    def batched(self, z: Tensor) -> Callable[..., Tensor]:
        """The residual for tensors that have as many dimensions more in front as ``z`` has."""
        f = self.f
        for _ in range(z.ndim - 1):
            f = torch.func.vmap(f)
        return f

    @torch.no_grad()
    def _value(self, transposed_: bool, b: Tensor, z: Tensor, *v: Tensor) -> list[Tensor]:
        if not b.numel():
            return [torch.zeros_like(b)]
        own = torch.promote_types(b.dtype, torch.float32)
        right, n = b.to(own), b.shape[-1]
        method = self.method or ("dense" if n <= DENSE else self.otherwise)
        back, ahead = self._products_of(z, v, own, both=method != "dense")
        if method == "dense":
            w = self._lu(back, z, v, own).solve(right, transposed_)
        else:
            matvec, rmatvec = (back, ahead) if transposed_ else (ahead, back)
            w = normal_cg(matvec, rmatvec, right) if method == "normal_cg" else _SOLVERS.get(method, method)(matvec, right)
            self._check(method, matvec, w, right, z.dtype)
        return [w.to(b.dtype)]

    def _products_of(self, z: Tensor, v: Sequence[Tensor], dtype: torch.dtype, both: bool) -> tuple[Product, Any]:
        """The products with the transpose and, if both are wanted, with A. The residual is computed once."""
        given = torch.zeros_like(z)
        with torch.inference_mode(False), torch.enable_grad():
            leaf, *rest = [t.clone() if t.is_inference() else t.detach() for t in (z, *v)]
            leaf.requires_grad_()
            y = self.batched(z)(leaf, *rest)
            pull = gradient(y, leaf)
            push = gradient(pull(given.requires_grad_(), create_graph=True), given) if both else None
        return tuple([p and (lambda w, p=p: p(w.to(z.dtype)).to(dtype)) for p in (pull, push)])  # pyright: ignore

    def _lu(self, back: Product, z: Tensor, v: Sequence[Tensor], dtype: torch.dtype) -> LU:
        """The factors of A, made once for one z and v."""
        # An inference tensor does not tell when it changes.
        kept = not any([t.is_inference() for t in (z, *v)])
        key = [(t.data_ptr(), t.shape, t.stride(), t._version) for t in (z, *v)] if kept else None
        if self.factors is None or not kept or self.factors[0] != key:
            n = z.shape[-1]
            rows = torch.eye(n, dtype=dtype, device=z.device).reshape(n, *[1] * (z.ndim - 1), n).expand(n, *z.shape)
            lu = LU(torch.func.vmap(back)(rows).movedim(0, -2))
            if lu.singular.any():
                raise RuntimeError(
                    f"{self.label}: the Jacobian of the equation by its solution is singular{sample_of(lu.singular)}, so the "
                    "solution has no derivative there."
                )
            self.factors = key, [z, *v], lu  # the tensors, so that no others have their addresses
        return self.factors[2]

    def _check(self, method: Any, matvec: Product, w: Tensor, b: Tensor, dtype: torch.dtype) -> None:
        """Look at the residual of an iterative solver."""
        if not isinstance(w, Tensor) or w.shape != b.shape:
            found = tuple(w.shape) if isinstance(w, Tensor) else type(w).__name__
            raise ValueError(f"{self.label}: `linear_solve` must return a tensor of shape {tuple(b.shape)}, got {found}.")
        off = (norm(b - matvec(w)) / nonzero(norm(b))).squeeze(-1)
        if isinstance(method, str) and (off > 0.5).any():
            raise RuntimeError(
                f"{self.label}: {method} does not solve the linear equations of the derivative{sample_of(off > 0.5)}: the "
                f"residual is {off.nan_to_num(0).max():.2g} of the right-hand side. The Jacobian is singular or of another kind "
                '(cg takes symmetric positive definite ones); linear_solve="dense" is exact.'
            )
        tol = torch.inf if self.tol is None else max(self.tol, 16 * torch.finfo(dtype).eps)
        if (off > tol).any():
            warnings.warn(
                f"{self.label}: {_name(method)} leaves a residual of {off.nan_to_num(0).max():.2g} of the right-hand side in the "
                f"linear equations of the derivative{sample_of(off > tol)}.",
                RuntimeWarning,
                stacklevel=2,
            )


def gradient(y: Tensor, x: Tensor) -> Callable[..., Tensor]:
    """The function of a cotangent of y that returns the gradient of x, by the graph of y, which it keeps."""
    if not y.requires_grad:
        return lambda g, **_: torch.zeros_like(x)
    return lambda g, create_graph=False: torch.autograd.grad(
        y, x, g, retain_graph=True, create_graph=create_graph, materialize_grads=True
    )[0]


_SOLVERS: dict[Any, Any] = {"cg": cg, "gmres": gmres}


def _name(method: Any) -> str:
    return method if isinstance(method, str) else getattr(method, "__name__", "linear_solve")


def sample_of(bad: Tensor) -> str:
    """Where the first True is, for a message, if there is a batch."""
    if not bad.ndim:
        return ""
    index = tuple(bad.nonzero()[0].tolist())
    return f" in sample {index[0] if len(index) == 1 else index}"
