"""Norms and deviations, and reductions at indices, where each place of the result looks at each element: n m numbers."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._core.recomputed import pulled_back
from fullgrad._dispatch import forward_mode_is_on, transforms_active
from fullgrad.completion._pointwise import logaddexp
from fullgrad.completion._registry import (
    NAN_EAGER_THIRD,
    NO_FORWARD,
    NO_SECOND,
    NO_THIRD,
    accumulated,
    completes,
    completes_backward,
    unit_of,
    valued,
)

_NO_DIMS = "the gradient over no dimensions, `dim=()`, is wrong"


def _extreme(x: Tensor, chosen: Tensor, initial: Tensor, dim: int, function: Any) -> Tensor:
    """The largest or smallest of the chosen numbers and an initial one. Equal ones share the slope, and so do those that are no
    numbers; the initial one has no part of it, as in torch.
    """
    value = function(torch.cat([x.detach(), initial], dim), dim)
    whole = value.unsqueeze(dim)
    is_one = chosen & ((x == whole) | (x.isnan() & whole.isnan()))
    return valued(torch.where(is_one, x / is_one.sum(dim, keepdim=True).clamp(min=1), 0).sum(dim), value)


def _ends(dtype: torch.dtype) -> tuple[float, float]:
    """The least and the largest number: integers next to an infinite one would be rounded."""
    if dtype == torch.bool:
        return False, True
    if dtype.is_floating_point or dtype.is_complex:
        return -math.inf, math.inf
    return torch.iinfo(dtype).min, torch.iinfo(dtype).max


def _combined(own: Tensor, source: Tensor, chosen: Tensor, reduce: str, include_self: bool) -> Tensor:
    """The reduction of ``source[..., chosen[i]]`` with ``own[..., i]``; of nothing it is the latter."""
    own, source = accumulated(own), accumulated(source)
    counts, every = chosen.sum(-1), source.unsqueeze(-2)
    kept = torch.ones_like(counts, dtype=torch.bool).unsqueeze(-1) if include_self else counts.unsqueeze(-1) == 0
    if reduce == "mean":
        total = torch.where(chosen, every, 0).sum(-1, dtype=own.dtype) + torch.where(kept.squeeze(-1), own, 0)
        count = (counts + kept.squeeze(-1)).to(own.dtype)
        return total / count if own.is_floating_point() or own.is_complex() else total.div(count, rounding_mode="floor")
    least, most = _ends(own.dtype)
    neutral, function = {"prod": (1, torch.prod), "amax": (least, torch.amax), "amin": (most, torch.amin)}[reduce]
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
    first = first if initial is None else torch.full_like(first, initial)
    if reduce in ("max", "min"):
        return _extreme(parts, chosen, first, axis + 1, torch.amax if reduce == "max" else torch.amin)
    parts = torch.cat([parts, first], axis + 1)
    if reduce == "prod":
        return torch.prod(parts, axis + 1)
    total, count = parts.sum(axis + 1), chosen.sum(axis + 1)
    if reduce == "sum":
        return total
    empty = torch.full_like(total, torch.nan) if initial is None else total
    return torch.where(count == 0, empty, total / count.clamp(min=1))


def _unit(size: Tensor, dims: Any) -> Tensor:
    """The largest size, a constant by which squares neither over- nor underflow; 1 of zeros and of what is not finite."""
    return unit_of(size.detach().amax(dims, keepdim=True))


_EXACT = (0, 1, math.inf, -math.inf)


@completes("linalg_vector_norm", NO_THIRD)
def vector_norm(x: Tensor, p: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """The norm, whose derivative by zeros is 0, as in torch."""
    dims = tuple(range(x.ndim)) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim) or tuple(range(x.ndim))
    if not x.ndim:
        return vector_norm(x.reshape(1), p, 0, dtype=dtype).reshape(()) if p not in _EXACT else NotImplemented
    if p in _EXACT or not x.numel():
        return NotImplemented  # torch's are right
    own = accumulated(x if dtype is None else x.to(dtype))
    unit = _unit(own.abs(), dims)
    own, is_0 = own / unit, (own == 0) & ~own.isnan().any(dims, keepdim=True)  # next to NaN there is no slope
    if p == 2:
        powers = (own * own.conj()).real if own.is_complex() else own * own
    else:
        powers = torch.where(is_0, 0 if p > 0 else math.inf, torch.where(is_0, 1, own).abs().pow(p))
    total = powers.sum(dims, keepdim=True)
    is_0 = (total == 0) if p > 0 else total.isinf()
    y = unit * torch.where(is_0, 0, torch.where(is_0, 1, total).pow(1 / p))
    real = torch.empty((), dtype=dtype or x.dtype).abs().dtype
    return (y if keepdim else y.squeeze(dims)).to(real)


@completes("norm.Scalar", NO_THIRD)
def _norm(x: Tensor, p: float = 2) -> Any:
    return vector_norm(x, p)


@completes("norm.ScalarOpt_dtype", NO_THIRD)
def _norm_of_dtype(x: Tensor, p: float | None, *, dtype: torch.dtype) -> Any:
    return vector_norm(x, 2 if p is None else p, dtype=dtype)


@completes("norm.ScalarOpt_dim", NO_THIRD)
@completes("norm.ScalarOpt_dim_dtype", NO_THIRD)
def _norm_of_dims(x: Tensor, p: float | None, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    return vector_norm(x, 2 if p is None else p, dim, keepdim, dtype=dtype)


@completes("dist", NO_THIRD, is_missing=lambda args: args[2:] == (0,))  # torch's gradient by `other` raises
def _dist(x: Tensor, other: Tensor, p: float = 2) -> Any:
    return torch.linalg.vector_norm(x - other, p) if p == 0 else vector_norm(x - other, p)


@completes("renorm", NO_THIRD)
def _renorm(x: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    dims = [d for d in range(x.ndim) if d != dim % x.ndim]
    is_large = torch.linalg.vector_norm(accumulated(x.detach()), p, dims, keepdim=True) > maxnorm
    own = torch.where(is_large, accumulated(x), 1)  # of others, none
    unit = _unit(own.abs(), dims) if x.numel() else 1
    own = own / unit
    y = own * (maxnorm / (torch.linalg.vector_norm(own, p, dims, keepdim=True) + 1e-7 / unit))
    return torch.where(is_large, y.to(x.dtype), x)


def _is_over_no_dims(args: Sequence[Any]) -> bool:
    """Whether dimensions are given, but none: torch's gradient takes the count of all numbers to be 1."""
    return len(args) > 1 and isinstance(args[1], (list, tuple)) and not args[1]


@completes("var.correction", _NO_DIMS, is_missing=_is_over_no_dims)
def _var(x: Tensor, dim: Any = None, **kwargs: Any) -> Any:
    return torch.ops.aten.var.correction(x, None, **kwargs) if _is_over_no_dims((x, dim)) else NotImplemented


@completes("var_mean.correction", _NO_DIMS, is_missing=_is_over_no_dims)
def _var_mean(x: Tensor, dim: Any = None, **kwargs: Any) -> Any:
    return torch.ops.aten.var_mean.correction(x, None, **kwargs) if _is_over_no_dims((x, dim)) else NotImplemented


@completes("std.correction", NO_THIRD, is_missing=_is_over_no_dims)
def _std(x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    """The deviation, whose derivative where all numbers are equal is 0, as in torch."""
    if not x.numel():
        return NotImplemented
    if not x.ndim:
        return _std(x.reshape(1), 0, correction=correction)
    dims = tuple(range(x.ndim)) if not dim and dim != 0 else (dim,) if isinstance(dim, int) else tuple(dim)
    own = accumulated(x)
    own = own - own.mean(dims, keepdim=True)
    unit = _unit(own.abs(), dims)
    own = own / unit
    powers = (own * own.conj()).real if own.is_complex() else own * own
    count = math.prod([x.shape[d] for d in dims]) - (1 if correction is None else correction)
    variance = powers.sum(dims, keepdim=True) / max(count, 0)
    is_0 = variance == 0
    y = unit * torch.where(is_0, 0, torch.where(is_0, 1, variance).sqrt())
    return (y if keepdim else y.squeeze(dims)).to(torch.empty((), dtype=x.dtype).abs().dtype)


@completes("std_mean.correction", NO_THIRD, is_missing=_is_over_no_dims)
def _std_mean(x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    std = _std(x, dim, correction=correction, keepdim=keepdim)
    return std if std is NotImplemented else (std, x.mean(dim, keepdim=keepdim))


def _is_plain_forward() -> bool:
    """Whether torch.autograd.forward_ad is on, where torch writes to exponentials that a derivative of the tangent needs."""
    return forward_mode_is_on() and not transforms_active()


def _exponentials(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """They, next to the largest number, and that number."""
    most = x.detach().amax(dim, keepdim=True)
    most = torch.where(most.isinf(), 0, most)
    return torch.exp(x - most), most


def logsumexp(x: Tensor, dim: int) -> Tensor:
    """torch's, whose tangent has a derivative everywhere."""
    if not _is_plain_forward():
        return torch.logsumexp(x, dim)
    powers, most = _exponentials(x, dim)
    return powers.sum(dim).log() + most.squeeze(dim)


def softmax(x: Tensor, dim: int) -> Tensor:
    """torch's, whose tangent has a derivative everywhere."""
    if not _is_plain_forward():
        return torch.softmax(x, dim)
    powers = _exponentials(x, dim)[0]
    return powers / powers.sum(dim, keepdim=True)


def _complex_logaddexp(a: Tensor, b: Tensor) -> Tensor:
    """Some logarithm of the sum: its imaginary part, which may be off by a turn, has the same derivatives."""
    is_first = a.real >= b.real
    high, low = torch.where(is_first, a, b), torch.where(is_first, b, a)
    is_0 = high.real == -math.inf
    return high + torch.log1p(torch.exp(torch.where(is_0, 0, low - high)))


@completes("logcumsumexp", NAN_EAGER_THIRD, is_missing=lambda args: True)
def _logcumsumexp(x: Tensor, dim: int) -> Any:
    """The running logarithm; torch's first derivative has an error that grows with the size of the numbers."""
    if not x.ndim:
        return x.clone()
    of_two = _complex_logaddexp if x.is_complex() else logaddexp
    y, far = accumulated(x).movedim(dim, -1), 1
    while far < y.shape[-1]:
        y, far = torch.cat([y[..., :far], of_two(y[..., far:], y[..., :-far])], -1), 2 * far
    return y.movedim(-1, dim).to(x.dtype)


@completes("masked_scatter", "forward mode by a source of another shape raises", batched=True)
def _masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Any:
    if not source.numel() or not x.numel():
        return x.clone()
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    mask = mask.expand(shape)
    place = (mask.reshape(-1).long().cumsum(0) - 1).clamp(min=0)
    place = torch.where(mask.reshape(-1), place, 0)
    return torch.where(mask, source.reshape(-1).gather(0, place).reshape(shape), x)
