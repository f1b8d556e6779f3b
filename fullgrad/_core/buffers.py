"""Operations in the memory of a temporary, where nothing is recorded or traced: new memory costs more than arithmetic."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import can_reuse_buffers, outside_jit_trace


def apply_steps(temporary: Tensor, *steps: tuple[Any, ...]) -> Tensor:
    """Elementwise ``function(temporary, *arguments)`` one after another, all in one buffer where nothing is recorded.

    The arguments are numbers, or tensors that broadcast to the temporary. Ten steps of a polynomial take a quarter of the time.
    """
    if not can_reuse_buffers():
        for function, *arguments in steps:
            temporary = function(temporary, *arguments)
        return temporary
    for function, *arguments in steps:
        if function in _BINARY_OPS:
            arguments[0] = number_for(temporary, arguments[0])
        temporary = function(temporary, *arguments, out=temporary)
    return temporary


# Functions of two operands, and the dtypes in which a number as a tensor keeps the precision of the arithmetic.
_BINARY_OPS = frozenset({torch.add, torch.sub, torch.mul, torch.div})
_EXACT_DTYPES = frozenset({torch.float32, torch.float64})


def number_for(x: Tensor, value: Any) -> Any:
    """An operand next to ``x`` where nothing is recorded or traced: a float as a tensor, so that torch need not make one.

    A product of 16 elements takes 1 us instead of 2.5. Zeros are left out: both signs would be one key of the cache.
    """
    is_constant = value.__class__ is float and value and x.__class__ is Tensor and x.dtype in _EXACT_DTYPES and x.is_cpu
    return constant(value, x.dtype) if is_constant else value


def operand(x: Tensor, value: Any) -> Any:
    """`number_for`, or the number itself where something is recorded or traced."""
    return number_for(x, value) if can_reuse_buffers() else value


@functools.lru_cache(maxsize=1024)
def constant(value: float, dtype: torch.dtype) -> Tensor:
    """A number as a tensor on the CPU, for arithmetic that nothing records: to make the tensor takes longer than to compute with
    sixteen numbers. The tensor is cached, so it is made outside of inference mode and of a trace.
    """
    with torch.inference_mode(False), outside_jit_trace():
        return torch.tensor(value, dtype=dtype, device="cpu")


def mul_into(v: Tensor, temporary: Tensor) -> Tensor:
    """A product, in the buffer of its second factor if the shape and dtype fit."""
    return _into(torch.mul, v, temporary)


def divide_into(v: Tensor, temporary: Tensor) -> Tensor:
    """A quotient, in the buffer of its divisor if the shape and dtype fit."""
    return _into(torch.div, v, temporary)


def _into(function: Callable[..., Tensor], v: Tensor, temporary: Tensor) -> Tensor:
    fits = v.dtype == temporary.dtype and can_reuse_buffers() and v.shape == temporary.shape
    return function(v, temporary, out=temporary if fits else None)
