"""Signs and windows: the codes of weights with two or three values."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core.buffers import apply_steps
from fullgrad._core.windows import where_between
from fullgrad._dispatch import can_reuse_buffers


def as_factor(mask: Tensor, like: Tensor) -> Tensor:
    """A mask as 0 and 1 in the dtype of a tensor."""
    return mask.to(like.dtype)


def sign(x: Tensor, at_zero: float) -> Tensor:
    """1 and -1; ``at_zero``, which is 1, -1 or 0, at zeros of both signs; NaN for NaN."""
    x = x.detach()
    return with_nan(apply_steps(torch.sign(x), (torch.mul, 2), (torch.add, at_zero), (torch.sign,)), x)


def with_nan(code: Tensor, x: Tensor) -> Tensor:
    """The code of ``x``, its zeros made positive, and NaN where ``x`` is NaN, for which torch's sign is 0."""
    nan = apply_steps(torch.clamp(x, 1, 2), (torch.mul, 0))
    return torch.add(code, nan, out=nan if can_reuse_buffers() and code.shape == nan.shape else None)


def pass_in_window(g: Tensor, x: Tensor, window: Any) -> Tensor:
    """``g`` where ``abs(x) <= window``, else 0; everywhere without a window. The window has the dtype of ``x``."""
    if window is None:
        return g
    return where_between(g, x, -window, window)
