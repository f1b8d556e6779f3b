"""Arithmetic that all grids share: quotients in the dtype of the computation."""

import functools
from typing import Any

import torch
from torch import Tensor

from fullgrad._core.neighbors import rounded
from fullgrad._core.opmath import HALF
from fullgrad._dispatch import at_least, square_root


def to_compute(x: Tensor, *parameters: Any) -> list[Any]:
    """``x`` and the tensors among the parameters, in the dtype of the computation."""
    found: list[Any] = [x.float() if x.dtype in HALF else x]
    dtype = found[0].dtype
    for p in parameters:
        found += [p.to(dtype) if isinstance(p, Tensor) and p.dtype != dtype else p]
    return found


@functools.lru_cache(maxsize=1024)
def reciprocal_number(scale: float, dtype: torch.dtype) -> float:
    """The reciprocal of a number, both rounded to ``dtype``."""
    return rounded(1.0 / rounded(scale, dtype), dtype)


def lsq_factor(numbers: int, largest: float) -> float:
    """The factor of the gradient of a scale that so many numbers share, for the largest code: the gradient is a sum over them."""
    return 1 / square_root(at_least(numbers, 1) * max(largest, 1))
