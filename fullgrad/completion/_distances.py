"""Distances of all pairs of rows."""

import math

import torch
from torch import Tensor

from fullgrad._core.recomputed import pulled_back
from fullgrad.completion._reductions import vector_norm
from fullgrad.completion._registry import NO_SECOND, absolute, completes, completes_backward, valued, without_slope


def _largest(size: Tensor, skips_nan: bool) -> Tensor:
    """The largest number, whose slope is 1 by each that is as large; one that is NaN is skipped, or all are, as in torch."""
    most = torch.where(size.isnan(), 0, size.detach()).amax(-1) if skips_nan else size.detach().amax(-1)
    most_of = most.unsqueeze(-1)
    lost = size.isnan() if skips_nan else most_of.isnan()
    return valued((torch.where(size == most_of, size, 0) + without_slope(size, lost)).sum(-1), most)


def _norm(d: Tensor, p: float, skips_nan: bool = False) -> Tensor:
    """The norm of vectors, whose derivative at 0 is 0."""
    size = absolute(d)
    if p == 0:
        return torch.where(d.isnan(), d.detach(), (d != 0).to(d.dtype)).sum(-1)
    if p == 1:
        return size.sum(-1)
    if p == math.inf:
        return _largest(size, skips_nan) if size.shape[-1] else size.sum(-1)
    return vector_norm(d, p, -1) if d.numel() else size.sum(-1)


@completes("_cdist_forward", NO_SECOND, issue=83510)
def _cdist(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor:
    return _norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p, skips_nan=True)


@completes_backward("_cdist_backward", 4)
def _cdist_backward(g: Tensor, x1: Tensor, x2: Tensor, p: float, distance: Tensor) -> Tensor:
    batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])  # torch's gradient is that of each
    x1 = x1.expand(*batch, *x1.shape[-2:])
    return pulled_back(lambda x1, x2: _cdist(x1, x2, p, None), (x1, x2), (0,), g)[0]


@completes("_euclidean_dist", NO_SECOND)
def _euclidean_dist(x1: Tensor, x2: Tensor) -> Tensor:
    return _norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), 2)


@completes("_pdist_forward", NO_SECOND, batched=True)
def _pdist(x: Tensor, p: float = 2) -> Tensor:
    i, j = torch.triu_indices(x.shape[0], x.shape[0], 1, device=x.device)
    return _norm(x[i] - x[j], p)


@completes_backward("_pdist_backward", 3)
def _pdist_backward(g: Tensor, x: Tensor, p: float, distance: Tensor) -> Tensor:
    return pulled_back(lambda x: _pdist(x, p), (x,), (0,), g)[0]
