"""The bitonic sorting network, each of its comparisons soft."""

from collections.abc import Iterator

import torch
from torch import Tensor

from fullgrad.soft._sigmoidal import Sigmoidal


def values(u: Tensor, pad: Tensor, mode: str) -> Tensor:
    """Rows of softness 1 in ascending order. ``pad``, of shape (…, 1), fills them up to a power of two."""
    v = _padded(u, pad)
    for d, sign in _layers(v):
        c = _crossing(v, d, sign, mode)
        v = _exchanged(v.unsqueeze(-1), c.unsqueeze(-1), d).squeeze(-1)
    return v[..., : u.shape[-1]]


def weights(u: Tensor, pad: Tensor, mode: str) -> Tensor:
    """How much of each element is in each place, in ascending order."""
    n = u.shape[-1]
    v = _padded(u, pad)
    p = torch.eye(v.shape[-1], dtype=u.dtype, device=u.device).expand(*v.shape[:-1], -1, -1)
    for d, sign in _layers(v):
        c = _crossing(v, d, sign, mode).unsqueeze(-1)
        v, p = _exchanged(v.unsqueeze(-1), c, d).squeeze(-1), _exchanged(p, c, d)
    p = p[..., :n, :n]
    return p / p.sum(-1, keepdim=True).clamp(min=1e-10)


def _padded(u: Tensor, pad: Tensor) -> Tensor:
    size = max(2, 1 << (u.shape[-1] - 1).bit_length())
    return torch.cat((u, pad.expand(*u.shape[:-1], size - u.shape[-1])), -1)


def _layers(v: Tensor) -> Iterator[tuple[int, Tensor]]:
    """The distance between partners, and for each group of them 1 where it ascends and -1 where it descends."""
    size = v.shape[-1]
    for phase in range(size.bit_length() - 1):
        for step in range(phase, -1, -1):
            d = 1 << step
            first = torch.arange(0, size, 2 * d, device=v.device)
            yield d, (1 - 2 * ((first >> (phase + 1)) & 1)).to(v.dtype).unsqueeze(-1)


def _crossing(v: Tensor, d: int, sign: Tensor, mode: str) -> Tensor:
    """How far partners change places, in (…, groups, d)."""
    low, high = v.unflatten(-1, (-1, 2, d)).unbind(-2)
    return Sigmoidal.apply((low - high) * sign, 1.0, mode, False)


def _exchanged(rows: Tensor, c: Tensor, d: int) -> Tensor:
    """Rows (…, n, m), of which partners change places as far as c (…, groups, d, 1) says."""
    low, high = rows.unflatten(-2, (-1, 2, d)).unbind(-3)
    moved = (high - low) * c
    return torch.stack((low + moved, high - moved), -3).flatten(-4, -2)
