"""The fused attention and encoder layer, which torch's modules call in evaluation where no parameter needs a gradient."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fullgrad.completion._reductions import softmax
from fullgrad.completion._registry import NO_DERIVATIVE, accumulated, completes


@completes("_native_multi_head_attention", NO_DERIVATIVE, batched=True)
def _multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:
    if query.is_nested:
        return NotImplemented
    dtype, weights, biases = query.dtype, accumulated(qkv_weight).chunk(3), accumulated(qkv_bias).chunk(3)
    given = [accumulated(x) @ w.mT + b for x, w, b in zip((query, key, value), weights, biases, strict=True)]
    q, k, v = [x.unflatten(-1, (num_head, -1)).transpose(1, 2) for x in given]
    scores = (q / math.sqrt(q.shape[-1])) @ k.mT
    if mask is not None:  # of the keys of each sample, or of all pairs
        mask = mask[:, None, None] if mask_type == 1 else mask
        scores = scores.masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    shares = softmax(scores, -1)
    y = (shares @ v).transpose(1, 2).flatten(-2) @ accumulated(proj_weight).mT + proj_bias
    shares = shares.mean(1) if average_attn_weights else shares
    return y.to(dtype), shares.to(dtype) if need_weights else query.new_empty(0)


@completes("_transformer_encoder_layer_fwd", NO_DERIVATIVE, batched=True)
def _encoder_layer(
    x: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Any:
    if x.is_nested:
        return NotImplemented

    def norm_1(x: Tensor) -> Tensor:
        return functional.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: Tensor) -> Tensor:
        return functional.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    def attention(x: Tensor) -> Tensor:
        projections = qkv_weight, qkv_bias, proj_weight, proj_bias
        return _multi_head_attention(x, x, x, embed_dim, num_heads, *projections, mask, False, True, mask_type)[0]

    def feed_forward(x: Tensor) -> Tensor:
        x = x @ ffn_weight_1.mT + ffn_bias_1
        return (functional.gelu(x) if use_gelu else torch.relu(x)) @ ffn_weight_2.mT + ffn_bias_2

    if norm_first:
        x = x + attention(norm_1(x))
        return x + feed_forward(norm_2(x))
    x = norm_1(x + attention(x))
    return norm_2(x + feed_forward(x))
