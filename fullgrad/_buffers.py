"""Steps on a temporary in its own memory, where they are not recorded or traced: new memory costs more than arithmetic."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import can_reuse_buffers


def apply_steps(temporary: Tensor, *steps: tuple[Any, ...]) -> Tensor:
    """Elementwise ``function(temporary, *arguments)`` one after another, where they are not recorded all in one buffer.

    The arguments are numbers, or tensors that broadcast to the temporary. A polynomial of ten steps takes a quarter of the time.
    """
    reuse = can_reuse_buffers()
    for function, *arguments in steps:
        temporary = function(temporary, *arguments, out=temporary if reuse else None)
    return temporary


def mul_into(v: Tensor, temporary: Tensor) -> Tensor:
    """A product in the buffer of its second factor, where that has the shape and dtype."""
    return _into(torch.mul, v, temporary)


def divide_into(v: Tensor, temporary: Tensor) -> Tensor:
    """A quotient in the buffer of its divisor, where that has the shape and dtype."""
    return _into(torch.div, v, temporary)


def _into(function: Callable[..., Tensor], v: Tensor, temporary: Tensor) -> Tensor:
    fits = v.shape == temporary.shape and v.dtype == temporary.dtype
    return function(v, temporary, out=temporary if fits and can_reuse_buffers() else None)
