"""Smooth relaxations of torch's own operations, which cost less than an operator; smooth steps of large tensors in one buffer;
the steps of small tensors.
"""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core.fast import fast
from fullgrad.soft import _comparisons, _sigmoidal, _sign
from fullgrad.soft import _curves as curves
from fullgrad.soft._curves import LARGEST, SMALLEST
from fullgrad.soft._round import weighted_sum
from fullgrad.soft._softrelu import relaxed

_DTYPES = frozenset({torch.float32, torch.float64})
_SIGMOID_BACKWARD = torch.ops.aten.sigmoid_backward.grad_input


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


# A smooth step and its slope are few kernels: in one buffer they take less time than in pieces.


@fast(_sigmoidal.value)
def _sigmoid(x: Tensor, s: Any, mode: str) -> Any:
    return (x / s).sigmoid_() if _is_plain(x, s, mode) else NotImplemented


@fast(_sign.value)
def _soft_sign(x: Tensor, s: Any, mode: str) -> Any:
    return (x / (2 * s)).tanh_() if _is_plain(x, s, mode) else NotImplemented


@fast(_comparisons.value)
def _compared(x: Tensor, y: Any, s: Any, sign: int, shift: float, mode: str) -> Any:
    d = _comparisons.argument(x, y, s, sign, shift) if _is_plain(x, s, mode) else None
    return NotImplemented if d is None else d.div_(s).sigmoid_()


# The exponent is rounded as in `sigmoid_gate`, which the formula calls twice.
@fast(curves.slope_times, within=384)
def _slope_times(v: Tensor, x: Tensor, s: Any, mode: str, factor: float = 1) -> Any:
    if not (_is_plain(x, s, mode) and v.shape == x.shape and v.dtype == x.dtype):
        return NotImplemented
    return _even_slope_times(v, torch.abs(x), s, factor)


@fast(_comparisons.slope_times, within=384)
def _compared_slope_times(v: Tensor, x: Tensor, y: Any, s: Any, sign: int, shift: float, mode: str) -> Any:
    d = _comparisons.argument(x, y, s, sign, shift) if _is_plain(x, s, mode) else None
    if d is None or v.shape != d.shape or v.dtype != d.dtype:
        return NotImplemented
    return _even_slope_times(v, d.abs_(), s, sign)


def _even_slope_times(v: Tensor, distance: Tensor, s: float, factor: float) -> Tensor:
    """v S' times a factor, in the memory of |x|: S' is even, and p (1 - p) is accurate for p = S(-|x|)."""
    p = distance.div_(-s).sigmoid_()
    return _SIGMOID_BACKWARD(v, p, grad_input=p).div_(s / factor)


def _is_plain(x: Tensor, s: Any, mode: str) -> bool:
    return mode == "smooth" and s.__class__ is float and x.dtype in _DTYPES
