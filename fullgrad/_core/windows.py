"""Choices by where a number lies: formulas that several families share."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fullgrad._core.fast import replaceable
from fullgrad._core.function import recomputed
from fullgrad._core.opmath import result_dtype


def between(x: Tensor, low: Any, high: Any) -> Tensor:
    """``low <= x <= high``, where None is no bound. False where ``x`` is NaN, for which no comparison holds."""
    if low is None:
        return x <= high
    return x >= low if high is None else (x >= low) & (x <= high)


@replaceable
def where_between(g: Tensor, x: Tensor, low: Any, high: Any) -> Tensor:
    """``g`` where ``low <= x <= high``, else 0, also where ``g`` is infinite or ``x`` NaN. None is no bound."""
    return torch.where(between(x, low, high), g, 0)


@replaceable
def where_inside(g: Tensor, x: Tensor, low: Any, high: Any) -> Tensor:
    """`where_between` without the bounds."""
    inside = x > low if high is None else x < high if low is None else (x > low) & (x < high)
    return torch.where(inside, g, 0)


@replaceable
def where_positive(g: Tensor, m: Tensor) -> Tensor:
    """``g``, and 0 where numbers or a mask ``m`` are 0 or negative; ``g`` where ``m`` is NaN. No derivative in ``m``."""
    return torch.where(m <= 0, 0, g)


@replaceable
def sigmoid_gate(v: Tensor, x: Tensor, s: Any) -> Tensor:
    """``v * torch.sigmoid(x / s)``; for ``-s`` it is ``v * (1 - torch.sigmoid(x / s))``."""
    return v * torch.sigmoid(x / s)


def row_sigmoid(h: Tensor) -> Tensor:
    """The sigmoid, the same for equal elements wherever they stand in a row: their distance is 0, and they are ties.

    On the CPU, `torch.sigmoid` rounds elements that fill no vector, or are strided, in another way. `torch.exp` does not.
    """
    z = torch.sigmoid(h)
    # The difference of numbers this near to each other is exact, and so is the sum.
    return z + (1 / (1 + torch.exp(-h.detach())) - z.detach()) if h.device.type == "cpu" else z


@replaceable
def compared(compare: Callable[..., Tensor], x: Tensor, y: Any) -> Tensor:
    """A comparison as 0 or 1, in the floating dtype of x - y."""
    return as_number(recomputed(compare, x, y), result_dtype(x, y))


def as_number(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as 0 and 1."""
    return mask.float().to(dtype)  # by way of float32, as compilers vectorize that conversion alone
