"""The magnitude of a gradient over some of its dimensions."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fullgrad._core.shards import extremes
from fullgrad._dispatch import surely

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
    infinite or NaN.
    """
    g = g.to(torch.promote_types(g.dtype, torch.float32))
    m = largest(g, dims)
    unit = torch.where((m > 0) & (m < math.inf), m, 1)
    return m / unit if not dims or surely(p == math.inf) else torch.linalg.vector_norm(g / unit, p, dims, keepdim=True), unit
