"""`vector_quantize`: round to the nearest row of a matrix."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.autocast import matmul
from fullgrad._core.function import Function
from fullgrad._core.opmath import to_opmath
from fullgrad._dispatch import can_read_numbers, holds, opaque, uses_last_dims
from fullgrad.quantizers import _arguments

GRADIENTS = ("identity", "rotation")
# The number of distances that are computed at once.
_MOST = 2**24
# The number of rows, with distances that float64 hardly tells apart, that are compared closely.
_CANDIDATES = 8


@uses_last_dims(1)
def vector_quantize(x: Tensor, codebook: Tensor, *, gradient: str = "identity") -> tuple[Tensor, Tensor]:
    r"""The nearest row of a codebook for each vector, with the gradient as it is, or rotated.

    .. math::
        i = \operatorname{argmin}_j \lVert x - c_j \rVert, \qquad y = c_i, \qquad D_x = 1 \quad\text{or}\quad
        D_x = r\,(I - 2 w w^\top + 2 q e^\top)

    for the directions *e* of *x*, *q* of :math:`c_i` and *w* of :math:`e + q`, and :math:`r = \lVert c_i \rVert / \lVert x
    \rVert`, with norms of at least 1e-6: the rotation and scaling that maps *x* to :math:`c_i`. That derivative is a function of
    *x*, so it has derivatives of its own, with :math:`c_i` constant; in the published code it has none. The codebook gets no
    gradient: it learns by a loss of its own, of ``codebook[indices]``. The row is the nearest to working precision, however far
    rows are from 0 or from each other: distances are computed by a product of matrices, and again in float64 where its rounding
    might decide. Half precision is computed in float32. Saved: nothing; for the rotation ``x``, ``codebook`` and ``indices``.

    Args:
        x: Of shape (…, d); floating, or integer (which gives the default dtype).
        codebook: Of shape (n, d), with at least one row.
        gradient: ``"identity"`` or ``"rotation"``.

    Returns:
        ``(values, indices)``: a tensor of the shape and dtype of ``x``, and integers of shape (…). A tie goes to the first row,
        as does a vector with an infinity. Vectors with NaN are NaN.

    Raises:
        TypeError: ``x`` or ``codebook`` is not real.
        ValueError: The shapes do not fit, or ``gradient`` is unknown.

    Example:
        >>> import torch
        >>> from fullgrad import quantizers
        >>> x, codebook = torch.tensor([[0.9, 0.2], [-0.1, 2.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> quantizers.vector_quantize(x, codebook)
        (tensor([[1., 0.],
                [0., 1.]]), tensor([0, 1]))

    Source: van den Oord et al., https://arxiv.org/abs/1711.00937; Fifty et al., https://arxiv.org/abs/2410.06424.
    """
    x = _arguments.floating_input("vector_quantize", "x", x)
    checks.real_tensor("vector_quantize", "codebook", codebook)
    if codebook.ndim != 2 or not all(holds(n != 0) for n in codebook.shape):
        raise ValueError(
            f"vector_quantize: `codebook` must have two dimensions and no empty one, got shape {tuple(codebook.shape)}."
        )
    if x.ndim == 0 or not holds(x.shape[-1] == codebook.shape[-1]):
        raise ValueError(
            f"vector_quantize: the last dimension of `x` must be that of the codebook, {codebook.shape[-1]}, "
            f"got shape {tuple(x.shape)}."
        )
    checks.choice("vector_quantize", "gradient", gradient, GRADIENTS)
    return VectorQuantize.apply(x, codebook.detach(), gradient)


class VectorQuantize(Function):
    """The operator of :func:`vector_quantize`. In batches a codebook has the leading dimensions of ``x`` in front."""

    @staticmethod
    def forward(x: Tensor, codebook: Tensor, gradient: str) -> tuple[Tensor, Tensor]:
        wide, c = to_opmath(x, codebook)
        c = c.to(wide.dtype)
        leading = c.shape[:-2]
        rows = wide.reshape(*leading, -1, x.shape[-1])
        index = _nearest(rows, c).reshape(x.shape[:-1])
        values = torch.where(wide.isnan().any(-1, keepdim=True), torch.nan, _rows(c, index))
        return values.to(x.dtype), index

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, codebook, gradient = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.rotates = gradient == "rotation"
        if ctx.rotates:
            ctx.save_for_backward(x, codebook, output[1])
            ctx.save_for_forward(x, codebook, output[1])

    @staticmethod
    def vjp(ctx: Any, g: Tensor, _: Any) -> tuple[Tensor, None, None]:
        if not ctx.rotates:
            return g, None, None
        (wide,) = to_opmath(g)
        r, e, q, w = _directions(*ctx.saved_tensors)
        return (r * (wide - 2 * w * _dot(w, wide) + 2 * e * _dot(q, wide))).to(g.dtype), None, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, *_: Any) -> tuple[Tensor, None]:
        if not ctx.rotates:
            return t, None
        (wide,) = to_opmath(t)
        r, e, q, w = _directions(*ctx.saved_tensors)
        return (r * (wide - 2 * w * _dot(w, wide) + 2 * q * _dot(e, wide))).to(t.dtype), None

    @classmethod
    def dim_labels(cls, x: Tensor, codebook: Tensor, gradient: str) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The vectors and the codebook are never split."""
        rows = tuple(range(x.ndim - 1))
        return [(*rows, None), (*range(codebook.ndim - 2), None, None), ()], rows

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], x: Tensor, codebook: Tensor, gradient: str) -> Any:
        x = x.expand(info.batch_size, *x.shape) if in_dims[0] is None else x.movedim(in_dims[0], 0)
        if in_dims[1] is not None:
            codebook = codebook.movedim(in_dims[1], 0)
        elif codebook.ndim > 2:
            codebook = codebook.expand(info.batch_size, *codebook.shape)
        return cls.apply(x, codebook, gradient), (0, 0)


def _indices(rows: Tensor, codebook: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[:-1], dtype=torch.int64)


@opaque("nearest_row", fake=_indices, reads_values=True)
def _nearest(rows: Tensor, codebook: Tensor) -> Tensor:
    """The nearest row of the codebook for each vector, compared closely where rounded distances do not decide."""
    if not can_read_numbers(rows):
        return _nearest_closely(rows, codebook)
    most = max(_MOST // codebook.shape[-2], 1)
    if rows.shape[-2] > most:
        return torch.cat([_nearest(part, codebook) for part in rows.split(most, -2)], -1)
    index, certain = _by_rounded_distances(rows, codebook)
    if certain.all():
        return index
    most = int((~certain).sum(-1).max())
    some = (~certain).byte().topk(most, -1).indices  # as many of each batch
    return index.scatter(-1, some, _nearest_closely(_rows(rows, some), codebook))


def _by_rounded_distances(rows: Tensor, codebook: Tensor) -> tuple[Tensor, Tensor]:
    """The row with the smallest rounded distance, and whether rounding cannot have changed which row is nearest."""
    d, first = rows.shape[-1], codebook[..., :1, :]
    codebook, rows = codebook - first, rows - first
    # Half the squared distances, less half the squared norm of the vector.
    distances = (codebook * codebook).sum(-1).unsqueeze(-2) / 2 - matmul(rows, codebook.mT)
    least, index = distances.min(-1)
    second = distances.scatter_(-1, index.unsqueeze(-1), torch.inf).amin(-1)
    # Errors of d terms grow as the root of d. Terms that underflow are less than the smallest normal number.
    size = (rows * rows).sum(-1) + least.abs()
    error = size * (4 * d**0.5 * _matmul_eps(rows.dtype)) + d * torch.finfo(rows.dtype).tiny
    return index, second - least > error


def _nearest_closely(rows: Tensor, codebook: Tensor) -> Tensor:
    """The nearest row, from candidates by distances in float64, which are compared by distances relative to the first of them."""
    wide = torch.float64 if rows.device.type != "mps" else rows.dtype
    rows, codebook = rows.to(wide), codebook.to(wide)
    middle = _middle(codebook)
    c, x = codebook - middle, rows - middle
    unit = _largest(c).amax(-2, keepdim=True)
    c, x = c / unit, x / unit
    far = _largest(x).clamp(min=1)
    distances = ((c * c).sum(-1) / 2).unsqueeze(-2) / far - matmul(x / far, c.mT)
    candidates = distances.topk(min(_CANDIDATES, c.shape[-2]), -1, largest=False).indices
    first = _rows(codebook, candidates[..., :1])
    c, x = _rows(codebook, candidates) - first, rows.unsqueeze(-2) - first
    unit = _largest(x)
    c, x = c / unit, x / unit
    best = (c * (c / 2 - x)).sum(-1).argmin(-1, keepdim=True)
    index = _first_equal(codebook).gather(-1, candidates.gather(-1, best).squeeze(-1))
    return torch.where(rows.isfinite().all(-1), index, 0)


def _first_equal(codebook: Tensor) -> Tensor:
    """The first row that equals each row, found among those of the same weighted sum."""
    weights = torch.arange(1, codebook.shape[-1] + 1, dtype=codebook.dtype, device=codebook.device).sqrt()
    sums = (codebook * weights).sum(-1)
    in_order, order = sums.sort(dim=-1, stable=True)
    first = order.gather(-1, torch.searchsorted(in_order, sums).clamp(max=sums.shape[-1] - 1))
    itself = torch.arange(sums.shape[-1], device=codebook.device)
    return torch.where((_rows(codebook, first) == codebook).all(-1), first, itself)


def _middle(codebook: Tensor) -> Tensor:
    """The row next to the mean. A mean may be far from all rows, where one of them is far from the others."""
    size = (codebook - codebook.mean(-2, keepdim=True)).abs().amax(-1)
    return _rows(codebook, size.argmin(-1, keepdim=True))


def _largest(x: Tensor) -> Tensor:
    """The largest absolute value of each row, as a divisor, never 0."""
    return x.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)


def _matmul_eps(dtype: torch.dtype) -> float:
    """The unit in the last place of the factors of a matrix product, which torch may be told to round."""
    if dtype != torch.float32:
        return torch.finfo(dtype).eps
    try:
        return {"highest": 2.0**-23, "high": 2.0**-10, "medium": 2.0**-7}[torch.get_float32_matmul_precision()]
    except RuntimeError:  # torch raises where the precision was set for one backend alone
        return 2.0**-7


def _rows(codebook: Tensor, index: Tensor) -> Tensor:
    """The rows at the indices. Codebook and indices may be batched."""
    leading, d = codebook.shape[:-2], codebook.shape[-1]
    flat = index.reshape(*leading, -1, 1)
    return codebook.gather(-2, flat.expand(*flat.shape[:-1], d)).reshape(*index.shape, d)


def _directions(x: Tensor, codebook: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The ratio of the norms, and the directions of the vector, its row, and their sum."""
    x, codebook = to_opmath(x, codebook)
    row = _rows(codebook.to(x.dtype), index)
    e, q = _unit(x), _unit(row)
    return _norm(row) / _norm(x), e, q, _unit(e + q)


def _unit(x: Tensor) -> Tensor:
    return x / _norm(x)


def _norm(x: Tensor) -> Tensor:
    unit = _largest(x.detach()).clamp(min=1)  # squares of large numbers overflow
    return (torch.linalg.vector_norm(x / unit, dim=-1, keepdim=True) * unit).clamp(min=1e-6)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1, keepdim=True)
