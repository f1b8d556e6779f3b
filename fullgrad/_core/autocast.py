"""Matrix products in the precision of their factors."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fullgrad._core.batching import aligned
from fullgrad._core.function import Function
from fullgrad._core.recomputed import save_inputs, saved_inputs
from fullgrad._dispatch import any_distributed


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """``torch.matmul`` without autocast, in every derivative too: the product is part of an operator's value or rule."""
    device = a.device.type
    if not is_autocast(device):
        return torch.matmul(a, b)
    if a.ndim < 2 or b.ndim < 2 or any_distributed((a, b)):
        with torch.autocast(device, enabled=False):
            return torch.matmul(a, b)
    return MatMul.apply(a, b)


class MatMul(Function):
    """The product of matrices. torch's own derivative would multiply matrices where a backward runs, under autocast again."""

    whole_dims = 2

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        with torch.autocast(a.device.type, enabled=False):
            return torch.matmul(a, b)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        save_inputs(ctx, inputs)

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        a, b = saved_inputs(ctx)
        by_a, by_b = ctx.needs_input_grad
        return (
            matmul(g, b.mH).sum_to_size(a.shape) if by_a else None,
            matmul(a.mH, g).sum_to_size(b.shape) if by_b else None,
        )

    @staticmethod
    def jvp(ctx: Any, t_a: Tensor | None, t_b: Tensor | None) -> Tensor:
        a, b = saved_inputs(ctx)
        parts = ([] if t_a is None else [matmul(t_a, b)]) + ([] if t_b is None else [matmul(a, t_b)])
        return sum(parts[1:], parts[0])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        return MatMul.apply(*aligned(in_dims, args, (2, 2))), 0


@contextlib.contextmanager
def without_autocast(device: str) -> Iterator[None]:
    """A context without autocast, for what is computed beside the user's code."""
    if not is_autocast(device):
        yield
        return
    with torch.autocast(device, enabled=False):
        yield


@contextlib.contextmanager
def in_float32(device: str) -> Iterator[None]:
    """A context in which autocast leaves float32 as it is, also at the levels of transforms below, whose keys no context reaches:
    torch's kernels there are called under the autocast of the user, and would return other dtypes than autograd here has noted.
    """
    if not torch.amp.is_autocast_available(device):
        yield
        return
    lower = torch.get_autocast_dtype(device)
    torch.set_autocast_dtype(device, torch.float32)
    try:
        yield
    finally:
        torch.set_autocast_dtype(device, lower)


def is_autocast(device: str) -> bool:
    """Whether autocast is on for a type of device."""
    # torch 2.11 cannot compile the question which devices have autocast: those that run compiled code do.
    has_autocast = device != "meta" if torch.compiler.is_compiling() else torch.amp.is_autocast_available(device)
    return has_autocast and torch.is_autocast_enabled(device)
