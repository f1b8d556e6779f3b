"""Smooth relaxations of torch's own operations, which cost less than an operator; the steps of small tensors."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fullgrad._core.fast import fast
from fullgrad._dispatch import can_record_in_place
from fullgrad.soft import _curves as curves
from fullgrad.soft._comparisons import Comparison, argument
from fullgrad.soft._curves import LARGEST, SMALLEST
from fullgrad.soft._relaxation import relaxed
from fullgrad.soft._round import weighted_sum
from fullgrad.soft._sigmoidal import Sigmoidal
from fullgrad.soft._sign import Sign
from fullgrad.soft._softrelu import Softrelu

# torch records them, and their derivatives of every order are the true ones; in half precision each step would round.
_DTYPES = frozenset({torch.float32, torch.float64})


def _sigmoid(x: Tensor, s: float, mode: str) -> Tensor:
    return _sigmoid_of(x / s)


def _sigmoid_of(z: Tensor) -> Tensor:
    return z.sigmoid_() if can_record_in_place(z) else torch.sigmoid(z)


def _tanh(x: Tensor, s: float, mode: str) -> Tensor:
    return torch.tanh(x / (2 * s))


def _softplus(x: Tensor, s: float, gated: bool, mode: str) -> Any:
    return NotImplemented if gated else curves.softplus(x, s, mode)


def _comparison(x: Tensor, y: Any, s: float, name: str, sign: int, shift: float, mode: str) -> Any:
    return _sigmoid_of(argument(x, y, s, sign, shift) / s)


# The operations, and the position of the softness.
_OPERATIONS: dict[Any, tuple[Callable[..., Any], int]] = {
    Sigmoidal: (_sigmoid, 1),
    Sign: (_tanh, 1),
    Softrelu: (_softplus, 1),
    Comparison: (_comparison, 2),
}


@fast(relaxed, recorded=True, within=2)
def _relaxed(operator: Any, *args: Any) -> Any:
    if args[-1] != "smooth" or operator not in _OPERATIONS or args[0].dtype not in _DTYPES:
        return NotImplemented
    operation, i = _OPERATIONS[operator]
    return operation(*args) if args[i].__class__ is float and SMALLEST < args[i] < LARGEST else NotImplemented


@fast(weighted_sum, within=8)
def _steps_at_once(curve: Any, d: Tensor, s: Any, mode: str, steps: tuple[tuple[float, float], ...]) -> Any:
    if not (len(steps) > 1 and steps[0][0] == steps[-1][0] == 1 and isinstance(s, float) and d.numel() <= 1024):
        return NotImplemented
    at = torch.arange(steps[0][1], steps[-1][1] + 0.5, dtype=d.dtype, device=d.device)
    return curve(d - at.view(-1, *[1] * d.ndim), s, mode).sum(0)
