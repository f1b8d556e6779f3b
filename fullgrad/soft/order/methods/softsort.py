"""SoftSort: weights by the distance from each element in order; values and ranks in O(n log n) time and O(n) memory.

Source: Prillo, Eisenschlos, https://arxiv.org/abs/2006.16038.
"""

import torch
from torch import Tensor

from fullgrad._core.batching import numel_with_batches
from fullgrad._core.opmath import wide
from fullgrad._dispatch import row_largest, surely
from fullgrad.soft._relaxation import over_softness
from fullgrad.soft.order._numbers import POWERS, tie_bounds, weighted
from fullgrad.soft.order._rows import Rows
from fullgrad.soft.order.kernels import exponential, window
from fullgrad.soft.order.methods._method import Method

# Matrices up to this many elements are computed as a matrix. Measured forward and backward by
# `sort_st`: one row of 384 takes 0.9 ms as a matrix and 2.0 ms as scans in smooth mode, one of
# 512 takes 2.6 and 2.0; in c1 one of 512 takes 3.6 and 10.7, one of 1024 takes 18 and 14; 64 rows of 128 take 19 and 2.4 ms in
# smooth mode, 21 and 20 in c1.
SMALL = {"smooth": 2**17, "c0": 2**19, "c1": 2**19, "c2": 2**19}


class SoftSort(Method):
    r"""The weights :math:`P_i = \Pi(-|a_i - u|)`, with ``a`` the sorted row ``u`` and the mode's projection onto the simplex."""

    def weights(self, rows: Rows, places: Tensor | None = None) -> Tensor:
        a = torch.sort(rows.z, stable=True).values
        if places is not None:
            a = a.gather(-1, places.expand(*a.shape[:-1], places.shape[-1]))
        return _distance_weights(a, rows.z, rows)

    def largest_weights(self, rows: Rows) -> Tensor:
        return rows.project(over_softness(rows.z - row_largest(rows.z), rows.softness))

    def values(self, rows: Rows) -> Tensor:
        a, order = torch.sort(rows.z, dim=-1, stable=True)
        return rows.moved_back(_smoothed(a, rows.x.gather(-1, order), rows))

    def ranks(self, rows: Rows) -> Tensor:
        r"""The ranks :math:`\sum_i i\,\Pi_i(-|u_j - a_i|)`, with the weights of each element among the places."""
        a, order = torch.sort(rows.z, dim=-1, stable=True)
        return _smoothed(a, rows.numbers(rows.z).expand(a.shape), rows).gather(-1, torch.argsort(order, dim=-1))


def _distance_weights(a: Tensor, z: Tensor, rows: Rows) -> Tensor:
    """The weights by distance. In torch the slope of the absolute value at 0 is 0, and so are all derivatives of its sign.

    The difference comes before the softness: after the division, numbers may be equal, or infinite.
    """
    softness = rows.softness.unsqueeze(-1) if isinstance(rows.softness, Tensor) and rows.softness.ndim else rows.softness
    return rows.project(-over_softness((a.unsqueeze(-1) - z.unsqueeze(-2)).abs(), softness))


def _smoothed(a: Tensor, h: Tensor, rows: Rows) -> Tensor:
    r"""Local averages of a row over an ascending row ``a``: :math:`\sum_j \Pi_j(-|a_i - a_j| / s)\,h_j`.

    The derivative of :math:`|a_i - a_j|` is 0 between equal elements; elsewhere derivatives of every order are the true ones.
    """
    mode = rows.mode
    if surely(a.shape[-1] * numel_with_batches(a) <= SMALL[mode]):
        return weighted(_distance_weights(a, a, rows), h)
    ties, a, x = tie_bounds(a), wide(a) / rows.softness, wide(h)
    soft = exponential.averages(a, x, ties) if mode == "smooth" else window.averages(a, x, ties, POWERS[mode])
    return soft.to(h.dtype)
