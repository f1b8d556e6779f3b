"""Sums over rows that several ranks share, for rules that run on the shards of a row.

A rule of an operator that declares ``splits_rows`` takes the sums and the largest element of a row from here. Where rows are
whole, they are torch's own; where `distributed` runs the rule on a part of each row, ranks exchange one number for each row and
sum.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Row(NamedTuple):
    """How the row of the running rule is split: the sum of a tensor over the ranks that share it, the place of this rank among
    them, their number, and the number of elements of the whole row.
    """

    total: Callable[[Tensor], Tensor]
    place: int
    ranks: int
    length: int


class _Current(threading.local):
    row: Row | None = None


_current = _Current()


@contextlib.contextmanager
def on_parts(row: Row) -> Iterator[None]:
    """A context in which the last dimension of tensors is a part of a row."""
    before, _current.row = _current.row, row
    try:
        yield
    finally:
        _current.row = before


def rows_are_split() -> bool:
    """Whether the last dimension of tensors is a part of a row."""
    return _current.row is not None


def row_totals(*parts: Tensor) -> Sequence[Tensor]:
    """The sums over rows, from those (…, 1) over the parts of this rank, which broadcast: one exchange for all."""
    row = _current.row
    return parts if row is None else row.total(torch.stack(torch.broadcast_tensors(*parts))).unbind()


def row_sum(x: Tensor) -> Tensor:
    """The sum of each row, of size 1."""
    return row_totals(x.sum(-1, keepdim=True))[0]


def row_largest(x: Tensor) -> Tensor:
    """The largest element of each row, of size 1, a constant; NaN if one is."""
    largest, row = x.detach().amax(-1, keepdim=True), _current.row
    if row is None:
        return largest
    # A reduction by maxima loses a NaN on gloo. Sums of one number and zeros do not.
    places = [largest if r == row.place else torch.zeros_like(largest) for r in range(row.ranks)]
    return row.total(torch.stack(places)).amax(0)


def row_length(x: Tensor) -> Any:
    """The number of elements of a whole row."""
    return x.shape[-1] if _current.row is None else _current.row.length
