"""Solvers of linear equations on plain tensors: the last dimension is a vector, those before it are a batch."""

from collections.abc import Callable

import torch
from torch import Tensor

from fullgrad._core.autocast import matmul

Product = Callable[[Tensor], Tensor]


def cg(matvec: Product, b: Tensor, *, tol: float | None = None, maxiter: int | None = None) -> Tensor:
    r"""Conjugate gradients for a symmetric positive definite matrix, without a derivative of its own.

    .. math::
        A\,w = b

    For use as ``linear_solve`` with other limits, as in ``functools.partial(cg, maxiter=20)``. Each vector of a batch stops by
    itself. The host reads a number per iteration.

    Args:
        matvec: The function :math:`w \mapsto A w` of tensors like ``b``.
        b: A tensor of shape ``(..., n)``, a batch of vectors.
        tol: The norm of :math:`b - A w` at which it stops, in units of the norm of b; by default ``eps ** 0.75``.
        maxiter: The most iterations; by default ``2 n + 20``, at most 1000.

    Returns:
        The solution, like ``b``, or what was reached.

    Raises:
        TypeError: ``b`` has no floating dtype.

    Example:
        >>> import torch, fullgrad
        >>> a = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
        >>> fullgrad.implicit.cg(lambda w: w @ a, torch.tensor([3.0, 4.0]))
        tensor([1.0000, 1.0000])

    Source: Hestenes, Stiefel, Methods of conjugate gradients for solving linear systems, 1952.
    """
    return cg_and_curvature(matvec, b, tol=tol, maxiter=maxiter)[0]


def cg_and_curvature(
    matvec: Product, b: Tensor, *, tol: float | None = None, maxiter: int | None = None
) -> tuple[Tensor, Tensor]:
    """The solution by conjugate gradients, and whether a product ``p A p`` was 0, or they had both signs, for each vector."""
    unit = norm(b)
    r = b / nonzero(unit)
    w, p, square = torch.zeros_like(r), r, dot(r, r)
    least, most = torch.full_like(square, torch.inf), torch.full_like(square, -torch.inf)
    for _ in range(_iterations(b, maxiter)):
        runs = square > _tolerance(b, tol) ** 2
        if not runs.any():
            break
        product = matvec(p)
        curvature = dot(p, product)
        least = torch.where(runs, torch.minimum(least, curvature), least)
        most = torch.where(runs, torch.maximum(most, curvature), most)
        step = torch.where(runs, square / nonzero(curvature), 0)
        w, r, before = w + step * p, r - step * product, square
        square = torch.where(runs, dot(r, r), square)
        p = r + square / nonzero(before) * p
    w = torch.where(square.isnan(), square, w)  # an infinite product makes a step of 0
    return w * unit, ((least <= 0) & (most >= 0)).squeeze(-1)


def normal_cg(matvec: Product, rmatvec: Product, b: Tensor) -> Tensor:
    """Conjugate gradients for the normal equations, whose matrix is symmetric and positive definite for any A."""
    return cg(lambda w: rmatvec(matvec(w)), rmatvec(b), tol=_tolerance(b, None) ** 1.2, maxiter=min(4 * b.shape[-1] + 20, 2000))


def gmres(
    matvec: Product, b: Tensor, *, tol: float | None = None, maxiter: int | None = None, restart: int | None = None
) -> Tensor:
    r"""GMRES, the least residual for any matrix, without a derivative of its own.

    .. math::
        A\,w = b

    In the form in which each step knows the residual: a new direction is the residual where it fell, and else the last product;
    its product is orthogonal to the earlier ones. All else is as in :func:`cg`.

    Args:
        matvec: The function :math:`w \mapsto A w` of tensors like ``b``.
        b: A tensor of shape ``(..., n)``, a batch of vectors.
        tol: The norm of :math:`b - A w` at which it stops, in units of the norm of b; by default ``eps ** 0.75``.
        maxiter: The most iterations; by default ``2 n + 20``, at most 1000.
        restart: The most directions that are kept; by default 50.

    Returns:
        The solution, like ``b``, or what was reached.

    Raises:
        TypeError: ``b`` has no floating dtype.

    Example:
        >>> import torch, fullgrad
        >>> a = torch.tensor([[0.0, 2.0], [-1.0, 0.0]])
        >>> fullgrad.implicit.gmres(lambda w: w @ a.mT, torch.tensor([2.0, -1.0]))
        tensor([1.0000, 1.0000])

    Source: Saad, Schultz, GMRES, 1986; Jiránek, Rozložník, Adaptive version of simpler GMRES, 2010.
    """
    unit, tolerance, keep = norm(b), _tolerance(b, tol), restart or 50
    r = b / nonzero(unit)
    w, size = torch.zeros_like(r), norm(r)
    last, fell = r, torch.ones_like(size, dtype=torch.bool)
    directions: list[Tensor] = []
    products: list[Tensor] = []
    for _ in range(_iterations(b, maxiter)):
        runs = size > tolerance
        if not runs.any():
            break
        if len(products) == keep:
            directions, products, fell = [], [], torch.ones_like(fell)
        p = torch.where(fell, r / nonzero(size), last)
        q = matvec(p)
        if products:
            former, of_former = torch.stack(products, -2), torch.stack(directions, -2)
            for _ in range(2):  # the second time removes what rounding left
                parts = matmul(former, q.unsqueeze(-1))
                q, p = q - matmul(former.mT, parts).squeeze(-1), p - matmul(of_former.mT, parts).squeeze(-1)
        length = norm(q)
        p, q = p / nonzero(length), q / nonzero(length)
        step = torch.where(runs, dot(q, r), 0)
        w, r = w + step * p, r - step * q
        before, size = size, torch.where(runs, norm(r), size)
        fell, last = size < 0.9 * before, q
        directions.append(p)
        products.append(q)
    return w * unit


def dot(a: Tensor, b: Tensor) -> Tensor:
    """The product of vectors, which keeps the last dimension."""
    return (a * b).sum(-1, keepdim=True)


def norm(a: Tensor) -> Tensor:
    """The norm of vectors, which keeps the last dimension. Squares do not overflow, and NaN stays."""
    most = nonzero(a.abs().amax(-1, keepdim=True)) if a.shape[-1] else a.new_ones(*a.shape[:-1], 1)
    return most * dot(a / most, a / most).sqrt()


def nonzero(a: Tensor) -> Tensor:
    """The tensor with 1 in place of 0, as a denominator."""
    return torch.where(a == 0, 1, a)


def _tolerance(b: Tensor, tol: float | None) -> float:
    return torch.finfo(b.dtype).eps ** 0.75 if tol is None else tol


def _iterations(b: Tensor, maxiter: int | None) -> int:
    if not b.dtype.is_floating_point:
        raise TypeError(f"The right-hand side of linear equations must be a floating tensor, got dtype {b.dtype}.")
    return min(2 * b.shape[-1] + 20, 1000) if maxiter is None else maxiter


class LU:
    """Factors of square matrices, whose rows are first brought to one scale."""

    def __init__(self, matrices: Tensor) -> None:
        self.matrices = matrices
        if matrices.shape[-1] == 1:
            self.singular = matrices[..., 0, 0] == 0
            return
        most = matrices.abs().amax(-1, keepdim=True)
        self.rows = nonzero(most)
        scaled = matrices / self.rows
        self.factors, self.pivots, _ = torch.linalg.lu_factor_ex(scaled)
        diagonal, columns = self.factors.diagonal(dim1=-2, dim2=-1).abs(), scaled.abs().amax(-2)
        finite = matrices.isfinite().all(-1).all(-1)
        eps = matrices.shape[-1] * torch.finfo(matrices.dtype).eps
        self.singular = finite & (diagonal <= eps * columns).any(-1)

    def solve(self, b: Tensor, transposed: bool) -> Tensor:
        """The solution of ``A w = b``, or of ``A.mT w = b``."""
        if self.matrices.shape[-1] == 1:
            return b / self.matrices.squeeze(-1)
        rows = self.rows.squeeze(-1)
        right = (b if transposed else b / rows).unsqueeze(-1)
        w = torch.linalg.lu_solve(self.factors, self.pivots, right, adjoint=transposed).squeeze(-1)
        return w / rows if transposed else w
