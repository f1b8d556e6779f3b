"""Sums, means and extremes of rows of a table, by bags."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import below_transforms, innermost
from fullgrad.completion._registry import NO_FORWARD, NO_SECOND, accumulated, completes, completes_backward

MEAN, MAX = 1, 2


def _are_offsets(offsets: Tensor, count: int) -> Tensor:
    return (offsets[..., :1] == 0).all() & (offsets >= 0).all() & (offsets <= count).all()


@completes("_embedding_bag_forward_only", NO_FORWARD, batched=True)  # where only the weights of samples have a derivative
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
    bag = _bags(indices, starts)
    counts, bags = indices != padding_idx, torch.arange(starts.shape[0], device=bag.device)
    rows, sizes = weight.index_select(0, indices), ((bag == bags.unsqueeze(-1)) & counts).sum(-1)
    if per_sample_weights is not None:
        rows = _counted(rows, counts) * _counted(per_sample_weights.unsqueeze(-1), counts)
    is_max = mode == MAX
    y = _largest(rows, (bag == bags.unsqueeze(-1)) & counts) if is_max else _summed(rows, bag, counts, sizes, mode)
    return y, bag, sizes, torch.zeros_like(sizes)


def _bags(indices: Tensor, starts: Tensor) -> Tensor:
    """The bag of each index."""
    place = torch.arange(indices.shape[0], device=indices.device, dtype=starts.dtype)
    return torch.searchsorted(starts, place, right=True) - 1


def _counted(x: Tensor, counts: Tensor) -> Tensor:
    """The rows that count, before they are multiplied: 0 times what is no number is none."""
    return torch.where(counts.unsqueeze(-1), x, 0)


def _summed(rows: Tensor, bag: Tensor, counts: Tensor, sizes: Tensor, mode: int) -> Tensor:
    """The sum of the rows of each bag, which reads the rows of no other, or their mean."""
    own = accumulated(_counted(rows, counts))
    y = torch.zeros(sizes.shape[0], rows.shape[1], dtype=own.dtype, device=own.device).index_add(0, bag, own)
    return (y / sizes.clamp(min=1).unsqueeze(-1) if mode == MEAN else y).to(rows.dtype)


def _largest(rows: Tensor, chosen: Tensor) -> Tensor:
    """The first largest number of each bag: as in torch, what is no number counts only where it comes first."""
    if not rows.shape[0]:
        return rows.sum(0) + torch.zeros(chosen.shape[0], 1, dtype=rows.dtype, device=rows.device)
    first = (chosen & (chosen.cumsum(-1) == 1)).unsqueeze(-1)
    values = rows.detach()
    keys = torch.where(chosen.unsqueeze(-1) & (first | ~values.isnan()), values, -torch.inf)
    place = keys.argmax(1)
    place = torch.where(keys.amax(1) == -torch.inf, first.long().argmax(1), place)  # all are -inf, or there is none
    return torch.where(chosen.any(-1, keepdim=True), rows.gather(0, place), 0)


@completes_backward("_embedding_bag_backward")
def _backward(
    g: Tensor,
    indices: Tensor,
    offsets: Tensor,
    bag: Tensor,
    sizes: Tensor,
    largest: Tensor,
    count: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Any:
    """The gradient of the table, a linear function of that of the bags."""
    if scale_grad_by_freq or sparse:
        return NotImplemented
    zeros = torch.zeros(count, g.shape[1], dtype=g.dtype, device=g.device)
    if mode == MAX:
        return zeros.scatter_add(0, largest.clamp(min=0).long(), torch.where(largest >= 0, g, 0))
    counts = indices != padding_idx
    rows = _counted(g.index_select(0, _bags(indices, offsets)), counts)
    if mode == MEAN:
        rows = rows / sizes.clamp(min=1).index_select(0, _bags(indices, offsets)).unsqueeze(-1)
    if per_sample_weights is not None:
        rows = rows * _counted(per_sample_weights.unsqueeze(-1), counts)
    return zeros.index_add(0, indices, rows)


@completes_backward("_embedding_bag_per_sample_weights_backward")
def _backward_of_weights(
    g: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, bag: Tensor, mode: int, padding_idx: int = -1
) -> Tensor:
    counts = indices != padding_idx
    rows, of_table = g.index_select(0, _bags(indices, offsets)), weight.index_select(0, indices)
    return (_counted(rows, counts) * _counted(of_table, counts)).sum(-1)
