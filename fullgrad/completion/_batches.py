"""Operators that `vmap` alone lacks: numbers that are the same for all samples, and copies of rows."""

import torch
from torch import Tensor

from fullgrad._dispatch import innermost
from fullgrad.completion._registry import NO_VMAP, completes


@completes("_local_scalar_dense", NO_VMAP, batched=True)
def _number(x: Tensor) -> bool | int | float | complex:
    every = innermost(x).reshape(-1)
    if every.numel() and bool((every == every[0]).all()):
        return every[0].item()
    raise RuntimeError(
        "vmap: the samples of the batch have several numbers where Python code asks for one; use torch.where instead."
    )


@completes("is_nonzero", NO_VMAP, batched=True)
def _condition(x: Tensor) -> bool:
    return bool(_number(x != 0))


@completes("unbind_copy.int", NO_VMAP, batched=True)
def _unbind_copy(x: Tensor, dim: int = 0) -> list[Tensor]:
    return [v.clone() for v in torch.unbind(x, dim)]
