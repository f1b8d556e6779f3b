"""Relevance and its gains, for losses like NDCG."""

import math
from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad.losses._rows import Rows, checked_rows

GAINS = ("linear", "exponential")
# Gains from 2^-64 to 2^64 are summed as they are.
_ORDINARY = 64


def graded_rows(name: str, scores: Any, relevance: Any, dim: Any, reduction: Any, mask: Any, weight: Any) -> Rows:
    """The rows of scores and of their relevance, 0 of what is no element, and NaN of a negative one that cannot be
    read without waiting.
    """
    rows = checked_rows(name, "scores", scores, "relevance", relevance, dim, reduction, mask, weight)
    v = rows.only(rows.y, 0)
    checks.no_negative_elements(name, "relevance", v, "; `mask=relevance >= 0` leaves elements out")
    v = v.to(torch.promote_types(v.dtype, rows.x.dtype))
    return rows._replace(y=torch.where(v < 0, torch.nan, v))


def gains_of(v: Tensor, gain: str) -> Tensor:
    """The gains of relevance v, linear or exponential, up to a factor of the row."""
    return _linear_gains(v) if gain == "linear" else _exponential_gains(v)


def _linear_gains(v: Tensor) -> Tensor:
    """The relevance; of the largest of the row, which changes no loss, where sums over- or underflow."""
    largest = v.amax(-1, keepdim=True)
    ordinary = (largest == 0) | ((largest > 2.0**-_ORDINARY) & (largest < 2.0**_ORDINARY))
    return v / torch.where(ordinary, 1, largest)


def _exponential_gains(v: Tensor) -> Tensor:
    """:math:`2^v - 1`; times a power of 2 for the row, which changes no loss, where sums overflow."""
    beyond = (v.amax(-1, keepdim=True) - _ORDINARY).clamp(min=0)
    large = torch.exp2(v - beyond) - torch.exp2(-beyond)
    return torch.where((v < 1) & (beyond == 0), torch.expm1(v * math.log(2)), large)  # a difference would lose the digits
