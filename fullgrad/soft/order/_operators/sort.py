"""`Sort`: the operator of the elements in order."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._dispatch import surely
from fullgrad.soft._relaxation import Softness
from fullgrad.soft.order._outputs import Outputs, hard_outputs
from fullgrad.soft.order._statistic import Options, OrderStatistic, canonicalize_args, relax, saves_weights
from fullgrad.soft.order.methods import WEIGHTED_SUM_METHODS


def sort_operator(
    name: str, x: Tensor, dim: int | None, descending: bool, softness: Softness, options: Options, k: int | None = None
) -> Any:
    """The elements in order as torch returns them, all or with ``k`` the first k; or the weights of their positions."""
    mode, method, _, _, outputs, hard = options
    rows, d = canonicalize_args(name, x, dim, softness, options)
    checks.flag(name, "descending", descending)
    count = 0 if k is None else checks.positive_integer(name, "k", k, at_most=rows.shape[d])
    if outputs == "values_and_weights" and mode != "hard" and method not in WEIGHTED_SUM_METHODS:
        outputs = "values"
    if surely(rows.shape[d] == 0):
        y = _empty_sort(rows, d, outputs)
    elif mode == "hard":
        y = hard_sort(rows, d, descending, count, outputs)
    else:
        y = Sort.apply(rows, softness, d, descending, count, (*options[:4], outputs, hard))
    if x.ndim == 0:
        y = y.squeeze(0) if isinstance(y, Tensor) else [v.squeeze(0) for v in y]
    if outputs == "weights" or (outputs == "values_and_indices" and x.ndim):
        return y
    kind: Any = torch.return_types.sort if k is None else torch.return_types.topk
    return kind((y, None) if outputs == "values" else y)


class Sort(OrderStatistic):
    """The operator of ``sort``, ``argsort``, ``topk`` and their straight-through versions. ``k`` is 0 for all elements, or the
    number of the first ones in descending order.
    """

    @staticmethod
    def forward(x: Tensor, softness: Softness, dim: int, descending: bool, k: int, options: Options) -> Any:
        *_, outputs, hard = options
        return hard_sort(x, dim, descending, k, outputs) if hard else Sort.soft_forward(x, softness, dim, descending, k, options)

    @staticmethod
    def relaxed(x: Tensor, softness: Softness, dim: int, descending: bool, k: int, options: Options) -> Any:
        method, rows = relax(x, softness, dim, options)
        outputs, whole = options[4], k == 0 or surely(k == rows.n)
        flip = descending and whole
        if outputs in ("values", "values_and_indices"):
            values = method.values(rows) if whole else method.topk(rows, k)
            return (values.flip(-1) if flip else values).movedim(-1, dim).to(x.dtype)
        weights = method.weights(rows) if whole else method.topk_weights(rows, k)
        values = rows.averages(weights) if outputs == "values_and_weights" else None
        weights = (weights.flip(-2) if flip else weights).movedim(-2, dim - 1).to(x.dtype)
        if values is None:
            return weights
        return (values.flip(-1) if flip else values).movedim(-1, dim).to(x.dtype), weights

    @classmethod
    def saves_value(cls, output: Any, options: Options) -> bool:
        return saves_weights(output, options, ("neuralsort",))

    @staticmethod
    def of_rows(unit: Tensor, dim: int, weights: bool) -> Tensor:
        return unit.unsqueeze(-1) if weights else unit


def _empty_sort(x: Tensor, dim: int, outputs: Outputs) -> Any:
    """The outputs for rows without elements, differentiable like all others."""
    if outputs == "values_and_indices":
        return torch.sort(x, dim)
    weights = x.unsqueeze(-1).repeat(*(1,) * x.ndim, 0)
    return weights if outputs == "weights" else x.clone() if outputs == "values" else (x.clone(), weights)


def hard_sort(x: Tensor, dim: int, descending: bool, k: int, outputs: Outputs) -> Any:
    """The outputs from torch's own function."""
    both = torch.topk(x, k, dim) if k else torch.sort(x, dim, descending)
    return both if outputs == "values_and_indices" else hard_outputs(both, outputs, x.shape[dim])
