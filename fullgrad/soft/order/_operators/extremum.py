"""`Extreme`: the operator of the largest and the least element."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import can_skip_autograd
from fullgrad.soft._relaxation import Softness
from fullgrad.soft.order._rows import (
    METHODS,
    PERMUTATION_METHODS,
    WEIGHTED_SUM_METHODS,
    bounded,
    largest_value,
    largest_weights,
    rows_of,
    unweighted,
)
from fullgrad.soft.order._statistic import (
    OrderStatistic,
    canonicalize_args,
    check_gate,
    make_return_type,
    one_hot,
    restore_keepdim,
)


def place(
    name: str, x: Tensor, dim: int | None, keepdim: bool, softness: Softness, how: tuple[Any, ...], largest: bool, hard: bool
) -> Tensor:
    rows, d = canonicalize_args(name, x, dim, softness, how[0], how[1], PERMUTATION_METHODS, some=True)
    if how[0] == "hard":
        y = hard_extreme(rows, d, largest, "weights")
    else:
        y = Extreme.apply(rows, softness, d, largest, (*how, True), "weights", hard)
    return restore_keepdim(y, x, dim, d - 1) if keepdim else y


def soft(name: str, x: Tensor, dim: int | None, keepdim: bool, softness: Softness, how: tuple[Any, ...], largest: bool) -> Any:
    rows, d = canonicalize_args(name, x, dim, softness, how[0], how[1], METHODS, some=True)
    check_gate(name, how[3], how[0], how[1])
    hard = how[0] == "hard"
    if dim is None:
        y = hard_extreme(rows, d, largest, "values") if hard else Extreme.apply(rows, softness, d, largest, how, "values", False)
        return restore_keepdim(y, x, dim, d) if keepdim else y
    if hard:
        values, index = hard_extreme(rows, d, largest, "both")
        weights = one_hot(index, rows.shape[d], rows.dtype)
    elif how[1] in WEIGHTED_SUM_METHODS:
        values, weights = Extreme.apply(rows, softness, d, largest, how, "both", False)
    else:
        values, weights = Extreme.apply(rows, softness, d, largest, how, "values", False), None
    if keepdim:
        values, weights = restore_keepdim(values, x, dim, d), None if weights is None else restore_keepdim(weights, x, dim, d - 1)
    return make_return_type(torch.return_types.max if largest else torch.return_types.min, values, weights)


def straight(
    name: str, x: Tensor, dim: int | None, keepdim: bool, softness: Softness, how: tuple[Any, ...], largest: bool
) -> Any:
    rows, d = canonicalize_args(name, x, dim, softness, how[0], how[1], METHODS, some=True)
    check_gate(name, how[3], how[0], how[1])
    wants = "values" if dim is None else "both"
    if how[0] == "hard" or (softness.__class__ is float and can_skip_autograd(rows)):
        y = hard_extreme(rows, d, largest, wants)  # as the operator would; the call would cost more than a small maximum
    else:
        y = Extreme.apply(rows, softness, d, largest, how, wants, True)
    if not keepdim or x.ndim == 0:
        return y
    return restore_keepdim(y, x, dim, d) if dim is None else type(y)([restore_keepdim(v, x, dim, d) for v in y])


class Extreme(OrderStatistic):
    """The operator of the four and their twins. ``how`` is mode, method, standardize, gated_grad; ``wants`` is "values",
    "weights" or "both", which of a hard call are values and indices.
    """

    @staticmethod
    def forward(x: Tensor, softness: Softness, dim: int, largest: bool, how: tuple[Any, ...], wants: str, hard: bool) -> Any:
        if not hard:
            return Extreme.soft_forward(x, softness, dim, largest, how, wants, hard)
        return hard_extreme(x, dim, largest, wants)

    @staticmethod
    def relaxed(x: Tensor, softness: Softness, dim: int, largest: bool, how: tuple[Any, ...], wants: str, hard: bool) -> Any:
        mode, method, standardize, gated = how
        r = rows_of(x if largest else -x, softness, dim, mode, method, standardize)
        if wants == "weights":
            return largest_weights(r).to(x.dtype)
        if hard:
            r = bounded(r)
        if hard or wants == "values":
            values = largest_value(r if gated else unweighted(r))
            return (values if largest else -values).to(x.dtype)
        weights = largest_weights(r if gated else unweighted(r))
        values = (weights * r.x).sum(-1)
        return (values if largest else -values).to(x.dtype), weights.to(x.dtype)


def hard_extreme(x: Tensor, dim: int, largest: bool, wants: str) -> Any:
    """What torch gives."""
    if wants == "weights":
        return one_hot((torch.argmax if largest else torch.argmin)(x, dim), x.shape[dim], x.dtype)
    reduce = torch.max if largest else torch.min
    if wants == "values" and x.ndim == 1:
        return reduce(x)  # several times faster than with indices
    both = reduce(x, dim)
    return both.values if wants == "values" else both
