"""Losses between predictions and targets."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core.recomputed import pulled_back
from fullgrad._dispatch import active_transforms
from fullgrad.completion._registry import (
    NO_FORWARD,
    NO_SECOND,
    NO_WEIGHTS,
    absolute,
    accumulated,
    completes,
    completes_backward,
    needs_gradient,
    prepares,
    replaces,
    valued,
)


def _reduced(loss: Tensor, reduction: int) -> Tensor:
    return (loss, loss.mean(), loss.sum())[reduction] if reduction else loss


@completes("huber_loss", NO_FORWARD)
def _huber_loss(x: Tensor, target: Tensor, reduction: int = 1, delta: float = 1.0) -> Tensor:
    dtype, error = torch.result_type(x, target), accumulated(x) - accumulated(target)
    size = absolute(error)
    small = torch.where(size < delta, error, 0)  # an infinite error times 0 is no number
    return _reduced(torch.where(size < delta, 0.5 * small * small, delta * (size - 0.5 * delta)), reduction).to(dtype)


@prepares("mse_loss")
@prepares("huber_loss")
@prepares("smooth_l1_loss")
def _in_nested_batches(x: Tensor, target: Tensor, *args: Any) -> tuple[Any, ...]:
    """torch's rule for a batch joins the dimensions of a tensor that has two batches where the other has none."""
    if active_transforms().count("Vmap") > 1:
        x, target = torch.broadcast_tensors(x, target)
        x, target = x + torch.zeros_like(target, dtype=x.dtype), target + torch.zeros_like(x, dtype=target.dtype)
    return x, target, *args


@prepares("smooth_l1_loss_backward")
def _with_nan(g: Tensor, x: Tensor, target: Tensor, *args: Any) -> tuple[Any, ...]:
    """torch's rule for a batch takes the sign of what is no number, which is 0."""
    return torch.where((x - target).isnan(), torch.nan, g), x, target, *args


@completes("soft_margin_loss", NO_SECOND)
def _soft_margin_loss(x: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    score = accumulated(-target * x)
    return _reduced(torch.logaddexp(score, torch.zeros_like(score)), reduction).to(x.dtype)


def _taken(x: Tensor, target: Tensor) -> Tensor:
    """The element of each row at the target."""
    return x.gather(-1, target.unsqueeze(-1))


def _positive(x: Tensor) -> Tensor:
    """The part of a margin that counts: neither 0, which has no slope, nor what is no number."""
    return torch.where(x > 0, x, 0)


@completes("multi_margin_loss", NO_SECOND, batched=True, is_missing=lambda args: needs_gradient(args, 4))
def _multi_margin_loss(
    x: Tensor, target: Tensor, p: float = 1, margin: float = 1, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    x = torch.atleast_1d(x)
    target = target.reshape(x.shape[:-1])
    loss = _positive(margin - _taken(x, target) + x).pow(p)
    counts = torch.arange(x.shape[-1], device=x.device) != target.unsqueeze(-1)
    if weight is not None:
        counts = counts & (loss != 0)  # a weight that is not a number weighs no margin of 0
        loss = loss * weight[target].unsqueeze(-1)
    return _reduced(torch.where(counts, loss, 0).sum(-1) / x.shape[-1], reduction)


@completes_backward("multi_margin_loss_backward")
def _multi_margin_loss_backward(g: Tensor, x: Tensor, *args: Any) -> Tensor:
    return pulled_back(lambda x: _multi_margin_loss(x, *args), (x,), (0,), g)[0]


@completes("multilabel_margin_loss_forward", NO_SECOND, batched=True)
def _multilabel_margin_loss(x: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    shape, x, target = target.shape, torch.atleast_1d(x), torch.atleast_1d(target)
    classes = torch.arange(x.shape[-1], device=x.device)
    places = torch.arange(-1, x.shape[-1], device=x.device)
    target = places.gather(0, target.reshape(-1) + 1).reshape(target.shape)  # torch refuses what is out of range
    counts = (target < 0).long().cumsum(-1) == 0  # the labels before the first negative one
    labels = torch.where(counts, target, 0)
    is_label = ((labels.unsqueeze(-1) == classes) & counts.unsqueeze(-1)).any(-2)
    margins = _positive(1 - x.gather(-1, labels).unsqueeze(-1) + x.unsqueeze(-2))
    loss = torch.where(counts.unsqueeze(-1) & ~is_label.unsqueeze(-2), margins, 0).sum((-1, -2)) / x.shape[-1]
    return _reduced(loss, reduction), is_label.to(x.dtype).reshape(shape)


@completes_backward("multilabel_margin_loss_backward")
def _multilabel_margin_loss_backward(g: Tensor, x: Tensor, target: Tensor, reduction: int, is_target: Tensor) -> Tensor:
    return pulled_back(lambda x: _multilabel_margin_loss(x, target, reduction)[0], (x,), (0,), g)[0]


@replaces("binary_cross_entropy_with_logits")
def _of_logits(
    x: Tensor, target: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    r"""\(-p t \log \sigma(x) - (1 - t) \log \sigma(-x)\), with the value by torch's steps of eager code; those that it has
    under a transform take the difference of two infinities at -inf.
    """
    log, other = torch.nn.functional.logsigmoid(x), torch.nn.functional.logsigmoid(-x)
    if pos_weight is None:
        y, scale = -other - target * x, 1
    else:
        y, scale = -other * (1 - target) - log * (pos_weight * target), (pos_weight - 1) * target + 1
    y = valued(y, ((1 - target) * x - log * scale).detach())
    return _reduced(y if weight is None else y * weight, reduction)


def _of_labels(weight: Tensor, target: Tensor, kept: Tensor) -> Tensor:
    """The weight of each label, 0 of those that are ignored; a label without a dimension is no index in Python."""
    index = torch.where(kept, target, 0)
    return torch.where(kept, weight.index_select(0, index.reshape(-1)).reshape(index.shape), 0)


@replaces("cross_entropy_loss")
def _smoothed_cross_entropy(
    x: Tensor, target: Tensor, weight: Any = None, reduction: int = 1, ignored: Any = -100, smoothing: float = 0.0
) -> Any:
    """torch's steps for labels, none of them in place: logarithms that all samples share take no mask of each."""
    if not 0 < smoothing <= 1 or x.shape == target.shape or "Vmap" not in active_transforms():
        return NotImplemented
    dim = min(x.ndim - 1, 1)
    y = torch.nn.functional.log_softmax(x, dim)
    own = torch.ops.aten.nll_loss_nd(y, target, weight, reduction, ignored)
    kept = target != ignored
    shares = kept if weight is None else _of_labels(weight, target, kept)
    every = y if weight is None else y * weight.reshape(-1, *[1] * (x.ndim - 1 - dim))
    loss = torch.where(kept, -every.sum(dim), 0)
    loss = (loss.sum() / shares.sum() if reduction == 1 else loss.sum()) if reduction else loss
    scaled = torch.ops.aten.mul.Scalar  # whose tangent has the dtype of a number of each sample
    return scaled(loss, smoothing / x.shape[dim]) + scaled(own, 1 - smoothing)


# --- Weights: factors of torch's own losses without weights -------------------------------------------------------------------


def _completes_nll_loss(name: str) -> None:
    op = getattr(torch.ops.aten, name).default

    @completes(name, NO_WEIGHTS, is_missing=lambda args: needs_gradient(args, 2))
    def loss(x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: int) -> Any:
        if weight is None:
            return NotImplemented
        each, kept = op(x, target, None, 0, ignored)[0], target != ignored
        weights = _of_labels(accumulated(weight), target, kept)
        loss, total = torch.where(kept, each * weights, 0), weights.sum() if reduction else weights.new_zeros(())
        if reduction:
            loss = loss.sum() / total if reduction == 1 else loss.sum()
        return loss.to(x.dtype), total.to(x.dtype)


_completes_nll_loss("nll_loss_forward")
_completes_nll_loss("nll_loss2d_forward")


@completes("binary_cross_entropy", NO_WEIGHTS, is_missing=lambda args: needs_gradient(args, 2))
def _binary_cross_entropy(x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1) -> Any:
    if weight is None:
        return NotImplemented
    each = accumulated(torch.ops.aten.binary_cross_entropy.default(x, target, None, 0))
    return _reduced(each * weight, reduction).to(x.dtype)


@completes("binary_cross_entropy_backward", "a batch of directions raises", is_prepared=True)
def _of_each_direction(g: Tensor, x: Tensor, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """torch's derivative by the input, which it writes to, has a batch where the input has one."""
    return g, x + torch.zeros_like(g, dtype=x.dtype) if "Vmap" in active_transforms() else x, *args
