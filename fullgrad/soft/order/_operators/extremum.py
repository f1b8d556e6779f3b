"""`Extremum`: the operator of the largest and the smallest element."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad.soft._relaxation import Softness
from fullgrad.soft.order._outputs import Outputs, hard_outputs, one_hot, restore_keepdim
from fullgrad.soft.order._statistic import Options, OrderStatistic, canonicalize_args, relax, saves_weights
from fullgrad.soft.order.methods import WEIGHTED_SUM_METHODS


def extremum_operator(
    name: str, x: Tensor, dim: int | None, keepdim: bool, softness: Softness, options: Options, largest: bool
) -> Any:
    """The largest or smallest element as torch returns it, the value alone without ``dim``; or the weights of its position."""
    mode, method, _, _, outputs, hard = options
    rows, d = canonicalize_args(name, x, dim, softness, options, nonempty=True)
    checks.flag(name, "keepdim", keepdim)
    if (outputs != "weights" and dim is None) or (
        outputs == "values_and_weights" and mode != "hard" and method not in WEIGHTED_SUM_METHODS
    ):
        outputs = "values"
    if mode == "hard":
        y = hard_extremum(rows, d, largest, outputs)
    else:
        y = Extremum.apply(rows, softness, d, largest, (*options[:4], outputs, hard))
    if keepdim:
        y = restore_keepdim(y, x, dim, d) if isinstance(y, Tensor) else [restore_keepdim(v, x, dim, d) for v in y]
    if outputs == "weights" or dim is None or (outputs == "values_and_indices" and not keepdim):
        return y
    kind: Any = torch.return_types.max if largest else torch.return_types.min
    return kind((y, None) if outputs == "values" else y)


class Extremum(OrderStatistic):
    """The operator of ``max``, ``min``, ``argmax``, ``argmin`` and their straight-through versions."""

    keeps_dim = False

    @staticmethod
    def splits_rows(x: Tensor, softness: Softness, dim: int, largest: bool, options: Options) -> bool:
        """Whether ranks with parts of rows compute it: the weights of the last place of softsort need sums alone."""
        return options[1] == "softsort" and not options[-1]

    @staticmethod
    def forward(x: Tensor, softness: Softness, dim: int, largest: bool, options: Options) -> Any:
        *_, outputs, hard = options
        return hard_extremum(x, dim, largest, outputs) if hard else Extremum.soft_forward(x, softness, dim, largest, options)

    @staticmethod
    def relaxed(x: Tensor, softness: Softness, dim: int, largest: bool, options: Options) -> Any:
        method, rows = relax(x if largest else -x, softness, dim, options)
        outputs = options[4]
        if outputs in ("values", "values_and_indices"):
            values = method.largest(rows)
            return (values if largest else -values).to(x.dtype)
        weights = method.largest_weights(rows)
        if outputs == "weights":
            return weights.to(x.dtype)
        values = rows.average(weights)
        return (values if largest else -values).to(x.dtype), weights.to(x.dtype)

    @classmethod
    def saves_value(cls, output: Any, options: Options) -> bool:
        return saves_weights(output, options, ("softsort", "neuralsort"))

    @staticmethod
    def of_rows(unit: Tensor, dim: int, weights: bool) -> Tensor:
        return unit.movedim(dim, -1) if weights else unit.squeeze(dim)


def hard_extremum(x: Tensor, dim: int, largest: bool, outputs: Outputs) -> Any:
    """The outputs from torch's own function."""
    if outputs == "weights":
        return one_hot((torch.argmax if largest else torch.argmin)(x, dim), x.shape[dim], x.dtype)
    reduce = torch.max if largest else torch.min
    if outputs == "values" and x.ndim == 1:
        return reduce(x)  # several times faster than with indices
    both = reduce(x, dim)
    return both if outputs == "values_and_indices" else hard_outputs(both, outputs, x.shape[dim])
