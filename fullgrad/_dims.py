"""Helpers for operators that reduce over dimensions."""

from collections.abc import Sequence

Dim = int | Sequence[int] | None


def dims_of(dim: Dim, ndim: int) -> tuple[int, ...]:
    """The dimensions that ``dim`` names, counted from the front; None names all. A tensor without any has 0 and -1."""
    if dim is None or ndim == 0:
        return tuple(range(ndim))
    return tuple([d % ndim for d in ((dim,) if isinstance(dim, int) else dim)])


def behind_batch(dim: Dim, ndim: int) -> tuple[int, ...]:
    """What ``dim`` of a sample is in a tensor of ``ndim`` dimensions with the batch in front."""
    return tuple([d + 1 for d in dims_of(dim, ndim - 1)])
