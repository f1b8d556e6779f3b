"""Checks of the gradients and tangents that rules return."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import has_shape
from fullgrad._engine.call import Call


def check_like(label: str, of: str, t: Any, shape: Any, dtype: torch.dtype) -> Tensor:
    """The tensor, if it has a shape and a dtype."""
    if not isinstance(t, Tensor):
        raise TypeError(f"{label} must be a tensor, or None for 0, got a value of type {type(t).__name__}.")
    if not has_shape(t.shape, shape):
        raise ValueError(f"{label} must have the shape of its {of}, {tuple(shape)}, got {tuple(t.shape)}.")
    if t.dtype != dtype:
        raise TypeError(f"{label} must have the dtype of its {of}, {dtype}, got {t.dtype}.")
    return t


def gradients_of(rule: str, label: str, call: Call, wanted: Sequence[int], grads: Any) -> list[Any]:
    """The gradients that a rule returned, one or None for each tensor of a call; the tuple has the wanted arguments."""
    if not isinstance(grads, (tuple, list)) or len(grads) != len(wanted):
        raise TypeError(
            f"{rule} must return a tuple with a gradient, or None, for each of the {len(wanted)} arguments, got a value of type "
            f"{type(grads).__name__}" + (f" of {len(grads)}." if isinstance(grads, (tuple, list)) else ".")
        )
    given = dict(zip(wanted, grads, strict=True))
    parts = [part.flattened(given.get(i), f"{label}: the gradient of argument {i}") for i, part in enumerate(call.parts)]
    return [g for part in parts for g in part]
