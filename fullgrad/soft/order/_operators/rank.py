"""`Rank`: the operator of the rank of each element."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._dispatch import surely
from fullgrad.soft._relaxation import Softness, with_zero_derivative
from fullgrad.soft.order._statistic import Options, OrderStatistic, canonicalize_args, relax
from fullgrad.soft.order.methods import METHODS


def rank_operator(name: str, x: Any, dim: int | None, softness: Softness, descending: bool, options: Options) -> Tensor:
    """The ranks in the shape of ``x``."""
    rows, d = canonicalize_args(name, x, dim, softness, options)
    checks.flag(name, "descending", descending)
    if options[0] == "hard" or surely(rows.shape[d] == 0):
        return with_zero_derivative(hard_rank(rows, d, descending), rows).reshape(x.shape)
    return Rank.apply(rows, softness, d, descending, options).reshape(x.shape)


class Rank(OrderStatistic):
    """The operator of ``rank`` and its straight-through version."""

    @staticmethod
    def forward(x: Tensor, softness: Softness, dim: int, descending: bool, options: Options) -> Tensor:
        return hard_rank(x, dim, descending) if options[-1] else Rank.soft_forward(x, softness, dim, descending, options)

    @staticmethod
    def relaxed(x: Tensor, softness: Softness, dim: int, descending: bool, options: Options) -> Tensor:
        negate = descending and METHODS[options[1]].negation_reverses
        method, rows = relax(-x if negate else x, softness, dim, options)
        y = method.ranks(rows)
        if descending and not negate:
            y = rows.n + 1 - y
        return y.movedim(-1, dim).to(x.dtype)


def hard_rank(x: Tensor, dim: int, descending: bool) -> Tensor:
    """``argsort(argsort(x)) + 1``; the second argsort inverts a permutation and needs no sort."""
    order = torch.sort(x, dim=dim, descending=descending, stable=True).indices
    shape = [1] * x.ndim
    shape[dim] = x.shape[dim]
    numbers = torch.arange(1, x.shape[dim] + 1, device=x.device).to(x.dtype).view(shape).expand(x.shape)
    # A sum has the strides of its first term, here those of the input.
    return torch.zeros_like(order, dtype=x.dtype) + numbers.scatter(dim, order, numbers)
