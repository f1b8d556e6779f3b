"""What the projections have in common: the rule for a batch, the powers of the modes, the precision that they compute in."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from fullgrad._autocast import matmul
from fullgrad._batching import aligned
from fullgrad._function import Function

# In these modes the weights are powers of how far a number lies above a threshold.
POWERS = {"c0": 1, "c1": 2, "c2": 3}


def wide(x: Tensor) -> Tensor:
    """The same numbers in float64, where the device has it."""
    return x.to(wide_dtype(x))


def wide_dtype(x: Tensor) -> torch.dtype:
    """float64, where the device has it."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def weighted(weights: Tensor, x: Tensor) -> Tensor:
    """The sums (…, k) of rows (…, n) with weights (…, k, n): a matrix times a vector."""
    return matmul(weights, x.unsqueeze(-1)).squeeze(-1)


def power(t: Tensor, exponent: int) -> Tensor:
    """A power of 1, 2 or 3, by products: `torch.pow` is slow."""
    return t if exponent == 1 else t * t if exponent == 2 else t * t * t


class RowFunction(Function):
    """A function of rows, or of matrices, whose arguments broadcast: under ``vmap`` a batch is one more dimension in front."""

    # How many of the last dimensions of each argument do not broadcast, where they differ.
    core: ClassVar[tuple[int, ...] | None] = None
    out_dims: ClassVar[int | tuple[int, ...]] = 0

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        return cls.apply(*aligned(in_dims, args, cls.core)), cls.out_dims
