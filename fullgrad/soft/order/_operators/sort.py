"""`Sorted`: the operator of the elements in order."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import clone_if_view
from fullgrad.soft._relaxation import Softness
from fullgrad.soft.order._numbers import weighted
from fullgrad.soft.order._rows import (
    PERMUTATION_METHODS,
    WEIGHTED_SUM_METHODS,
    Rows,
    all_weights,
    bounded,
    rows_of,
    sorted_values,
    transported,
    unweighted,
    weights_in,
)
from fullgrad.soft.order._statistic import OrderStatistic, canonicalize_args, make_return_type, one_hot


def places(
    name: str, x: Tensor, dim: int | None, descending: bool, softness: Softness, how: tuple[Any, ...], hard: bool
) -> Tensor:
    rows, d = canonicalize_args(name, x, dim, softness, how[0], how[1], PERMUTATION_METHODS)
    if how[0] == "hard":
        y = hard_sorted(rows, d, descending, 0, "weights")
    else:
        y = Sorted.apply(rows, softness, d, descending, 0, how, "weights", hard)
    return y.reshape(1) if x.ndim == 0 else y


def soft(
    x: Tensor, rows: Tensor, d: int, softness: Softness, descending: bool, k: int, how: tuple[Any, ...], indices: bool
) -> Any:
    if how[0] == "hard":
        values, index = hard_sorted(rows, d, descending, k, "both")
        weights = one_hot(index.movedim(d, -1), rows.shape[d], rows.dtype).movedim(-2, d - 1) if indices else None
    elif indices and how[1] in WEIGHTED_SUM_METHODS:
        values, weights = Sorted.apply(rows, softness, d, descending, k, how, "both", False)
    else:
        values, weights = Sorted.apply(rows, softness, d, descending, k, how, "values", False), None
    if x.ndim == 0:
        values, weights = values.reshape(()), None if weights is None else weights.reshape(1)
    return make_return_type(torch.return_types.topk if k else torch.return_types.sort, values, weights)


def straight(x: Tensor, rows: Tensor, d: int, softness: Softness, descending: bool, k: int, how: tuple[Any, ...]) -> Any:
    if how[0] == "hard":
        y = hard_sorted(rows, d, descending, k, "both")
    else:
        y = Sorted.apply(rows, softness, d, descending, k, how, "both", True)
    return type(y)([v.reshape(()) for v in y]) if x.ndim == 0 else y


class Sorted(OrderStatistic):
    """The operator of the three and their twins: all places, or with ``k`` the first k of the descending order. ``how`` is mode,
    method, standardize, gated_grad; ``wants`` is "values", "weights" or "both", which of a hard call are values and indices.
    """

    @staticmethod
    def forward(
        x: Tensor, softness: Softness, dim: int, descending: bool, k: int, how: tuple[Any, ...], wants: str, hard: bool
    ) -> Any:
        if hard:
            return hard_sorted(x, dim, descending, k, wants)
        return Sorted.soft_forward(x, softness, dim, descending, k, how, wants, hard)

    @staticmethod
    def relaxed(
        x: Tensor, softness: Softness, dim: int, descending: bool, k: int, how: tuple[Any, ...], wants: str, hard: bool
    ) -> Any:
        mode, method, standardize, gated = how
        r = rows_of(x, softness, dim, mode, method, standardize)
        if hard and wants == "both":
            r, wants = bounded(r), "values"
        r = r if gated else unweighted(r)
        all_of_them = k in (0, r.n)
        if wants == "values":
            values = sorted_values(r) if all_of_them else _first_values(r, k)
            weights = None
        else:
            weights = all_weights(r) if all_of_them else _first_weights(r, k)
            values = weighted(weights, r.x) if wants == "both" else None
        if descending and all_of_them:
            values, weights = (None if v is None else v.flip(d) for v, d in ((values, -1), (weights, -2)))
        if values is not None:
            values = values.movedim(-1, dim).to(x.dtype)
        if weights is not None:
            weights = weights.movedim(-2, dim - 1).to(x.dtype)
        return weights if values is None else values if weights is None else (values, weights)


def _first_values(r: Rows, k: int) -> Tensor:
    if r.method in WEIGHTED_SUM_METHODS:
        return weighted(_first_weights(r, k), r.x)
    return sorted_values(r)[..., -k:].flip(-1)


def _first_weights(r: Rows, k: int) -> Tensor:
    """The weights in the k last places, the last one first; to transport the rest is one group."""
    if r.method == "ot":
        anchors = torch.arange(k, -1, -1, dtype=r.x.dtype, device=r.x.device) / k
        return transported(r, anchors, r.tensor([1.0] * k + [r.n - k]))[..., :k, :]
    return weights_in(r, torch.arange(r.n - 1, r.n - 1 - k, -1, device=r.x.device))


def hard_sorted(x: Tensor, dim: int, descending: bool, k: int, wants: str) -> Any:
    """What torch gives."""
    both = torch.topk(x, k, dim) if k else torch.sort(x, dim, descending)
    if wants != "weights":
        return both
    return clone_if_view(one_hot(both.indices.movedim(dim, -1), x.shape[dim], x.dtype).movedim(-2, dim - 1))
