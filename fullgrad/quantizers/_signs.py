"""Where a number is above or below others: the codes of weights with two or three values."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core.buffers import apply_steps
from fullgrad._core.windows import where_between
from fullgrad._dispatch import can_reuse_buffers


def as_factor(mask: Tensor, like: Tensor) -> Tensor:
    """0 and 1 of the dtype of a tensor."""
    return mask.to(like.dtype)


def sign(x: Tensor, at_zero: float) -> Tensor:
    """1 and -1, ``at_zero``, which is one of those or 0, at zeros of both signs, NaN for NaN."""
    x = x.detach()
    return with_nan(apply_steps(torch.sign(x), (torch.mul, 2), (torch.add, at_zero), (torch.sign,)), x)


def with_nan(code: Tensor, x: Tensor) -> Tensor:
    """The code of numbers, where zeros are positive, and NaN for NaN, of which torch's sign is 0."""
    nan = apply_steps(torch.clamp(x, 1, 2), (torch.mul, 0))
    return torch.add(code, nan, out=nan if can_reuse_buffers() and code.shape == nan.shape else None)


def pass_in_window(g: Tensor, x: Tensor, window: Any) -> Tensor:
    """``g`` where ``abs(x) <= window``, else 0; everywhere without a window. The window is of the dtype of ``x``."""
    if window is None:
        return g
    return where_between(g, x, -window, window)
