"""One codebook for a large tensor: pieces that stay in the cache, and few levels compared instead of searched."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._core.fast import fast
from fullgrad._core.pieces import computed_in_pieces, is_large, terms_in_pieces
from fullgrad._core.windows import between
from fullgrad.quantizers._arithmetic import to_compute
from fullgrad.quantizers._codebook_quantize import (
    count_below,
    gradients,
    level_at,
    midpoints,
    quotient,
    sum_by_level,
    take,
    value,
)

# Up to _FEW midpoints are each compared with the numbers, if these are _MANY times as many.
_FEW, _MANY = 48, 512


@fast(value)
def _value(x: Tensor, scale: Any, codebook: Tensor) -> Any:
    if codebook.ndim != 1 or not is_large(x, (scale, codebook)):
        return NotImplemented
    pieces = computed_in_pieces(lambda x, s: (value.__wrapped__(x, s, codebook),), (x, scale), [(x.shape, x.dtype)])
    return NotImplemented if pieces is None else pieces[0]


@fast(gradients, within=16, of_largest=True)
def _gradients(needed: Sequence[bool], g: Tensor, x: Tensor, scale: Any, codebook: Tensor, inside: str) -> Any:
    if codebook.ndim != 1 or not is_large(g, (x, scale, codebook)):
        return NotImplemented
    *of_elements, by_codebook = needed[:3]
    total: list[Tensor] = []

    def terms(needed: Any, g: Tensor, x: Tensor, s: Any) -> tuple[Tensor | None, Tensor | None]:
        by_x, by_scale = needed
        x, g, s, c = to_compute(x, g, s, codebook)
        size, order = c.sort(stable=True)
        v = quotient(x, s)
        below = count_below(v, size)
        mask = between(v, size[0], size[-1]) if inside == "exact" and (by_x or by_scale) else None
        if by_codebook:
            part = sum_by_level(g if s is None else g * s, take(order, below), c)
            total[:] = [part + total[0] if total else part]
        to_scale = g * (level_at(v, size, below) - (v if mask is None else torch.where(mask, v, 0))) if by_scale else None
        return (g if mask is None else torch.where(mask, g, 0)) if by_x else None, to_scale

    pieces = terms_in_pieces(terms, of_elements, g, (x, scale), None)
    return NotImplemented if pieces is None else (*pieces, total[0] if total else None)


@fast(count_below)
def _count_below(v: Tensor, size: Tensor) -> Any:
    n = size.shape[-1] - 1
    if not (size.ndim == 1 and v.is_cpu and 0 < n <= _FEW and v.numel() >= _MANY * n):
        return NotImplemented
    above, step = torch.zeros_like(v), torch.empty_like(v)
    for middle in midpoints(size).unbind():
        above.add_(torch.le(v, middle, out=step))
    return above.neg_().add_(n).long()


@fast(take)
def _take(codebook: Tensor, index: Tensor) -> Any:
    # A quarter of the time of gather.
    return codebook.index_select(0, index.reshape(-1)).reshape(index.shape) if codebook.ndim == 1 else NotImplemented
