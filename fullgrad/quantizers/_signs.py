"""Where a number is above or below others: the codes of weights with two or three values."""

from typing import Any

import torch
from torch import Tensor

from fullgrad.clamping._clamp import pass_inside


def as_factor(mask: Tensor, like: Tensor) -> Tensor:
    """0 and 1 of the dtype of a tensor."""
    return mask.to(like.dtype)


def sign(x: Tensor, at_zero: float) -> Tensor:
    """1 and -1, ``at_zero`` at zeros of both signs, NaN for NaN."""
    y = torch.where(x > 0, 1.0, torch.where(x < 0, -1.0, torch.where(x == 0, at_zero, x.detach())))
    return y.to(x.dtype)


def pass_in_window(g: Tensor, x: Tensor, window: Any) -> Tensor:
    """``g`` where ``abs(x) <= window``, else 0; everywhere without a window. The window is of the dtype of ``x``."""
    if window is None:
        return g
    return pass_inside(g, x, -window, window)
