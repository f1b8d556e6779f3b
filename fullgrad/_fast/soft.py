"""Smooth relaxations of torch's own operations, which cost less than an operator; the steps of small tensors."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core.fast import fast
from fullgrad.soft import _curves as curves
from fullgrad.soft._curves import LARGEST, SMALLEST
from fullgrad.soft._round import weighted_sum
from fullgrad.soft._softrelu import relaxed

_DTYPES = frozenset({torch.float32, torch.float64})


@fast(relaxed, recorded=True, within=2)
def _softplus(x: Tensor, s: Any, gated: bool, mode: str) -> Any:
    # Its derivative is the formula's to the last digits, unlike that of torch's sigmoid and tanh: theirs is 0 where they are 1.
    # In half precision each step would round.
    if gated or mode != "smooth" or s.__class__ is not float or x.dtype not in _DTYPES or not SMALLEST < s < LARGEST:
        return NotImplemented
    return curves.softplus(x, s, mode)


@fast(weighted_sum, within=8)
def _steps_at_once(curve: Any, d: Tensor, s: Any, mode: str, steps: tuple[tuple[float, float], ...]) -> Any:
    if not (len(steps) > 1 and steps[0][0] == steps[-1][0] == 1 and isinstance(s, float) and d.numel() <= 1024):
        return NotImplemented
    at = torch.arange(steps[0][1], steps[-1][1] + 0.5, dtype=d.dtype, device=d.device)
    return curve(d - at.view(-1, *[1] * d.ndim), s, mode).sum(0)
