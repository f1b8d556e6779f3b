"""The statistics that can be tracked, one number per sample each."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._dispatch import has_shape, perhaps, square_root, surely
from fullgrad.gradients._magnitude import largest

Statistic = str | Callable[[Tensor], Tensor]


# Functions of a tensor, its dimensions that do not count samples, and the number of elements in these.
STATISTICS: dict[str, Callable[[Tensor, tuple[int, ...], int], Tensor]] = {
    # torch warns about a single element, and returns the same NaN.
    "std": lambda x, dims, n: torch.std(x, dims, correction=1) if perhaps(n > 1) else x.sum(dims) * math.nan,
    "rms": lambda x, dims, n: torch.linalg.vector_norm(x, 2, dims) / square_root(n),
    "mean_abs": lambda x, dims, n: torch.linalg.vector_norm(x, 1, dims) / n,
    "max_abs": lambda x, dims, n: largest(x, dims).reshape(x.shape[: x.ndim - len(dims)]),
}


def check_statistic(name: str, stat: Any) -> None:
    """Refuse a statistic that is neither a known name nor a function."""
    if not callable(stat):
        checks.choice(name, "stat", stat, STATISTICS)


def statistic(x: Tensor, stat: Statistic, batch: int) -> Tensor:
    """The statistic of every sample of ``x``, whose first ``batch`` dimensions count samples.

    Named statistics are computed in float32 at least, since half precision would overflow, and are NaN for an empty sample.
    """
    if not isinstance(stat, str):
        for _ in range(batch):
            stat = torch.func.vmap(stat)
        value = stat(x)
        if not isinstance(value, Tensor) or not has_shape(value.shape, x.shape[:batch]):
            found = (
                f"shape {tuple(value.shape[batch:])}" if isinstance(value, Tensor) else f"a value of type {type(value).__name__}"
            )
            raise ValueError(f"ScaleTracker: `stat` must return a tensor without dimensions, got {found}.")
        return value
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    if x.ndim == batch:
        x = x.unsqueeze(-1)
    n = math.prod(x.shape[batch:])
    if surely(n == 0):
        return x.new_full(x.shape[:batch], math.nan)
    return STATISTICS[stat](x, tuple(range(batch, x.ndim)), n)
