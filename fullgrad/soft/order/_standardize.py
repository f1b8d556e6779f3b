"""Rows made comparable: a softness that is relative to the spread of a row."""

import torch
from torch import Tensor

# Variance that a constant row is taken to have.
_EPSILON = 1e-6


def standardized(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Rows in (0, 1), with their mean and deviation: :math:`z = 1 / (1 + e^{-h}),\ h = (x - \mu) / \sigma`, where
    :math:`\sigma^2` is the variance plus 1e-6.

    Infinities are where the row ends: they become 0 and 1 and have no part in the statistics.
    """
    infinite = torch.isinf(x)
    finite = torch.where(infinite, 0, x)
    count = (~infinite).sum(-1, keepdim=True).clamp(min=1).to(x.dtype)
    mean = finite.sum(-1, keepdim=True) / count
    r = torch.where(infinite, 0, finite - mean)
    # Squares of large numbers would overflow, and the row silently become a constant.
    unit = r.detach().abs().amax(-1, keepdim=True).clamp(min=1)
    r = r / unit
    deviation = ((r * r).sum(-1, keepdim=True) / count + _EPSILON / (unit * unit)).sqrt()
    z = torch.sigmoid(r / deviation)
    return torch.where(infinite, (x > 0).to(x.dtype), z), mean, deviation * unit


def restored(y: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """The inverse, of numbers that are kept away from 0 and 1."""
    least = max(1e-10, 10 * torch.finfo(y.dtype).eps)
    y = y.clamp(least, 1 - least)
    return torch.log(y / (1 - y)) * deviation + mean
