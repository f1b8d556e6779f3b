"""Arguments of the family: rows of predictions with rows of targets, and how their losses are reduced."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.bits import digits, exponent, power_of_two
from fullgrad._core.opmath import to_opmath
from fullgrad._dispatch import has_shape, holds
from fullgrad.soft._relaxation import Softness, checked_floating
from fullgrad.soft.order._operators.rank import rank_operator
from fullgrad.soft.simplex._losses import REDUCTIONS


def checked_rows(name: str, argument: str, x: Any, other: str, y: Any, dim: Any, reduction: Any) -> tuple[Tensor, Tensor]:
    """Rows of two tensors along the last dimension, in float32 at least; those of the second without a derivative."""
    x = checked_floating(name, argument, x)
    checks.real_tensor(name, other, y)
    if not has_shape(y.shape, x.shape):
        raise ValueError(f"{name}: `{other}` must have the shape {tuple(x.shape)} of `{argument}`, got {tuple(y.shape)}.")
    checks.one_dim(name, dim, x.ndim)
    checks.choice(name, "reduction", reduction, REDUCTIONS)
    (x,) = to_opmath(x if x.ndim else x.reshape(1))
    rows = x.movedim(dim, -1)
    if not holds(rows.shape[-1] != 0):
        raise ValueError(f"{name}: `{argument}` must have at least one element along `dim`, got shape {tuple(x.shape)}.")
    y = (y if y.ndim else y.reshape(1)).detach().movedim(dim, -1)
    return rows, y


def soft_ranks(
    name: str, rows: Tensor, softness: Softness, mode: str, method: str, standardize: bool, descending: bool
) -> Tensor:
    """The soft ranks of rows, as :func:`fullgrad.soft.rank` has them, of standardized rows in any unit."""
    rows = rows * _unit(rows.detach()) if standardize else rows
    return rank_operator(name, rows, -1, softness, descending, (mode, method, standardize, True, "ranks", False))


def _unit(rows: Tensor) -> Tensor:
    """Powers of two by which the finite elements of rows spread over about 1: `standardize` adds 1e-6 to their variance."""
    is_finite, largest = rows.isfinite(), digits(rows.dtype)[1] - 1
    high = torch.where(is_finite, rows, -torch.inf).amax(-1, keepdim=True)
    low = torch.where(is_finite, rows, torch.inf).amin(-1, keepdim=True)
    spread = high - low
    e = exponent(spread).clamp(-largest, largest)
    return power_of_two(torch.where((spread > 0) & spread.isfinite(), -e, 0), rows.dtype)


def quotient(x: Tensor, y: Tensor, undefined: Tensor) -> Tensor:
    """x / y; 0 with the derivative 0 where it is undefined."""
    return torch.where(undefined, 0, x / torch.where(undefined, 1, y))


def reduced(losses: Tensor, reduction: str, dtype: torch.dtype) -> Tensor:
    """The losses of rows, their mean or sum."""
    return (losses.mean() if reduction == "mean" else losses.sum() if reduction == "sum" else losses).to(dtype)
