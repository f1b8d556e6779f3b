"""Reductions at indices: each place of the result looks at each element, n m numbers for n places and m elements."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core.recomputed import pulled_back
from fullgrad.completion._registry import NO_FORWARD, NO_SECOND, accumulated, completes, completes_backward, valued


def _extreme(x: Tensor, dim: int, function: Any) -> Tensor:
    """The largest or smallest numbers. Equal ones share the slope, and so do those that are no numbers, as in torch."""
    value = function(x.detach(), dim)
    whole = value.unsqueeze(dim)
    is_one = (x == whole) | (x.isnan() & whole.isnan())
    return valued(torch.where(is_one, x / is_one.sum(dim, keepdim=True), 0).sum(dim), value)


def _combined(own: Tensor, source: Tensor, chosen: Tensor, reduce: str, include_self: bool) -> Tensor:
    """The reduction of ``source[..., chosen[i]]`` with ``own[..., i]``; of nothing it is the latter."""
    own, source = accumulated(own), accumulated(source)
    counts, every = chosen.sum(-1), source.unsqueeze(-2)
    kept = torch.ones_like(counts, dtype=torch.bool).unsqueeze(-1) if include_self else counts.unsqueeze(-1) == 0
    if reduce == "mean":
        total = torch.where(chosen, every, 0).sum(-1) + torch.where(kept.squeeze(-1), own, 0)
        return total / (counts + kept.squeeze(-1)).to(own.dtype)
    neutral, function = {"prod": (1, torch.prod), "amax": (-torch.inf, torch.amax), "amin": (torch.inf, torch.amin)}[reduce]
    parts = torch.cat([torch.where(chosen, every, neutral), torch.where(kept, own.unsqueeze(-1), neutral)], -1)
    return function(parts, -1)


def _within(index: Tensor, count: int) -> Tensor:
    """The index, where torch refuses what is out of range: a comparison would leave it out."""
    places = torch.arange(count, device=index.device)
    return places.gather(0, index.reshape(-1)).reshape(index.shape) if count and index.numel() else index


@completes("scatter_reduce.two", "forward mode of products is wrong", issue=196702)
def _scatter_reduce(x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True) -> Any:
    if reduce != "prod":
        return NotImplemented
    if not x.ndim:
        return _scatter_reduce(
            *map(torch.atleast_1d, (x,)), 0, index.reshape(-1), src.reshape(-1), reduce, include_self=include_self
        ).reshape(())
    dim = dim % x.ndim
    x_, index_ = x.movedim(dim, -1), _within(index, x.shape[dim]).movedim(dim, -1)
    src_ = src.movedim(dim, -1)[tuple([slice(0, n) for n in index_.shape])]
    chosen = index_.unsqueeze(-2) == torch.arange(x_.shape[-1], device=x.device).unsqueeze(-1)
    part = x_[tuple([slice(0, n) for n in index_.shape[:-1]])]  # the index may leave the ends of other dimensions out
    y = _combined(part, src_, chosen, reduce, include_self)
    for d in range(x.ndim - 1):
        rest = x_.narrow(d, y.shape[d], x_.shape[d] - y.shape[d])
        y = torch.cat([y, rest[tuple([slice(0, n) if i > d else slice(None) for i, n in enumerate(y.shape)])]], d)
    return y.movedim(-1, dim).to(x.dtype)


@completes("index_reduce", NO_FORWARD, batched=True)
def _index_reduce(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    if not x.ndim:
        y = _index_reduce(x.reshape(1), 0, index.reshape(-1), source.reshape(-1), reduce, include_self=include_self)
        return y.reshape(())
    x_, source_ = x.movedim(dim, -1), source.movedim(dim, -1)
    if source_.shape != (*x_.shape[:-1], index.numel()):
        raise RuntimeError(
            f"index_reduce: `source` must have the shape of `self`, with {index.numel()} along `dim`, got {tuple(source.shape)}."
        )
    chosen = _within(index, x.shape[dim]).reshape(1, -1) == torch.arange(x_.shape[-1], device=x.device).unsqueeze(-1)
    chosen = chosen.expand(*x_.shape, chosen.shape[-1])
    return _combined(x_, source_, chosen, reduce, include_self).movedim(-1, dim).to(x.dtype)


@completes_backward("_segment_reduce_backward", 1)
def _segment_reduce_backward(g: Tensor, y: Tensor, x: Tensor, reduce: str, **options: Any) -> Tensor:
    return pulled_back(lambda x: _segment_reduce(x, reduce, **options), (x,), (0,), g)[0]


@completes("segment_reduce", NO_SECOND, batched=True)
def _segment_reduce(
    x: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Any:
    if offsets is not None:
        starts, ends = offsets[..., :-1], offsets[..., 1:]
    elif lengths is not None:
        ends = lengths.cumsum(-1)
        starts = ends - lengths
    else:
        return NotImplemented
    axis, place = axis % x.ndim, torch.arange(x.shape[axis], device=x.device)
    chosen = (place >= starts.unsqueeze(-1)) & (place < ends.unsqueeze(-1))
    chosen = chosen.reshape(*chosen.shape, *[1] * (x.ndim - axis - 1))
    neutral = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -torch.inf, "min": torch.inf}[reduce]
    parts = torch.where(chosen, x.unsqueeze(axis), neutral)
    first = torch.full_like(parts.narrow(axis + 1, 0, 1) if x.shape[axis] else parts.sum(axis + 1, keepdim=True), neutral)
    parts = torch.cat([parts, first if initial is None else torch.full_like(first, initial)], axis + 1)
    if reduce in ("max", "min"):
        return _extreme(parts, axis + 1, torch.amax if reduce == "max" else torch.amin)
    if reduce == "prod":
        return torch.prod(parts, axis + 1)
    total, count = parts.sum(axis + 1), chosen.sum(axis + 1)
    if reduce == "sum":
        return total
    empty = torch.full_like(total, torch.nan) if initial is None else total
    return torch.where(count == 0, empty, total / count.clamp(min=1))
