"""Losses between predictions and targets."""

import torch
from torch import Tensor

from fullgrad.completion._registry import NO_FORWARD, NO_SECOND, accumulated, completes


def _reduced(loss: Tensor, reduction: int) -> Tensor:
    return (loss, loss.mean(), loss.sum())[reduction] if reduction else loss


@completes("huber_loss", NO_FORWARD)
def _huber_loss(x: Tensor, target: Tensor, reduction: int = 1, delta: float = 1.0) -> Tensor:
    error = x - target
    size = error.abs()
    return _reduced(torch.where(size < delta, 0.5 * error * error, delta * (size - 0.5 * delta)), reduction)


@completes("soft_margin_loss", NO_SECOND)
def _soft_margin_loss(x: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    return _reduced(torch.log1p(torch.exp(accumulated(-target * x))).to(x.dtype), reduction)


def _taken(x: Tensor, target: Tensor) -> Tensor:
    """The element of each row at the target."""
    return x.gather(-1, target.unsqueeze(-1))


@completes("multi_margin_loss", NO_SECOND, batched=True)
def _multi_margin_loss(
    x: Tensor, target: Tensor, p: float = 1, margin: float = 1, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    x = torch.atleast_1d(x)
    target = target.reshape(x.shape[:-1])
    loss = (margin - _taken(x, target) + x).clamp(min=0).pow(p)
    if weight is not None:
        loss = loss * weight[target].unsqueeze(-1)
    others = torch.arange(x.shape[-1], device=x.device) != target.unsqueeze(-1)
    return _reduced(torch.where(others, loss, 0).sum(-1) / x.shape[-1], reduction)


@completes("multilabel_margin_loss_forward", NO_SECOND, batched=True)
def _multilabel_margin_loss(x: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    shape, x, target = target.shape, torch.atleast_1d(x), torch.atleast_1d(target)
    classes = torch.arange(x.shape[-1], device=x.device)
    places = torch.arange(-1, x.shape[-1], device=x.device)
    target = places.gather(0, target.reshape(-1) + 1).reshape(target.shape)  # torch refuses what is out of range
    counts = (target < 0).long().cumsum(-1) == 0  # the labels before the first negative one
    labels = torch.where(counts, target, 0)
    is_label = ((labels.unsqueeze(-1) == classes) & counts.unsqueeze(-1)).any(-2)
    margins = (1 - x.gather(-1, labels).unsqueeze(-1) + x.unsqueeze(-2)).clamp(min=0)
    loss = torch.where(counts.unsqueeze(-1) & ~is_label.unsqueeze(-2), margins, 0).sum((-1, -2)) / x.shape[-1]
    return _reduced(loss, reduction), is_label.to(x.dtype).reshape(shape)
