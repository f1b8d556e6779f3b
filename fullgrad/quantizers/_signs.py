"""Signs and windows: the codes of weights with two or three values."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core.windows import where_between


def sign(x: Tensor, at_zero: float) -> Tensor:
    """1 and -1; ``at_zero``, which is 1, -1 or 0, at zeros of both signs; NaN for NaN."""
    x = x.detach()
    return with_nan(torch.sign(torch.sign(x) * 2 + at_zero), x)


def with_nan(code: Tensor, x: Tensor) -> Tensor:
    """The code of ``x``, and NaN where ``x`` is NaN, for which torch's sign is 0."""
    # Not by a product with 0, which inductor's vectorized code takes for 0 where x is NaN.
    return torch.where(x.isnan(), x, code).to(code.dtype)


def pass_in_window(g: Tensor, x: Tensor, window: Any) -> Tensor:
    """``g`` where ``abs(x) <= window``, else 0; everywhere without a window. The window has the dtype of ``x``."""
    if window is None:
        return g
    return where_between(g, x, -window, window)
