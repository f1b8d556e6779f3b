"""The nearest row of a matrix, to working precision."""

import torch
from torch import Tensor

from fullgrad._core.autocast import matmul
from fullgrad._core.opmath import wide
from fullgrad._dispatch import can_read_numbers, opaque

# The number of distances that are computed at once.
_MOST = 2**24
# The number of rows, with distances that float64 hardly tells apart, that are compared closely.
_CANDIDATES = 8


def _indices(rows: Tensor, codebook: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[:-1], dtype=torch.int64)


@opaque("nearest_row", fake=_indices, reads_values=True)
def nearest(rows: Tensor, codebook: Tensor) -> Tensor:
    """The nearest row of the codebook for each vector, compared closely where rounded distances do not decide."""
    if not can_read_numbers(rows):
        return _nearest_closely(rows, codebook)
    most = max(_MOST // codebook.shape[-2], 1)
    if rows.shape[-2] > most:
        return torch.cat([nearest(part, codebook) for part in rows.split(most, -2)], -1)
    index, certain = _by_rounded_distances(rows, codebook)
    if certain.all():
        return index
    most = int((~certain).sum(-1).max())
    some = (~certain).byte().topk(most, -1).indices  # as many of each batch
    return index.scatter(-1, some, _nearest_closely(rows_at(rows, some), codebook))


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
    rows, codes = wide(rows), wide(codebook)
    # A row that is not finite is compared as a copy of the first one that is, as its own terms would be NaN, for all rows.
    is_finite = codes.isfinite().all(-1)
    first_finite = is_finite.byte().argmax(-1, keepdim=True)
    codebook = torch.where(is_finite.unsqueeze(-1), codes, torch.nan_to_num(rows_at(codes, first_finite), 0, 0, 0))
    middle = _middle(codebook)
    c, x = codebook - middle, rows - middle
    unit = largest(c).amax(-2, keepdim=True)
    c, x = c / unit, x / unit
    far = largest(x).clamp(min=1)
    distances = ((c * c).sum(-1) / 2).unsqueeze(-2) / far - matmul(x / far, c.mT)
    candidates = distances.topk(min(_CANDIDATES, c.shape[-2]), -1, largest=False).indices
    first = rows_at(codebook, candidates[..., :1])
    c, x = rows_at(codebook, candidates) - first, rows.unsqueeze(-2) - first
    unit = largest(x)
    c, x = c / unit, x / unit
    best = (c * (c / 2 - x)).sum(-1).argmin(-1, keepdim=True)
    index = _first_equal(codebook).gather(-1, candidates.gather(-1, best).squeeze(-1))
    index = torch.where(rows.isfinite().all(-1), index, 0)
    index = torch.where(is_finite.gather(-1, index), index, first_finite)
    has_nan = codes.isnan().any(-1)
    return torch.where(has_nan.any(-1, keepdim=True), has_nan.byte().argmax(-1, keepdim=True), index)


def _first_equal(codebook: Tensor) -> Tensor:
    """The first row that equals each row, found among those of the same weighted sum."""
    weights = torch.arange(1, codebook.shape[-1] + 1, dtype=codebook.dtype, device=codebook.device).sqrt()
    sums = (codebook * weights).sum(-1)
    in_order, order = sums.sort(dim=-1, stable=True)
    first = order.gather(-1, torch.searchsorted(in_order, sums).clamp(max=sums.shape[-1] - 1))
    itself = torch.arange(sums.shape[-1], device=codebook.device)
    return torch.where((rows_at(codebook, first) == codebook).all(-1), first, itself)


def _middle(codebook: Tensor) -> Tensor:
    """The row next to the mean. A mean may be far from all rows, where one of them is far from the others."""
    size = (codebook - codebook.mean(-2, keepdim=True)).abs().amax(-1)
    return rows_at(codebook, size.argmin(-1, keepdim=True))


def largest(x: Tensor) -> Tensor:
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


def rows_at(codebook: Tensor, index: Tensor) -> Tensor:
    """The rows at the indices. Codebook and indices may be batched."""
    leading, d = codebook.shape[:-2], codebook.shape[-1]
    flat = index.reshape(*leading, -1, 1)
    return codebook.gather(-2, flat.expand(*flat.shape[:-1], d)).reshape(*index.shape, d)
