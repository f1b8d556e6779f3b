"""Sums, means and extremes of rows of a table, by bags."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import below_transforms, innermost
from fullgrad.completion._registry import NO_SECOND, completes


def _are_offsets(offsets: Tensor, count: int) -> Tensor:
    return (offsets[..., :1] == 0).all() & (offsets >= 0).all() & (offsets <= count).all()


@completes("_embedding_bag", NO_SECOND, batched=True)
def _embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    if scale_grad_by_freq:
        return NotImplemented  # whose gradient is no derivative
    starts = offsets[:-1] if include_last_offset else offsets
    below_transforms(lambda: torch._assert_async(_are_offsets(innermost(offsets), indices.shape[0]), "offsets are 0 to the end"))
    place = torch.arange(indices.shape[0], device=indices.device, dtype=offsets.dtype)
    bag = torch.searchsorted(starts, place, right=True) - 1
    chosen = (bag == torch.arange(starts.shape[0], device=bag.device).unsqueeze(-1)) & (indices != padding_idx)
    rows, sizes = weight.index_select(0, indices), chosen.sum(-1)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if mode == 2:
        every = torch.where(chosen.unsqueeze(-1), rows, -torch.inf)
        most = every.amax(1) if indices.shape[0] else every.sum(1)
        y = torch.where((sizes == 0).unsqueeze(-1), 0, most)
    else:
        y = chosen.to(rows.dtype) @ rows
        y = y if mode == 0 else y / sizes.clamp(min=1).unsqueeze(-1)
    return y, bag, sizes, torch.zeros_like(sizes)
