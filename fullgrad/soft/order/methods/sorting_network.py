"""The bitonic sorting network, each of its comparisons soft.

Source: Petersen et al., https://arxiv.org/abs/2105.04019.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fullgrad.soft._sigmoidal import Sigmoidal
from fullgrad.soft.order._rows import Rows
from fullgrad.soft.order.methods._method import Method


class SortingNetwork(Method):
    """Rows are padded to a power of two; each comparison exchanges its two elements softly."""

    values_are_weighted_sums = negation_reverses = False

    def weights(self, rows: Rows, places: Tensor | None = None) -> Tensor:
        v = _padded(rows)
        p = torch.eye(v.shape[-1], dtype=v.dtype, device=v.device).expand(*v.shape[:-1], -1, -1)
        p = _sorted(rows.mode, v.unsqueeze(-1), p)[1][..., : rows.n, : rows.n]
        p = p / p.sum(-1, keepdim=True).clamp(min=1e-10)
        return p if places is None else p.gather(-2, places.unsqueeze(-1).expand(*p.shape[:-2], places.shape[-1], rows.n))

    def values(self, rows: Rows) -> Tensor:
        v = _sorted(rows.mode, _padded(rows).unsqueeze(-1))[0].squeeze(-1)
        return rows.restore(v[..., : rows.n] * rows.softness)


def _padded(rows: Rows) -> Tensor:
    """The rows over the softness, padded with a number beyond their largest element."""
    size = max(2, 1 << (int(rows.n) - 1).bit_length())
    if rows.mean is None:
        end = rows.z.amax(-1, keepdim=True)
        end = end + (end.detach().abs() * (16 * torch.finfo(end.dtype).eps)).clamp(min=1)  # which large numbers do not absorb
    else:
        end = torch.ones_like(rows.z[..., :1])
    return torch.cat((rows.u, (end / rows.softness).expand(*rows.u.shape[:-1], size - rows.n)), -1)


def _sorted(mode: str, *matrices: Tensor) -> Sequence[Tensor]:
    """Matrices (…, n, m) after exchanging the rows of all until the first matrix, which has one column, ascends."""
    v = matrices[0]
    size = int(v.shape[-2])  # a tensor to torch.jit.trace
    for phase in range(size.bit_length() - 1):
        for step in range(phase, -1, -1):
            # The distance between partners, and for each group 1 where it ascends and -1 where it descends.
            d = 1 << step
            first = torch.arange(0, size, 2 * d, device=v.device)
            sign = (1 - 2 * ((first >> (phase + 1)) & 1)).to(v.dtype).unsqueeze(-1)
            low, high = matrices[0].squeeze(-1).unflatten(-1, (-1, 2, d)).unbind(-2)
            c = Sigmoidal.apply((low - high) * sign, 1.0, mode, False).unsqueeze(-1)
            matrices = tuple([_exchanged(m, c, d) for m in matrices])
    return matrices


def _exchanged(rows: Tensor, c: Tensor, d: int) -> Tensor:
    """Rows (…, n, m) whose partners have changed places to the degree c (…, groups, d, 1)."""
    low, high = rows.unflatten(-2, (-1, 2, d)).unbind(-3)
    moved = (high - low) * c
    return torch.stack((low + moved, high - moved), -3).flatten(-4, -2)
