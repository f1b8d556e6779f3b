"""Half precision: formulas are computed in float32, where slopes do not overflow, and rounded once."""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

HALF = frozenset({torch.float16, torch.bfloat16})


def to_opmath(*args: Any) -> list[Any]:
    """The arguments with float32 in place of half precision."""
    return [a.float() if a.__class__ is not float and isinstance(a, Tensor) and a.dtype in HALF else a for a in args]


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x.to(dtype)``, which takes the time of an operation even where there is nothing to do."""
    return x if x.dtype == dtype else x.to(dtype)


def any_half(*args: Any) -> bool:
    """Whether some arguments are tensors in half precision."""
    for a in args:  # noqa: SIM110
        if a.__class__ is not float and isinstance(a, Tensor) and a.dtype in HALF:
            return True
    return False


def result_dtype(*args: Any) -> torch.dtype:
    """The dtype that torch gives an elementwise formula of the floating tensors among some arguments."""
    floating = [a for a in args if isinstance(a, Tensor) and a.is_floating_point()]
    some = [a for a in floating if a.ndim] or floating
    return functools.reduce(torch.promote_types, [a.dtype for a in some])


def divided(x: Tensor, scale: Any) -> Tensor:
    """``x / scale`` as a true division on every device: torch multiplies CUDA tensors by the reciprocal of a number."""
    if not isinstance(scale, Tensor) and not x.is_cpu:
        scale = torch.full((), scale, dtype=x.dtype, device=x.device)
    return x / scale


def numbers_like(values: Sequence[float], x: Tensor) -> Tensor:
    """A few numbers as a tensor like another, without an upload, for which the host would wait."""
    if x.is_cpu or not values:
        return torch.tensor(values, dtype=x.dtype, device=x.device)
    return torch.stack([torch.full((), v, dtype=x.dtype, device=x.device) for v in values])


def wide(x: Tensor) -> Tensor:
    """The same numbers in float64, where the device has it."""
    return x.to(wide_dtype(x))


def wide_dtype(x: Tensor) -> torch.dtype:
    """float64, where the device has it."""
    return torch.float32 if x.device.type == "mps" else torch.float64
