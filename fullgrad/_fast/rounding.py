"""Slopes of roundings, in fewer steps, and short formulas in one buffer: three steps take less time than pieces."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core.fast import fast
from fullgrad._core.opmath import HALF
from fullgrad.rounding._k_bit_quantize import on_grid
from fullgrad.rounding._soft_round import slope
from fullgrad.rounding._step_quantize import multiple


@fast(slope)
def _slope(x: Tensor) -> Tensor:
    # 0 / 0 is NaN and becomes 1; x / 0 is infinite and becomes 0. Adding 0 x restores NaN for NaN and infinite x.
    y = torch.round(x)
    return torch.div(x, y, out=y).nan_to_num_(nan=1.0, posinf=0.0, neginf=0.0).add_(x, alpha=0)


@fast(on_grid)
def _on_grid(x: Tensor, k: Any) -> Any:
    levels = 2.0 ** int(k) - 1.0
    return NotImplemented if x.dtype in HALF else (x * levels).round_().div_(levels)


@fast(multiple)
def _multiple(x: Tensor, step: Any) -> Any:
    if isinstance(step, Tensor) or x.dtype in HALF:
        return NotImplemented
    return (x / step).round_().mul_(step)
