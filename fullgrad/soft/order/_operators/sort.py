"""`Sort`: the operator of the elements in order."""

from typing import Any

import torch
from torch import Tensor

from fullgrad import _checks
from fullgrad._dispatch import can_skip_autograd, clone_if_view
from fullgrad.soft._relaxation import Softness
from fullgrad.soft.order._numbers import weighted
from fullgrad.soft.order._statistic import (
    OrderStatistic,
    Outputs,
    PlainOptions,
    canonicalize_args,
    one_hot,
    relax,
)
from fullgrad.soft.order.methods import WEIGHTED_SUM_METHODS


def sort_operator(
    name: str,
    x: Tensor,
    dim: int | None,
    descending: bool,
    softness: Softness,
    options: PlainOptions,
    outputs: Outputs,
    hard: bool,
    k: int | None = None,
) -> Any:
    """The elements in order as torch returns them, all or with ``k`` the first k; or the weights of their positions."""
    mode, method, _, _ = options
    rows, d = canonicalize_args(name, x, dim, softness, options, outputs)
    count = 0 if k is None else _checks.positive_integer(name, "k", k, at_most=rows.shape[d])
    if outputs == "values_and_weights" and mode != "hard" and method not in WEIGHTED_SUM_METHODS:
        outputs = "values"
    if mode == "hard" or (hard and softness.__class__ is float and can_skip_autograd(rows)):
        y = hard_sort(rows, d, descending, count, outputs)
    else:
        y = Sort.apply(rows, softness, d, descending, count, options, outputs, hard)
    if outputs == "weights":
        return y if x.ndim else y.reshape(1)
    if outputs == "values_and_indices" and x.ndim:
        return y
    values, indices = (y, None) if outputs == "values" else y
    if x.ndim == 0:
        values = values.reshape(())
        if indices is not None:
            indices = indices.reshape(() if outputs == "values_and_indices" else 1)
    kind: Any = torch.return_types.sort if k is None else torch.return_types.topk
    return kind((values, indices))


class Sort(OrderStatistic):
    """The operator of ``sort``, ``argsort``, ``topk`` and their straight-through versions. ``k`` is 0 for all elements, or the
    number of the first ones in descending order.
    """

    @staticmethod
    def forward(
        x: Tensor,
        softness: Softness,
        dim: int,
        descending: bool,
        k: int,
        options: PlainOptions,
        outputs: Outputs,
        hard: bool,
    ) -> Any:
        if hard:
            return hard_sort(x, dim, descending, k, outputs)
        return Sort.soft_forward(x, softness, dim, descending, k, options, outputs, hard)

    @staticmethod
    def relaxed(
        x: Tensor,
        softness: Softness,
        dim: int,
        descending: bool,
        k: int,
        options: PlainOptions,
        outputs: Outputs,
        hard: bool,
    ) -> Any:
        method, rows = relax(x, softness, dim, options, hard and outputs != "weights")
        whole = k in (0, rows.n)
        flip = descending and whole
        if outputs in ("values", "values_and_indices"):
            values = method.values(rows) if whole else method.topk(rows, k)
            return (values.flip(-1) if flip else values).movedim(-1, dim).to(x.dtype)
        weights = method.weights(rows) if whole else method.topk_weights(rows, k)
        values = weighted(weights, rows.x) if outputs == "values_and_weights" else None
        weights = (weights.flip(-2) if flip else weights).movedim(-2, dim - 1).to(x.dtype)
        if values is None:
            return weights
        return (values.flip(-1) if flip else values).movedim(-1, dim).to(x.dtype), weights


def hard_sort(x: Tensor, dim: int, descending: bool, k: int, outputs: Outputs) -> Any:
    """What torch gives."""
    both = torch.topk(x, k, dim) if k else torch.sort(x, dim, descending)
    if outputs == "values_and_indices":
        return both
    if outputs == "values":
        return both.values
    weights = clone_if_view(one_hot(both.indices.movedim(dim, -1), x.shape[dim], x.dtype).movedim(-2, dim - 1))
    return weights if outputs == "weights" else (both.values, weights)
