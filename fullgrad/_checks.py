"""Checks of arguments. The only place that words their errors: name, rule, found.

Public functions call them before the operator, so that nothing is recorded when one fails, under ``torch.compile`` and ``vmap``
too.
"""

import math
import operator
from typing import Any

import torch
from torch import Tensor

_UNORDERED = frozenset({torch.bool, torch.complex32, torch.complex64, torch.complex128})


def real_tensor(name: str, argument: str, value: Any) -> None:
    """A tensor of real numbers: integer or floating, neither bool nor complex."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: `{argument}` must be a tensor, got {_type(value)}.")
    if value.dtype in _UNORDERED:
        raise TypeError(f"{name}: `{argument}` must be a real tensor, got dtype {value.dtype}.")


def real_number_or_tensor(name: str, argument: str, value: Any) -> None:
    """A Python number or a real tensor."""
    if isinstance(value, Tensor):
        real_tensor(name, argument, value)
    elif not isinstance(value, (int, float, torch.SymInt, torch.SymFloat)):
        raise TypeError(f"{name}: `{argument}` must be a number or a tensor, got {_type(value)}.")


def positive_number(name: str, argument: str, value: Any) -> None:
    """A positive, finite Python number."""
    real_number_or_tensor(name, argument, value)
    if not (value > 0 and value < math.inf):
        raise ValueError(f"{name}: `{argument}` must be positive and finite, got {value}.")


def positive_integer(name: str, argument: str, value: Any, at_most: int) -> Any:
    """An integer from 1 to a limit, returned as a plain int."""
    if not isinstance(value, (int, torch.SymInt)):
        if not hasattr(value, "__index__") or (isinstance(value, Tensor) and value.is_floating_point()):
            raise TypeError(f"{name}: `{argument}` must be a positive integer, got {_type(value)}: {value!r}.")
        value = operator.index(value)
    if value < 1:
        raise ValueError(f"{name}: `{argument}` must be a positive integer, got {value}.")
    if value > at_most:
        raise ValueError(f"{name}: `{argument}` must be at most {at_most}, got {value}.")
    return value


def not_empty(name: str, argument: str, value: Tensor) -> None:
    """A tensor with at least one element."""
    if value.numel() == 0:
        raise ValueError(f"{name}: `{argument}` must have at least one element, got shape {tuple(value.shape)}.")


def _type(value: Any) -> str:
    return f"a value of type {type(value).__name__}"
