"""The magnitude of a gradient over some of its dimensions."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fullgrad._core.shards import extremes, over_ranks
from fullgrad._dispatch import any_distributed, surely

Dim = int | Sequence[int] | None


def dims_of(dim: Dim, ndim: int) -> tuple[int, ...]:
    """The dimensions that ``dim`` names, counted from the front; None names all. A 0-dimensional tensor has none."""
    if dim is None or ndim == 0:
        return tuple(range(ndim))
    return tuple([d % ndim for d in ((dim,) if isinstance(dim, int) else dim)])


def behind_batch(dim: Dim, ndim: int) -> tuple[int, ...]:
    """The dimensions ``dim`` of a sample in a tensor of ``ndim`` dimensions with the batch in front."""
    return tuple([d + 1 for d in dims_of(dim, ndim - 1)])


def largest(g: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The largest absolute value over some dimensions, kept with size 1; NaN if an element is NaN.

    Elements that tie share the derivative.
    """
    if not dims:
        return g.abs()
    low, high = extremes(g, dims)
    return torch.maximum(-low, high)


def norm(g: Tensor, dims: tuple[int, ...], p: float) -> tuple[Tensor, Tensor]:
    """The p-norm over some dimensions, which are kept with size 1, and its unit; both in float32 at least.

    The unit is the largest absolute value, so that neither the powers nor the norm overflow or underflow; 1 if that is 0,
    infinite or NaN. Their product does not depend on it, so the unit needs no gradient.
    """
    g = g.to(torch.promote_types(g.dtype, torch.float32))
    if not dims or surely(p == math.inf):
        m = largest(g, dims)
        unit = _unit(m)
        return m / unit, unit
    if any_distributed((g,)):
        n, unit = over_ranks(g, dims, lambda shard: _part(shard, dims, p), lambda parts: _joined(parts, p))
        return n, unit
    with torch.no_grad():
        unit = _unit(g.abs().amax(dims, keepdim=True))
    return torch.linalg.vector_norm(g / unit, p, dims, keepdim=True), unit


def _unit(m: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.where((m > 0) & (m < math.inf), m, 1)


def _part(shard: Tensor, dims: tuple[int, ...], p: float) -> Tensor:
    """The norm of a shard, divided by its unit, and its largest absolute value."""
    if all(shard.shape[d] for d in dims):
        m = shard.detach().abs().amax(dims, keepdim=True)
    else:
        m = shard.new_zeros([1 if d in dims else n for d, n in enumerate(shard.shape)])
    return torch.stack([torch.linalg.vector_norm(shard / _unit(m), p, dims, keepdim=True), m])


def _joined(parts: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """The norm and the unit from those of the shards."""
    n, m = parts.unbind(1)
    unit = _unit(m.amax(0))
    return torch.linalg.vector_norm(n * (torch.where(m > 0, _unit(m), 0) / unit), p, 0), unit
