"""Checks of what functions of the user return: gradients and tangents, pairs, and tensors that are like others."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import has_shape
from fullgrad._engine.call import Call


def check_like(label: str, of: str, t: Any, shape: Any, dtype: torch.dtype, or_none: bool = False) -> Tensor:
    """The tensor, if it has a shape and a dtype; ``or_none`` says in the error that None would be 0."""
    if not isinstance(t, Tensor):
        raise TypeError(f"{label} must be a tensor,{' or None for 0,' * or_none} got a value of type {type(t).__name__}.")
    if not has_shape(t.shape, shape):
        raise ValueError(f"{label} must have the shape of {of}, {tuple(shape)}, got {tuple(t.shape)}.")
    if t.dtype != dtype:
        raise TypeError(f"{label} must have the dtype of {of}, {dtype}, got {t.dtype}.")
    return t


def check_pair(label: str, pair: str, value: Any) -> Any:
    """The value, if it is a pair."""
    if not isinstance(value, tuple) or len(value) != 2:
        raise TypeError(f"{label} must return the pair {pair}, got {_kind(value)}.")
    return value


def _kind(value: Any) -> str:
    of = f" of {len(value)}" if isinstance(value, (tuple, list)) else ""
    return f"a value of type {type(value).__name__}{of}"


def gradients_of(rule: str, label: str, call: Call, wanted: Sequence[int], grads: Any) -> list[Any]:
    """The gradients that a rule returned, one or None for each tensor of a call; the tuple has the wanted arguments."""
    if not isinstance(grads, (tuple, list)) or len(grads) != len(wanted):
        raise TypeError(
            f"{rule} must return a tuple with a gradient, or None, for each of the {len(wanted)} arguments, got {_kind(grads)}."
        )
    given = dict(zip(wanted, grads, strict=True))
    parts = [part.flattened(given.get(i), f"{label}: the gradient of argument {i}") for i, part in enumerate(call.parts)]
    return [g for part in parts for g in part]
