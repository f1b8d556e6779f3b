"""`native_layer_norm`, `native_group_norm` and `native_batch_norm`, whose statistics have derivatives of their own."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._core.recomputed import pulled_back
from fullgrad._dispatch import is_tracing
from fullgrad.completion._registry import NO_SECOND, WRONG, accumulated, completes, completes_backward, needs_gradient, unit_of


def _stored(x: Tensor, like: Tensor) -> Tensor:
    """Statistics in the dtype in which torch returns them."""
    return x.to(like.dtype) if like.device.type == "cpu" else x


def _normalized(x: Tensor, dims: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """The tensor with mean 0 and variance 1, the mean, and the inverse of the standard deviation."""
    mean = x.mean(dims, keepdim=True)
    y, inverse = _of_unit_size(x - mean, dims, eps)
    return y, mean, inverse


def _of_unit_size(x: Tensor, dims: tuple[int, ...], eps: Any) -> tuple[Tensor, Tensor]:
    """The tensor with squares of mean 1, and the inverse of its size. It is first divided by a constant, by which neither squares
    nor slopes over- or underflow; not in code that is traced, where torch has no tangent of a tangent of such a quotient.
    """
    if is_tracing() or not x.numel():
        inverse = torch.rsqrt(x.square().mean(dims, keepdim=True) + eps)
        return x * inverse, inverse
    least = torch.as_tensor(eps, dtype=x.dtype, device=x.device).clamp(min=0).sqrt()
    unit = unit_of(torch.maximum(x.detach().abs().amax(dims, keepdim=True), least))
    x = x / unit
    inverse = torch.rsqrt(x.square().mean(dims, keepdim=True) + eps / unit / unit)
    return x * inverse, inverse / unit


def _has_bias_alone(weight: int) -> Callable[[Sequence[Any]], bool]:
    """Whether a norm has a bias that is differentiated, and no weight, by the place of that: torch fails where it has none."""
    return lambda args: args[weight] is None and needs_gradient(args, weight + 1)


@completes("native_layer_norm", WRONG, issue=196700, is_missing=_has_bias_alone(2), keeps_first=True)
def _layer_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, ...]:
    y, mean, inverse = _normalized(accumulated(x), tuple(range(-len(shape), 0)), eps)
    y = y if weight is None else y * weight
    y = y if bias is None else y + bias
    return y.to(x.dtype), _stored(mean, x), _stored(inverse, x)


@completes_backward("native_layer_norm_backward", 3, 4, has_first=True)
def _layer_norm_backward(
    g: Tensor,
    x: Tensor,
    shape: Sequence[int],
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    is_needed: Sequence[bool],
) -> list[Tensor | None]:
    own, dims = accumulated(x.detach()), tuple(range(-len(shape), 0))
    variance = (own - own.mean(dims, keepdim=True)).square().mean(dims, keepdim=True)
    eps: Any = accumulated(inverse.detach()).pow(-2) - variance  # which torch does not keep

    def formula(x: Tensor, weight: Tensor | None) -> Tensor:
        return _layer_norm(x, shape, weight, None, eps)[0]

    return _with_bias(formula, g, x, weight, tuple(range(x.ndim - len(shape))), is_needed)


def _with_bias(
    formula: Any, g: Tensor, x: Tensor, weight: Tensor | None, dims: tuple[int, ...], is_needed: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients of a norm's input, weight and bias."""
    found: tuple[Any, ...] = pulled_back(formula, (x, weight), (0,) if weight is None else (0, 1), g)
    of_bias = accumulated(g).sum(dims).to(g.dtype) if dims else g
    every = [found[0], found[1] if weight is not None else None, of_bias]
    return [v if needed else None for v, needed in zip(every, is_needed, strict=True)]


@completes("native_group_norm", WRONG, issue=198017, is_missing=_has_bias_alone(1))
def _group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, channels: int, size: int, groups: int, eps: float
) -> tuple[Tensor, ...]:
    y, mean, inverse = _normalized(accumulated(x).reshape(n, groups, channels // groups * size), (-1,), eps)
    y, shape = y.reshape(x.shape), (1, channels, *[1] * (x.ndim - 2))
    y = y if weight is None else y * weight.reshape(shape)
    y = y if bias is None else y + bias.reshape(shape)
    return y.to(x.dtype), _stored(mean.squeeze(-1), x), _stored(inverse.squeeze(-1), x)


@completes("native_batch_norm", WRONG, issue=196699, is_missing=_has_bias_alone(1), keeps_first=True)
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


@completes_backward("native_batch_norm_backward", 5, 6, has_first=True)
def _batch_norm_backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    mean: Tensor | None,
    inverse: Tensor | None,
    train: bool,
    eps: float,
    is_needed: Sequence[bool],
) -> list[Tensor | None]:
    def formula(x: Tensor, weight: Tensor | None) -> Tensor:
        return _batch_norm(x, weight, None, running_mean, running_var, train, 0.0, eps)[0]

    return _with_bias(formula, g, x, weight, (0, *range(2, x.ndim)), is_needed)


@completes_backward("batch_norm_backward", 5, 6)
def _batch_norm_backward_of_graphs(*args: Any) -> list[Tensor | None]:
    return _batch_norm_backward(*args[:-1])  # the last one is memory of cuDNN


@completes("_native_batch_norm_legit", WRONG, is_missing=_has_bias_alone(1), keeps_first=True)
def _batch_norm_of_graphs(*args: Any) -> tuple[Tensor, ...]:
    return _batch_norm(*args)


@completes("_native_batch_norm_legit.no_stats", WRONG, is_missing=_has_bias_alone(1), keeps_first=True)
def _batch_norm_without_statistics(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> tuple[Tensor, ...]:
    return _batch_norm(x, weight, bias, None, None, training, momentum, eps)


@completes("_batch_norm_with_update", WRONG, is_missing=_has_bias_alone(1), keeps_first=True)
def _batch_norm_with_update(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, momentum: float, eps: float
) -> tuple[Tensor, ...]:
    found = _batch_norm(x, weight, bias, mean, variance, True, momentum, eps)
    return *found, torch.empty(0, dtype=torch.uint8, device=x.device)


@completes("cudnn_batch_norm", WRONG, issue=196699, is_missing=_has_bias_alone(1), keeps_first=True)
def _cudnn_batch_norm(*args: Any) -> tuple[Tensor, ...]:
    return *_batch_norm(*args), torch.empty(0, dtype=torch.uint8, device=args[0].device)


@completes("_fused_rms_norm", NO_SECOND)
def _fused_rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None) -> tuple[Tensor, Tensor]:
    own = accumulated(x)
    eps = torch.finfo(own.dtype).eps if eps is None else eps
    y, inverse = _of_unit_size(own, tuple(range(-len(shape), 0)), eps)
    return (y if weight is None else y * weight).to(x.dtype), inverse
