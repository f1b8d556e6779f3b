"""Connectionist temporal classification, by the forward algorithm in logarithms."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._core.recomputed import pulled_back
from fullgrad._dispatch import innermost
from fullgrad.completion._reductions import logsumexp
from fullgrad.completion._registry import NO_FORWARD, Whole, accumulated, completes, completes_backward, replaces

_LEAST = -1e30  # the logarithm of 0, with derivatives of 0


def _lengths(given: Tensor | Sequence[int], device: torch.device) -> tuple[Tensor, int]:
    """They, and the largest one of all samples of a batch."""
    lengths = given if isinstance(given, Tensor) else torch.tensor(given, dtype=torch.long)
    every = innermost(lengths)
    return lengths.reshape(-1).to(device), int(every.max()) if every.numel() else 0


def _states(targets: Tensor, lengths: Tensor, most: int, blank: int) -> Tensor:
    """The labels of each sample with blanks around them, and blanks to the common length."""
    place = torch.arange(most, device=targets.device)
    if targets.ndim == 1:
        starts = (lengths.cumsum(0) - lengths).unsqueeze(-1)
        rows = targets.take((starts + place).clamp(max=targets.shape[0] - 1)) if most else targets.expand(lengths.shape[0], 0)
    else:
        rows = targets[:, :most]
    labels = torch.where(place < lengths.unsqueeze(-1), rows, blank)
    spaced = torch.stack([torch.full_like(labels, blank), labels], -1).flatten(-2)
    return torch.cat([spaced, torch.full_like(spaced[:, :1] if most else labels.new_empty(labels.shape[0], 1), blank)], -1)


def _loss(
    x: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, blank: int = 0, zero_infinity: bool = False
) -> Tensor:
    r"""The losses :math:`-\log p(\text{labels})` of the samples.

    torch's gradient is that of logarithms of shares, which sum to 1: it has that of the sum of the shares of all steps on top.
    """
    device = x.device
    (steps, most_steps), (lengths, most) = _lengths(input_lengths, device), _lengths(target_lengths, device)
    ends = steps.unsqueeze(-1)
    counts = torch.arange(x.shape[0], device=device).unsqueeze(-1) < steps
    y = accumulated(x)
    y = torch.where(counts.unsqueeze(-1) & (y > _LEAST), y, _LEAST)
    states = _states(targets.long(), lengths, most, blank)
    count = states.shape[1]
    place = torch.arange(count, device=device)
    before = torch.cat([states[:, :2], states[:, :-2]], -1) if count > 2 else states
    can_skip = (place >= 2) & (states != blank) & (states != before)

    def moved(a: Tensor, by: int) -> Tensor:
        return (
            torch.cat([torch.full_like(a[:, :by], _LEAST), a[:, : a.shape[1] - by]], -1) if by <= a.shape[1] else a * 0 + _LEAST
        )

    scores = y.gather(-1, states.unsqueeze(0).expand(y.shape[0], -1, -1))
    alpha = torch.where(place < 2, scores[0], _LEAST)
    for t in range(1, most_steps):
        ways = torch.stack([alpha, moved(alpha, 1), torch.where(can_skip, moved(alpha, 2), _LEAST)])
        alpha = torch.where(t < ends, logsumexp(ways, 0).clamp(min=_LEAST) + scores[t], alpha)
    last = 2 * lengths.unsqueeze(-1)
    is_last = (place == last) | (place == last - 1)
    likelihood = logsumexp(torch.where(is_last, alpha, _LEAST), -1)
    is_empty = steps == 0  # without a step nothing depends on the logarithms, as in torch
    is_impossible = (likelihood < _LEAST / 2) & ~is_empty
    shares = y.exp().sum((0, -1))
    factor = torch.where(is_impossible, 0.0 if zero_infinity else torch.nan, 1.0).to(y.dtype)
    return torch.where(is_empty, 0, factor * (shares - shares.detach() - likelihood)).to(x.dtype)


@replaces("ctc_loss.IntList")
def _with_tensors(x: Tensor, targets: Tensor, steps: Sequence[int], lengths: Sequence[int], *args: Any) -> Tensor:
    """Lengths as tensors: torch reads the memory of the logarithms, which no level of transforms has, for those of Python."""
    return torch.ops.aten.ctc_loss.Tensor(x, targets, torch.tensor(steps), torch.tensor(lengths), *args)


@completes("_ctc_loss", NO_FORWARD)
@completes("_ctc_loss.Tensor", NO_FORWARD)
def _ctc_loss(x: Tensor, *args: Any) -> Any:
    is_batched = any(isinstance(v, Tensor) and innermost(v).ndim != v.ndim for v in args[1:3])
    if is_batched:  # torch computes one sample after the other, whose tables differ in size
        _check(x, *args[:3])
    loss = _loss(x, *args)
    found = loss, torch.zeros_like(loss).detach()
    return Whole(found) if is_batched else found


def _check(x: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor) -> None:
    """Raise where lengths of a batch do not fit the tensors, as torch does."""
    for name, given, most in (
        ("input_lengths", input_lengths, x.shape[0]),
        ("target_lengths", target_lengths, targets.shape[-1]),
    ):
        every = innermost(given)
        if every.numel() and not 0 <= int(every.min()) <= int(every.max()) <= most:
            raise RuntimeError(f"ctc_loss: `{name}` must be from 0 to {most}, got {int(every.min())} to {int(every.max())}.")
    if targets.ndim == 1 and bool((innermost(target_lengths.sum()) != targets.shape[0]).any()):
        raise RuntimeError(f"ctc_loss: `target_lengths` must sum to {targets.shape[0]}, the size of `targets`, in each sample.")


@completes_backward("_ctc_loss_backward", 5, 6)
@completes_backward("_ctc_loss_backward.Tensor", 5, 6)
def _ctc_loss_backward(
    g: Tensor,
    x: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    losses: Tensor,
    alpha: Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> Tensor:
    return pulled_back(lambda x: _loss(x, targets, input_lengths, target_lengths, blank, zero_infinity), (x,), (0,), g)[0]
