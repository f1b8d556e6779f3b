"""`native_layer_norm`, `native_group_norm` and `native_batch_norm`, whose statistics have derivatives of their own."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad.completion._registry import NO_SECOND, WRONG, accumulated, completes


def _stored(x: Tensor, like: Tensor) -> Tensor:
    """Statistics in the dtype in which torch returns them."""
    return x.to(like.dtype) if like.device.type == "cpu" else x


def _normalized(x: Tensor, dims: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """The tensor with mean 0 and variance 1, the mean, and the inverse of the standard deviation."""
    mean = x.mean(dims, keepdim=True)
    centered = x - mean
    inverse = torch.rsqrt(centered.square().mean(dims, keepdim=True) + eps)
    return centered * inverse, mean, inverse


@completes("native_layer_norm", WRONG, issue=196700)
def _layer_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, ...]:
    y, mean, inverse = _normalized(accumulated(x), tuple(range(-len(shape), 0)), eps)
    y = y if weight is None else y * weight
    y = y if bias is None else y + bias
    return y.to(x.dtype), _stored(mean, x), _stored(inverse, x)


@completes("native_group_norm", WRONG, issue=198017)
def _group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, channels: int, size: int, groups: int, eps: float
) -> tuple[Tensor, ...]:
    y, mean, inverse = _normalized(accumulated(x).reshape(n, groups, channels // groups * size), (-1,), eps)
    y, shape = y.reshape(x.shape), (1, channels, *[1] * (x.ndim - 2))
    y = y if weight is None else y * weight.reshape(shape)
    y = y if bias is None else y + bias.reshape(shape)
    return y.to(x.dtype), _stored(mean.squeeze(-1), x), _stored(inverse.squeeze(-1), x)


@completes("native_batch_norm", WRONG, issue=196699)
def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    dims, shape = (0, *range(2, x.ndim)), (1, -1, *[1] * (x.ndim - 2))
    own = accumulated(x)
    if training:
        y, mean, inverse = _normalized(own, dims, eps)
        saved = _stored(mean.reshape(-1), x), _stored(inverse.reshape(-1), x)
    else:
        mean, variance = running_mean, running_var
        if mean is None or variance is None:
            raise RuntimeError("Batch norm in evaluation mode needs running statistics.")
        y = (own - mean.reshape(shape)) * torch.rsqrt(variance.reshape(shape) + eps)
        saved = x.new_empty(0), x.new_empty(0)
    y = y if weight is None else y * weight.reshape(shape)
    y = y if bias is None else y + bias.reshape(shape)
    return y.to(x.dtype), *saved


@completes("cudnn_batch_norm", WRONG, issue=196699)
def _cudnn_batch_norm(*args: Any) -> tuple[Tensor, ...]:
    return *_batch_norm(*args), torch.empty(0, dtype=torch.uint8, device=args[0].device)


@completes("_fused_rms_norm", NO_SECOND)
def _fused_rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None) -> tuple[Tensor, Tensor]:
    own = accumulated(x)
    eps = torch.finfo(own.dtype).eps if eps is None else eps
    inverse = torch.rsqrt(own.square().mean(tuple(range(-len(shape), 0)), keepdim=True) + eps)
    y = own * inverse
    return (y if weight is None else y * weight).to(x.dtype), inverse
