"""Attention: by blocks of queries that are computed again where a derivative is, so that no numbers of all pairs are kept."""

import math
from typing import Any

import torch
from torch import Tensor

from fullgrad._core.autocast import is_autocast, without_autocast
from fullgrad._core.recomputed import pulled_back
from fullgrad._dispatch import has_data, innermost
from fullgrad.completion._reductions import logsumexp, softmax
from fullgrad.completion._registry import NO_SECOND, WRONG, Whole, accumulated, completes, completes_backward
from fullgrad.functions import checkpoint

# Below so many queries the numbers of all pairs are kept, and a block has about as many queries as numbers of a query.
_WHOLE = 1024


def _safe(scores: Tensor, dim: int = -1) -> Tensor:
    """The softmax, 0 where every score is -inf."""
    nothing = (scores == -torch.inf).all(dim, keepdim=True)
    return torch.where(nothing, 0, softmax(torch.where(nothing, 0, scores), dim))


def _scores(query: Tensor, key: Tensor, mask: Tensor | None, first: int | None) -> Tensor:
    """The logarithms of the weights of some rows; ``first`` is the place of the first one where attention is causal."""
    scores = query @ key.mT
    if first is not None:
        rows, columns = [torch.arange(n, device=query.device) for n in scores.shape[-2:]]
        scores = scores.masked_fill(columns > first + rows.unsqueeze(-1), -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return scores


def _rows(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, first: int | None) -> Tensor:
    scores = _scores(query, key, mask, first)
    weights = softmax(scores, -1) if mask is None else _safe(scores)
    return torch.where(scores == -torch.inf, 0, weights) @ value  # what is no number is none in what sees it alone


def _for_each_head(query: Tensor, v: Tensor) -> Tensor:
    """Keys or values, which groups of heads share, for each head of the query."""
    count = 1 if v.ndim < 3 or query.ndim < 3 or not v.shape[-3] else query.shape[-3] // v.shape[-3]
    return v if count == 1 else v.repeat_interleave(count, -3)


def _by_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    size: int | None = None,
) -> Any:
    if query.is_nested or key.is_nested or value.is_nested or (is_causal and attn_mask is not None):
        return NotImplemented
    if dropout_p:  # torch's own mathematics, since numbers are drawn
        return Whole(
            torch.ops.aten._scaled_dot_product_attention_math(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )[0]
        )
    own_query, own_key, own_value = map(accumulated, (query, key, value))
    own_query = own_query * (1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else scale)
    if enable_gqa:
        own_key, own_value = [_for_each_head(query, v) for v in (own_key, own_value)]
    n = query.shape[-2]
    whole = (lambda y: y) if attn_mask is None or attn_mask.ndim > 1 else Whole  # torch's kernel takes no mask of one dimension
    if size is None or n <= size:
        return whole(_rows(own_query, own_key, own_value, attn_mask, 0 if is_causal else None).to(query.dtype))
    found = []
    for first in range(0, n, size):
        part = attn_mask
        if part is not None and part.ndim > 1 and part.shape[-2] > 1:
            part = part[..., first : first + size, :]
        rows = own_query[..., first : first + size, :]
        found.append(checkpoint(_rows, rows, own_key, own_value, part, first if is_causal else None))
    return whole(torch.cat(found, -2).to(query.dtype))


def _lean(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """The formula where a user calls it, in the precision that autocast gives the arguments. A compiler decides what is kept."""
    device = query.device.type
    if is_autocast(device):
        lower = torch.get_autocast_dtype(device)
        query, key, value = [lowered(v, lower) for v in (query, key, value)]
        args, kwargs = tuple([lowered(v, lower) for v in args]), {k: lowered(v, lower) for k, v in kwargs.items()}
    with without_autocast(device):
        return _by_blocks(query, key, value, *args, size=query_block(query), **kwargs)


def lowered(v: Any, dtype: torch.dtype) -> Any:
    """An argument as autocast gives it to torch's kernel."""
    return v.to(dtype) if isinstance(v, Tensor) and v.is_floating_point() and v.dtype != torch.float64 else v


def query_block(query: Tensor) -> int | None:
    """The number of queries in a block, or None where there are few."""
    return max(query.shape[-1] // 2, 16) if query.shape[-2] > _WHOLE and has_data(innermost(query)) else None


@completes("scaled_dot_product_attention", NO_SECOND, batched=True, lean=_lean, issue=116350)
def _attention(*args: Any, **kwargs: Any) -> Tensor:
    return _by_blocks(*args, **kwargs)


@completes("_scaled_dot_product_flash_attention_for_cpu", NO_SECOND, batched=True, issue=128971)
def _attention_on_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    own_query, own_key, own_value = [accumulated(_for_each_head(query, v)) for v in (query, key, value)]
    scaled = own_query * (1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else scale)
    scores = _scores(scaled, own_key, attn_mask, 0 if is_causal else None)
    weights = torch.where(scores == -torch.inf, 0, _safe(scores))
    return (weights @ own_value).to(query.dtype), logsumexp(scores, -1)


def _backward(g: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *options: Any) -> tuple[Any, ...]:
    """The gradients of query, key, value and mask, by the formula that keeps no numbers of all pairs."""
    dropout, is_causal, scale = options
    if dropout:
        return NotImplemented

    def formula(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        return _by_blocks(query, key, value, mask, is_causal=is_causal, scale=scale, enable_gqa=True, size=query_block(query))

    is_number = mask is not None and mask.dtype != torch.bool
    found = pulled_back(formula, (query, key, value, mask), (0, 1, 2, 3) if is_number else (0, 1, 2), g)
    return *found, *[None] * (not is_number)


@completes_backward("_scaled_dot_product_flash_attention_for_cpu_backward", 4, 5)
def _backward_on_cpu(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, y: Tensor, sums: Tensor, dropout: float, is_causal: bool, **options: Any
) -> Any:
    found = _backward(g, q, k, v, options.get("attn_mask"), dropout, is_causal, options.get("scale"))
    return found if found is NotImplemented else found[:3]


@completes_backward("_scaled_dot_product_flash_attention_backward", 4, 5)
def _backward_of_flash(g: Tensor, q: Tensor, k: Tensor, v: Tensor, *args: Any, scale: float | None = None) -> Any:
    found = _backward(g, q, k, v, None, args[6], args[7], scale)
    return found if found is NotImplemented else found[:3]


@completes_backward("_scaled_dot_product_efficient_attention_backward", 5, 6)
def _backward_of_efficient(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *args: Any, scale: float | None = None
) -> Any:
    dropout, is_needed, is_causal = args[4], args[5], args[6] if len(args) > 6 else False
    found = _backward(g, q, k, v, mask, dropout, is_causal, scale)
    if found is NotImplemented:
        return found
    return [y if needed else None for y, needed in zip(found, is_needed, strict=True)]


@completes_backward("_scaled_dot_product_fused_attention_overrideable_backward", 6, 7)
def _backward_of_others(g: Tensor, q: Tensor, k: Tensor, v: Tensor, *args: Any, scale: float | None = None) -> Any:
    found = _backward(g, q, k, v, args[0], args[8], args[9], scale)
    if found is NotImplemented:
        return found
    return [y if needed else None for y, needed in zip(found, args[1], strict=True)]


@completes_backward("_scaled_dot_product_cudnn_attention_backward", 4, 5)
def _backward_of_cudnn(g: Tensor, q: Tensor, k: Tensor, v: Tensor, *args: Any, scale: float | None = None) -> Any:
    found = _backward(g, q, k, v, args[4], args[9], args[10], scale)
    return found if found is NotImplemented else found[:3]


@completes("_safe_softmax", WRONG)
def _safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    return _safe(x if dtype is None else x.to(dtype), dim)
