"""Helpers of the formats that find a scale for each block."""

from typing import Any

from torch import Tensor

from fullgrad._core.batching import aligned
from fullgrad._dispatch import holds
from fullgrad.quantizers import _arguments


def check_blocks(name: str, x: Tensor, block_size: Any, dim: Any) -> tuple[int, int]:
    """A block size that divides ``dim``, and ``dim`` counted from the back, so that a batch in front does not change it."""
    if x.ndim == 0:
        raise ValueError(f"{name}: `x` must have at least one dimension, got none.")
    block_size = _arguments.integer(name, "block_size", block_size)
    dim = _arguments.check_dim(name, dim, x.ndim) - x.ndim
    if block_size < 1 or not holds(x.shape[dim] % block_size == 0):
        raise ValueError(f"{name}: `block_size` must be positive and divide the size {x.shape[dim]} of `dim`, got {block_size}.")
    return block_size, dim


def blocks_of(x: Tensor, block_size: int, dim: int) -> tuple[Tensor, int]:
    """``x`` with ``dim`` split into blocks and their elements, and the dimension of the elements."""
    count = x.shape[dim] // block_size
    return x.unflatten(dim, (count, block_size)), dim


def behind_batch(operator: Any, in_dims: tuple[int | None, ...], args: tuple[Any, ...]) -> tuple[Tensor, int]:
    """The ``vmap`` rule of an operator whose ``dim`` counts from the back and whose tensors have one shape, or sizes of 1."""
    return operator.apply(*aligned(in_dims, args)), 0
