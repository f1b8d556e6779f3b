"""Determinants, solutions and inverses of matrices."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import active_transforms, has_tangent, innermost
from fullgrad.completion._products import exponents, times_power
from fullgrad.completion._registry import (
    NAN_OF_TANGENT,
    NAN_THIRD,
    NO_DERIVATIVE,
    NO_FORWARD,
    WRONG,
    WRONG_FORWARD,
    completes,
    prepares,
    valued,
)


def _lu(a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Factors, pivots, the diagonal of U, and the sign of the permutation."""
    factors, pivots, _ = torch.linalg.lu_factor_ex(a)
    count = torch.arange(1, a.shape[-1] + 1, device=a.device)
    sign = torch.where(pivots != count, -1, 1).prod(-1).to(a.dtype)
    return factors, pivots, factors.diagonal(dim1=-2, dim2=-1), sign


def _small_det(a: Tensor) -> Tensor:
    """The determinant of up to three rows, as a polynomial."""
    if a.shape[-1] == 0:
        return torch.ones(a.shape[:-2], dtype=a.dtype, device=a.device)
    rows = [row.unbind(-1) for row in a.unbind(-2)]
    if len(rows) == 1:
        return rows[0][0]
    if len(rows) == 2:
        return rows[0][0] * rows[1][1] - rows[0][1] * rows[1][0]
    minors = [rows[1][i] * rows[2][j] - rows[1][j] * rows[2][i] for i, j in ((1, 2), (2, 0), (0, 1))]
    return rows[0][0] * minors[0] + rows[0][1] * minors[1] + rows[0][2] * minors[2]


@completes("_linalg_det", WRONG, issue=196696)
def _det(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""The determinant, by \(\det B = \det B_{11} \det(B_{22} - B_{21} B_{11}^{-1} B_{12})\) with three rows in the second block.

    B is the matrix, balanced, in its own singular bases, constants, so that the smallest singular values, which may be 0, are in
    the second block, whose determinant divides by nothing. Below the rank n - 3 the value and its first three derivatives are 0.
    """
    factors, pivots, _ = torch.linalg.lu_factor_ex(a.detach())
    k = a.shape[-1] - 3
    if k <= 0:
        return _small_det(a), factors, pivots
    a, exponent = _balanced(a)
    is_finite = a.detach().isfinite().all(-1).all(-1)  # torch has no singular values of another, nor of the others of its batch
    constant = torch.where(is_finite[..., None, None], a.detach(), torch.eye(k + 3, dtype=a.dtype, device=a.device))
    u, s, vh = torch.linalg.svd(constant)
    b = u.mH @ a @ vh.mH
    b = torch.diag_embed(s).to(b.dtype) + (b - b.detach())  # which is diagonal, but for rounding
    is_0 = s[..., k - 1] == 0
    first = torch.where(is_0[..., None, None], torch.eye(k, dtype=a.dtype, device=a.device), b[..., :k, :k])
    second = b[..., k:, k:] - b[..., k:, :k] @ torch.linalg.inv_ex(first)[0] @ b[..., :k, k:]
    y = torch.where(is_0, 0, _by_factors(u) * _by_factors(vh) * _by_factors(first) * _small_det(second))
    return times_power(y * torch.where(is_finite, 1, torch.nan).to(s.dtype), exponent), factors, pivots


def _balanced(a: Tensor) -> tuple[Tensor, Tensor]:
    """The matrix with rows and columns scaled by powers of two, the largest numbers of each near 1, and the exponent of what its
    determinant is to be multiplied by.
    """
    total: Any = 0
    for dim in (-1, -2, -1, -2):
        size = a.detach().abs().amax(dim, keepdim=True)
        size = torch.where(size == 0, size.amax((-1, -2), keepdim=True), size)  # zeros are as large as the others
        exponent = exponents(size)
        a, total = times_power(a, -exponent), total + exponent.sum((-1, -2))
    return a, total


def _by_factors(a: Tensor) -> Tensor:
    _, _, diagonal, sign = _lu(a)
    return sign * diagonal.prod(-1)


@completes("_linalg_slogdet", WRONG, issue=196697)
def _slogdet(a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    factors, pivots, diagonal, sign = _lu(a)
    size = diagonal.abs()
    sign = sign * (diagonal / size).prod(-1) if a.is_complex() else sign  # a real one is constant
    return sign, size.log().sum(-1), factors.detach(), pivots


def _is_vector(a: Tensor, b: Tensor) -> bool:
    return b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1])


@prepares("_linalg_solve_ex")
def _of_one_rank(a: Tensor, b: Tensor, *, left: bool = True, **_: Any) -> Any:
    """Tensors with as many dimensions: torch's rule puts that of the samples in front of all, and broadcasts from the last."""
    if left and _is_vector(a, b):
        return a, b.expand(a.shape[:-1])
    return [v.reshape(*[1] * (rank - v.ndim), *v.shape) for v, rank in ((a, b.ndim), (b, a.ndim))]


@prepares("linalg_lu_solve")
def _factors_of_one_batch(factors: Tensor, pivots: Tensor, b: Tensor, **_: Any) -> Any:
    """All in the whole batch: torch's kernel is wrong where the memory of factors that it broadcasts has some strides."""
    batch = torch.broadcast_shapes(factors.shape[:-2], b.shape[:-2])
    factors, pivots = factors.expand(*batch, *factors.shape[-2:]), pivots.expand(*batch, pivots.shape[-1])
    return factors, pivots, b.expand(*batch, *b.shape[-2:])


@completes("_linalg_solve_ex", WRONG, issue=192540)
def _solve_ex(a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False) -> tuple[Tensor, ...]:
    factors, pivots, info = torch.linalg.lu_factor_ex(a, check_errors=check_errors)
    is_vector = left and _is_vector(a, b)
    right, inverse = b.unsqueeze(-1) if is_vector else b, torch.linalg.inv_ex(a)[0]
    x = inverse @ right if left else right @ inverse  # torch's lu_solve is wrong in a batch of Hessians
    return x.squeeze(-1) if is_vector else x, factors.detach(), pivots, info


@completes("cholesky_inverse", WRONG, issue=198017)
def _cholesky_inverse(factor: Tensor, upper: bool = False) -> Tensor:
    unit = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device).expand_as(factor)
    inverse = torch.linalg.solve_triangular(factor, unit, upper=upper)
    return inverse @ inverse.mH if upper else inverse.mH @ inverse


@completes("linalg_cholesky_ex", WRONG_FORWARD, has_first=True, is_prepared=True)
def _symmetric(a: Tensor, **_: Any) -> tuple[Tensor]:
    r"""torch's tangent is that of a symmetric one, and its gradient that of \((A + A^H) / 2\), though one triangle is read."""
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        return (a,)  # torch has the words
    return (valued((a + a.mH) / 2, a.detach()),)


@completes("cholesky", NO_FORWARD)
def _cholesky(a: Tensor, upper: bool = False) -> Tensor:
    return torch.linalg.cholesky(a, upper=upper)


@completes("cholesky_solve", WRONG_FORWARD, issue=196694)
def _cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    lower = factor.mH if upper else factor
    half = torch.linalg.solve_triangular(lower, b, upper=False)
    return torch.linalg.solve_triangular(lower.mH, half, upper=True)


def _reflectors(a: Tensor) -> list[Tensor]:
    """The vectors, one column each, of the reflections that ``geqrf`` returns."""
    unit = torch.eye(a.shape[-2], a.shape[-1], dtype=a.dtype, device=a.device)
    return [*(a.tril(-1) + unit).unsqueeze(-1).unbind(-2)]


@completes("linalg_householder_product", WRONG, issue=196698)
def _householder_product(a: Tensor, tau: Tensor) -> Tensor:
    q = torch.eye(a.shape[-2], a.shape[-1], dtype=a.dtype, device=a.device).expand(a.shape)
    for i, v in reversed([*enumerate(_reflectors(a)[: tau.shape[-1]])]):
        q = q - tau[..., i, None, None] * v @ (v.mH @ q)
    return q


@completes("ormqr", NO_FORWARD)
def _ormqr(a: Tensor, tau: Tensor, other: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    y, vectors = other if left else other.mH, _reflectors(a)
    for i in range(tau.shape[-1]) if left == transpose else reversed(range(tau.shape[-1])):
        scale = tau[..., i, None, None]
        y = y - (scale.conj() if left == transpose else scale) * vectors[i] @ (vectors[i].mH @ y)
    return y if left else y.mH


@completes("triangular_solve", WRONG_FORWARD)
def _triangular_solve(
    b: Tensor, a: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    own = a.mT if transpose else a
    x = torch.linalg.solve_triangular(own, b, upper=upper is not transpose, unitriangular=unitriangular)
    return x, a.clone()


@completes("linalg_ldl_solve", NO_DERIVATIVE)
def _ldl_solve(ld: Tensor, pivots: Tensor, b: Tensor, *, hermitian: bool = False) -> Any:
    r"""\(A^{-1} b\), linear in b. torch has no derivative of the factors, nor has the formula."""
    if ld.requires_grad or has_tangent(ld):
        raise NotImplementedError(
            "torch.linalg.ldl_solve has no derivative with respect to the factors `LD`;"
            " detach them, or call torch.linalg.solve with the matrix itself."
        )
    unit = torch.eye(ld.shape[-1], dtype=ld.dtype, device=ld.device).expand_as(ld)
    return torch.linalg.ldl_solve(ld, pivots, unit, hermitian=hermitian) @ b


def _orders(x: Tensor) -> int:
    """How many derivatives may be taken: one in each transform, and three outside of all."""
    return sum(kind != "Vmap" for kind in active_transforms()) + (3 if innermost(x).requires_grad else 1)


def _refined(a: Tensor, values: Tensor, v: Tensor, inverse: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
    r"""Eigenvalues and eigenvectors of a matrix that changes, by steps from those of a constant one. Of n steps the derivatives
    are right to the order 2^n - 1.

    In the basis V of the latter the matrix is S = V^{-1} A V, whose eigenvectors are X = 1. With T = X^{-1} S X nearer ones are
    X (1 + E), where E_ij = T_ij / (T_jj - T_ii) and E_ii = 0. The eigenvectors V X have the length 1, and their phase is torch's.
    """
    s = torch.diag_embed(values).to(v.dtype) + inverse @ change.to(v.dtype) @ v
    unit = torch.eye(v.shape[-1], dtype=v.dtype, device=v.device)
    x, is_one = unit.expand_as(s), unit != 0
    is_equal = (values.unsqueeze(-2) == values.unsqueeze(-1)) & ~is_one
    for _ in range(max(2, _orders(a).bit_length())):
        t = torch.linalg.inv_ex(x)[0] @ s @ x
        found = t.diagonal(dim1=-2, dim2=-1)
        gap = torch.where(is_one | is_equal, 1, found.unsqueeze(-2) - found.unsqueeze(-1))
        x = x + x @ torch.where(is_one | is_equal, 0, t / gap)
    # Eigenvectors of equal eigenvalues have no derivative.
    y = v @ (x + s * torch.where(is_equal, torch.nan, 0))
    length = (y.conj() * y).real.sum(-2, keepdim=True).sqrt()
    return (torch.linalg.inv_ex(x)[0] @ s @ x).diagonal(dim1=-2, dim2=-1), y / length


@completes("_linalg_eigh", NAN_THIRD, has_first=True)
def _eigh(a: Tensor, UPLO: str = "L", compute_v: bool = True) -> Any:  # torch's name
    """torch's gradient is that of both triangles, though one is read."""
    values, v = torch.linalg.eigh(a.detach(), UPLO)
    change = a - a.detach()
    values, vectors = _refined(a, values, v, v.mH, (change + change.mH) / 2)
    return values.real if values.is_complex() else values, vectors if compute_v else v.new_empty(0)


@completes("linalg_eig", NAN_OF_TANGENT, has_first=True)
def _eig(a: Tensor) -> Any:
    values, v = torch.linalg.eig(a.detach())
    return _refined(a, values, v, torch.linalg.inv_ex(v)[0], a - a.detach())


def _is_missing_cond(args: Sequence[Any]) -> bool:
    return len(args) > 1 and args[1] not in (None, 2, -2, "nuc")


def _completes_cond(name: str) -> None:
    @completes(name, "the gradient raises, but of singular values", is_missing=_is_missing_cond)
    def cond(a: Tensor, p: Any = None) -> Any:
        """The norm of a matrix times that of its inverse."""
        if not _is_missing_cond((a, p)) or not a.numel():
            return NotImplemented
        inverse, info = torch.linalg.inv_ex(a)
        inverse = torch.where((info > 0)[..., None, None], torch.inf, inverse)
        return torch.linalg.matrix_norm(a, p) * torch.linalg.matrix_norm(inverse, p)


_completes_cond("linalg_cond")
_completes_cond("linalg_cond.p_str")
