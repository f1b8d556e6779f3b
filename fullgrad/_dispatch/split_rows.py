"""Sums over rows that several ranks share, for rules that run on the shards of a row.

A rule of an operator that declares ``splits_rows`` takes the sums and the largest element of a row from here, and so does plain
code that `distributed` runs on parts of rows. Where rows are whole, they are torch's own; on parts ranks exchange one number for
each row and sum.
"""

import contextlib
import functools
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


def of_parts(operator: Any) -> Any:
    """The operator as plain code calls it: on parts of rows the one whose rules, in a later backward too, know the row."""
    return operator if _current.row is None else bound(operator, _current.row)


@functools.lru_cache(maxsize=64)
def bound(operator: Any, row: Row) -> Any:
    """The operator whose rules run on parts of a row."""

    def on_part(rule: Any) -> Any:
        @functools.wraps(rule)
        def run(*args: Any) -> Any:
            with on_parts(row):
                return rule(*args)

        return staticmethod(run)

    rules = {name: on_part(getattr(operator, name)) for name in ("forward", "vjp", "jvp")}
    return type(operator.__name__, (operator,), {"__module__": operator.__module__, **rules})


def row_totals(*parts: Tensor) -> Sequence[Tensor]:
    """The sums over rows, from those (…, 1) over the parts of this rank, which broadcast: one exchange for all."""
    row = _current.row
    return parts if row is None else row.total(torch.stack(torch.broadcast_tensors(*parts))).unbind()


def counted_once(y: Tensor) -> Tensor:
    """A number of a whole row, which each rank has, with a derivative on the first rank alone, so that ranks may be summed."""
    row = _current.row
    if row is None:
        return y
    return torch.where(torch.full((), row.place == 0, device=y.device), y, y.detach())


def row_sum(x: Tensor) -> Tensor:
    """The sum of each row, of size 1."""
    return row_totals(x.sum(-1, keepdim=True))[0]


def row_largest(x: Tensor) -> Tensor:
    """The largest element of each row, of size 1, a constant; NaN if one is."""
    largest = x.detach().amax(-1, keepdim=True)
    return largest if _current.row is None else of_ranks(largest).amax(0)


def finite_extremes(x: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest element of each row, of size 1, infinities aside: constants; NaN if one is."""
    x = x.detach()
    infinite = x.abs() == torch.inf
    low = torch.where(infinite, torch.inf, x).amin(-1, keepdim=True)
    high = torch.where(infinite, -torch.inf, x).amax(-1, keepdim=True)
    if _current.row is None:
        return low, high
    both = of_ranks(torch.stack((low, high)))
    return both[:, 0].amin(0), both[:, 1].amax(0)


def of_ranks(x: Tensor) -> Tensor:
    """The tensors of all ranks that share a row, behind one another. (Reductions by extremes lose a NaN on gloo.)"""
    row: Any = _current.row
    return row.total(torch.stack([x if r == row.place else torch.zeros_like(x) for r in range(row.ranks)]))


def ranks_before() -> int:
    """How many ranks have parts of the row in front of this rank's."""
    return 0 if _current.row is None else _current.row.place


def row_length(x: Tensor) -> Any:
    """The number of elements of a whole row."""
    return x.shape[-1] if _current.row is None else _current.row.length
