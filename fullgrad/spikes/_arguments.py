"""Arguments of the family: their types, defaults and checks."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.noise import uniform_like
from fullgrad._dispatch import holds
from fullgrad.soft._relaxation import FLOATING, floating

# A number, or a tensor that may learn.
Parameter = Tensor | float

TIES = (1.0, 0.0, 0.5)
SIGNED_TIES = (1.0, -1.0, 0.0)
_NONE: Mapping[str, Any] = {}


def checked_step(
    name: str,
    v: Any,
    threshold: Any,
    grad_scale: Any,
    tie: Any,
    positive: Mapping[str, Any] = _NONE,
    real: Mapping[str, Any] = _NONE,
) -> Tensor:
    """``v`` as a floating tensor, with the arguments of a step checked: ``real`` ones are any number or tensor."""
    checks.real_number_or_tensor(name, "threshold", threshold)
    checks.real_number_or_tensor(name, "grad_scale", grad_scale)
    return checked(name, "v", v, tie, TIES, positive, real)


def checked(
    name: str,
    argument: str,
    v: Any,
    tie: Any,
    ties: tuple[float, ...],
    positive: Mapping[str, Any] = _NONE,
    real: Mapping[str, Any] = _NONE,
) -> Tensor:
    """``v`` as a floating tensor, with the shared arguments checked: parameters that must be positive, and any real ones.

    NaN is a real number.
    """
    if not (v.__class__ is Tensor and v.dtype in FLOATING):
        checks.real_tensor(name, argument, v)
        v = floating(v)
    if tie not in ties and not any(tie == t for t in ties):  # numbers that vary in compiled code are in no tuple
        raise ValueError(f"{name}: `tie` must be one of {', '.join(map(str, ties))}, got {tie!r}.")
    for key, value in positive.items():
        checks.positive_number_or_tensor(name, key, value)
    for key, value in real.items():
        checks.real_number_or_tensor(name, key, value)
    return v


def check_window(name: str, low: Any, high: Any) -> None:
    """Require two numbers in increasing order, which may be infinite."""
    checks.real_number(name, "low", low)
    checks.real_number(name, "high", high)
    if not holds(low < high):
        raise ValueError(f"{name}: `low` must be less than `high`, got {low} and {high}.")


def positive_or_none(clip_value: Any) -> Mapping[str, Any]:
    """A clip value for `checked`: None is no bound."""
    return _NONE if clip_value is None else {"clip_value": clip_value}


def checked_count(name: str, v: Any, max_spikes: Any, grad_scale: Any, positive: Mapping[str, Any]) -> tuple[Tensor, int | None]:
    """``v`` and ``max_spikes``, with the arguments of a count of spikes checked."""
    if max_spikes is not None:
        max_spikes = checks.positive_integer(name, "max_spikes", max_spikes, 2**53)
    return checked(name, "v", v, 1.0, TIES, positive, {"grad_scale": grad_scale}), max_spikes


def uniform_noise(name: str, v: Tensor, noise: Any) -> Tensor:
    """The caller's noise, as a constant, or new noise, drawn without a gradient too, so that a call replays the same numbers.

    For half precision, new noise is float32: bfloat16, with 256 steps from 0 to 1, would make rare spikes three times as likely.
    """
    if noise is None:
        return uniform_like(v)
    checks.real_tensor(name, "noise", noise)
    return noise.detach()
