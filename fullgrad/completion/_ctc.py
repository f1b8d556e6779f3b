"""Connectionist temporal classification, by the forward algorithm in logarithms."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._core.recomputed import pulled_back
from fullgrad._dispatch import innermost
from fullgrad.completion._reductions import logsumexp
from fullgrad.completion._registry import NO_FORWARD, accumulated, completes, completes_backward, replaces

_LEAST = -1e30  # the logarithm of 0, with derivatives of 0


def _lengths(given: Tensor | Sequence[int]) -> list[int]:
    return innermost(given).reshape(-1).tolist() if isinstance(given, Tensor) else list(given)


def _states(targets: Tensor, lengths: Sequence[int], blank: int) -> Tensor:
    """The labels of each sample with blanks around them, and blanks to the common length."""
    if targets.ndim == 1:
        parts = targets.split([*lengths, targets.shape[0] - sum(lengths)])[: len(lengths)]
    else:
        parts = [row[:n] for row, n in zip(targets.unbind(0), lengths, strict=True)]
    most = max(lengths, default=0)
    rows = [torch.cat([p, torch.full((most - p.shape[0],), blank, dtype=p.dtype, device=p.device)]) for p in parts]
    labels = torch.stack(rows)
    spaced = torch.stack([torch.full_like(labels, blank), labels], -1).flatten(-2)
    return torch.cat([spaced, torch.full((len(rows), 1), blank, dtype=labels.dtype, device=labels.device)], -1)


def _loss(
    x: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, blank: int = 0, zero_infinity: bool = False
) -> Tensor:
    r"""The losses :math:`-\log p(\text{labels})` of the samples.

    torch's gradient is that of logarithms of shares, which sum to 1: it has the sum of the shares of all steps on top.
    """
    steps, targets_ = _lengths(input_lengths), _lengths(target_lengths)
    ends = torch.tensor(steps, device=x.device).unsqueeze(-1)
    counts = torch.arange(x.shape[0], device=x.device).unsqueeze(-1) < ends.squeeze(-1)
    y = accumulated(x)
    y = torch.where(counts.unsqueeze(-1) & (y > _LEAST), y, _LEAST)
    states = _states(targets.long(), targets_, blank)
    count, device = states.shape[1], x.device
    place = torch.arange(count, device=device)
    before = torch.cat([states[:, :2], states[:, :-2]], -1) if count > 2 else states
    can_skip = (place >= 2) & (states != blank) & (states != before)

    def moved(a: Tensor, by: int) -> Tensor:
        return (
            torch.cat([torch.full_like(a[:, :by], _LEAST), a[:, : a.shape[1] - by]], -1) if by <= a.shape[1] else a * 0 + _LEAST
        )

    scores = y.gather(-1, states.unsqueeze(0).expand(y.shape[0], -1, -1))
    alpha = torch.where(place < 2, scores[0], _LEAST)
    for t in range(1, max(steps, default=0)):
        ways = torch.stack([alpha, moved(alpha, 1), torch.where(can_skip, moved(alpha, 2), _LEAST)])
        alpha = torch.where(t < ends, logsumexp(ways, 0).clamp(min=_LEAST) + scores[t], alpha)
    last = 2 * torch.tensor(targets_, device=device).unsqueeze(-1)
    is_last = (place == last) | (place == last - 1)
    likelihood = logsumexp(torch.where(is_last, alpha, _LEAST), -1)
    is_empty = ends.squeeze(-1) == 0  # without a step nothing depends on the logarithms, as in torch
    is_impossible = (likelihood < _LEAST / 2) & ~is_empty
    shares = y.exp().sum((0, -1))
    factor = torch.where(is_impossible, 0.0 if zero_infinity else torch.nan, 1.0).to(y.dtype)
    return torch.where(is_empty, 0, factor * (shares - likelihood)).to(x.dtype)


@replaces("ctc_loss.IntList")
def _with_tensors(x: Tensor, targets: Tensor, steps: Sequence[int], lengths: Sequence[int], *args: Any) -> Tensor:
    """Lengths as tensors: torch reads the memory of the logarithms, which no level of transforms has, for those of Python."""
    return torch.ops.aten.ctc_loss.Tensor(x, targets, torch.tensor(steps), torch.tensor(lengths), *args)


@completes("_ctc_loss", NO_FORWARD)
@completes("_ctc_loss.Tensor", NO_FORWARD)
def _ctc_loss(x: Tensor, *args: Any) -> Any:
    if any(isinstance(v, Tensor) and innermost(v).ndim != v.ndim for v in args[1:3]):
        return NotImplemented  # lengths of each sample of a batch
    loss = _loss(x, *args)
    return loss, torch.zeros_like(loss).detach()


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
