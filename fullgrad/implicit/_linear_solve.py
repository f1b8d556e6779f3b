"""`LinearSolve`: the choice of a solver for linear equations, and its check."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.warn import warn
from fullgrad._engine.symbols import running_numbers
from fullgrad.implicit._linear_algorithms import LU, Product, cg_and_curvature, gmres, norm, normal_cg
from fullgrad.implicit._vectors import flat, gradient, unflat

DENSE = 512  # the most unknowns for which the matrix is made, if nothing is said
Tensors = Sequence[Tensor]


def check_linear_solve(name: str, value: Any) -> None:
    """Refuse what is no way to solve linear equations."""
    if value is not None and not callable(value):
        checks.choice(name, "linear_solve", value, ("dense", "cg", "normal_cg", "gmres"))


class LinearSolve:
    """How linear equations with a matrix A, the Jacobian of an equation, are solved: the choice, the call, and a look at what it
    leaves. The numbers are plain tensors with a batch in front. ``method`` solves the equations, and if that is None and there
    are many unknowns, ``otherwise`` does.
    """

    matrix = "the Jacobian of the equation by its solution"  # in messages

    def __init__(self, label: str, method: Any, otherwise: str, tol: float | None) -> None:
        self.label, self.method, self.otherwise, self.tol = label, method, otherwise, tol
        self.factors: tuple[Any, Tensors, LU] | None = None

    def method_for(self, n: int) -> Any:
        """The name or function by which equations with n unknowns are solved."""
        return self.method or ("dense" if n <= DENSE else self.otherwise)

    @torch.no_grad()
    def solved(self, b: Tensor, is_transposed: bool, z: Tensors, residual: Tensor, point: Tensors) -> Tensor:
        """The solution w of ``A w = b`` or ``A.mT w = b``, where A is the derivative of a residual with respect to z by its
        graph. It is the same as long as the tensors of the point are.
        """
        own = torch.promote_types(b.dtype, torch.float32)
        right, n = b.to(own), b.shape[-1]
        method = self.method_for(n)
        back, ahead = _products(b, z, residual)
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
        return w.to(b.dtype)

    def _lu(self, back: Product, b: Tensor, point: Tensors) -> LU:
        """The factors of A, made once for a point."""
        # An inference tensor does not tell when it changes.
        kept = not any(t.is_inference() for t in point)
        key = [*[(t.data_ptr(), t.shape, t.stride(), t._version) for t in point], running_numbers()] if kept else None
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


def _products(b: Tensor, z: Tensors, residual: Tensor) -> tuple[Product, Product]:
    """The products of vectors like b with the transpose of the derivative of a residual with respect to z, and with itself."""
    leading, pull = b.ndim - 1, gradient([residual], z)

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


def _name(method: Any) -> str:
    return method if isinstance(method, str) else getattr(method, "__name__", "linear_solve")


def sample_of(bad: Tensor) -> str:
    """Where the first True is, for a message, if there is a batch."""
    if not bad.ndim:
        return ""
    index = tuple(bad.nonzero()[0].tolist())
    return f" in sample {index[0] if len(index) == 1 else index}"
