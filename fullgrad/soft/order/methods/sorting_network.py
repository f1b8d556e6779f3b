"""The bitonic sorting network, each of its comparisons soft; the values, the ranks and the weights of a place in O(n log² n).

Source: Petersen et al., https://arxiv.org/abs/2105.04019.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fullgrad.soft._sigmoidal import Sigmoidal
from fullgrad.soft.order._rows import Rows
from fullgrad.soft.order.methods._method import Method

# How far partners change places, (…, 1, groups, d), and the distance d between them.
Exchange = tuple[Tensor, int]


class SortingNetwork(Method):
    r"""Rows are padded to a power of two; each comparison exchanges its two elements softly.

    The network is a product of exchanges, :math:`P = E_m \cdots E_1`. Each is symmetric, so :math:`P^T g = E_1 \cdots E_m\, g`:
    one vector for the weights of one place, two for the ranks.
    """

    values_are_weighted_sums = negation_reverses = False

    def weights(self, rows: Rows, places: Tensor | None = None) -> Tensor:
        v = _padded(rows)
        numbers = torch.arange(v.shape[-1], device=v.device)
        places = numbers[: rows.n] if places is None else places
        p = _moved((places.unsqueeze(-1) == numbers).to(v.dtype), _exchanges(rows.mode, v)[::-1])[..., : rows.n]
        return p / p.sum(-1, keepdim=True).clamp(min=1e-10)

    def values(self, rows: Rows) -> Tensor:
        v = _padded(rows)
        for phase, step in _steps(v):
            v = _exchanged(v, _comparison(rows.mode, v, phase, step))
        return rows.restore(v.squeeze(-2)[..., : rows.n] * rows.softness)

    def ranks(self, rows: Rows) -> Tensor:
        v = _padded(rows)
        exchanges, numbers = _exchanges(rows.mode, v), rows.numbers(v)
        own = torch.nn.functional.pad(torch.ones_like(numbers), (0, v.shape[-1] - rows.n))
        # Each place, and 1, over the weight of the row's own elements in it.
        mass = _moved(own.unsqueeze(0), exchanges)[..., : rows.n].clamp(min=1e-10)
        g = torch.stack((numbers, torch.ones_like(numbers))) / mass
        g = _moved(torch.nn.functional.pad(g, (0, v.shape[-1] - rows.n)), exchanges[::-1])[..., : rows.n]
        return g[..., 0, :] / g[..., 1, :].clamp(min=1e-10)


def _padded(rows: Rows) -> Tensor:
    """The rows (…, 1, n) over the softness, padded with a number beyond their largest element."""
    size = max(2, 1 << (int(rows.n) - 1).bit_length())
    if rows.mean is None:
        end = rows.z.amax(-1, keepdim=True)
        end = end + (end.detach().abs() * (16 * torch.finfo(end.dtype).eps)).clamp(min=1)  # which large numbers do not absorb
    else:
        end = torch.ones_like(rows.z[..., :1])
    return torch.cat((rows.u, (end / rows.softness).expand(*rows.u.shape[:-1], size - rows.n)), -1).unsqueeze(-2)


def _steps(v: Tensor) -> Sequence[tuple[int, int]]:
    """The phases of the network that sorts a row, and the steps of each."""
    size = int(v.shape[-1])  # a tensor to torch.jit.trace
    return [(phase, step) for phase in range(size.bit_length() - 1) for step in range(phase, -1, -1)]


def _comparison(mode: str, v: Tensor, phase: int, step: int) -> Exchange:
    """The exchange that brings the partners of a step in order."""
    # The distance between partners, and for each group 1 where it ascends and -1 where it descends.
    d = 1 << step
    first = torch.arange(0, v.shape[-1], 2 * d, device=v.device)
    sign = (1 - 2 * ((first >> (phase + 1)) & 1)).to(v.dtype).unsqueeze(-1)
    low, high = v.unflatten(-1, (-1, 2, d)).unbind(-2)
    return Sigmoidal.apply((low - high) * sign, 1.0, mode, False), d


def _exchanges(mode: str, v: Tensor) -> Sequence[Exchange]:
    """All exchanges that sort a row, in order."""
    found: list[Exchange] = []
    for phase, step in _steps(v):
        found.append(_comparison(mode, v, phase, step))
        v = _exchanged(v, found[-1])
    return found


def _exchanged(v: Tensor, exchange: Exchange) -> Tensor:
    """Vectors (…, k, n) whose partners have changed places."""
    c, d = exchange
    low, high = v.unflatten(-1, (-1, 2, d)).unbind(-2)
    moved = (high - low) * c
    return torch.stack((low + moved, high - moved), -2).flatten(-3)


def _moved(v: Tensor, exchanges: Sequence[Exchange]) -> Tensor:
    """Vectors (…, k, n) after some exchanges."""
    for exchange in exchanges:
        v = _exchanged(v, exchange)
    return v
