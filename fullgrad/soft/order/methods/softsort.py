"""SoftSort: weights by the distance from each element in order; values and ranks in O(n log n) time and O(n) memory.

Source: Prillo, Eisenschlos, https://arxiv.org/abs/2006.16038.
"""

import torch
from torch import Tensor

from fullgrad._dispatch import transforms_active
from fullgrad.soft.order._numbers import POWERS, weighted, wide
from fullgrad.soft.order._rows import Rows
from fullgrad.soft.order.kernels import exponential, window
from fullgrad.soft.order.methods._method import Method
from fullgrad.soft.order.projections.simplex import project

# Matrices up to this many elements, and rows up to this length, are computed as a matrix. Measured forward and backward by
# `sort_st`: one row of 384 takes 0.9 ms as a matrix and 2.0 ms as scans in smooth mode, one of
# 512 takes 2.6 and 2.0; in c1 one of 512 takes 3.6 and 10.7, one of 1024 takes 18 and 14; 64 rows of 128 take 19 and 2.4 ms in
# smooth mode, 21 and 20 in c1. Under vmap the length alone is seen, not the number of rows: hence a limit for it.
SMALL = {"smooth": 2**17, "c0": 2**19, "c1": 2**19, "c2": 2**19}
SHORT = {"smooth": 128, "c0": 256, "c1": 256, "c2": 256}


class SoftSort(Method):
    r""":math:`P_i = \Pi(-|a_i - u|)`, with ``a`` the sorted row ``u`` and the projection onto the simplex of the mode."""

    def weights(self, rows: Rows, places: Tensor | None = None) -> Tensor:
        a = torch.sort(rows.u, stable=True).values
        if places is not None:
            a = a.gather(-1, places.expand(*a.shape[:-1], places.shape[-1]))
        return _distance_weights(a, rows.u, rows.mode)

    def largest_weights(self, rows: Rows) -> Tensor:
        return project(rows.u, rows.mode)

    def values(self, rows: Rows) -> Tensor:
        a, order = torch.sort(rows.u, dim=-1)
        return _smoothed(a, rows.x.gather(-1, order), rows.mode)

    def ranks(self, rows: Rows) -> Tensor:
        r""":math:`\sum_i i\,\Pi_i(-|u_j - a_i|)`, with the weights of an element among the places."""
        a, order = torch.sort(rows.u, dim=-1)
        return _smoothed(a, rows.numbers(rows.u).expand(a.shape), rows.mode).gather(-1, torch.argsort(order, dim=-1))


def _distance_weights(a: Tensor, u: Tensor, mode: str) -> Tensor:
    """The slope of the absolute value at 0 is 0 in torch, and so are all derivatives of its sign."""
    return project(-(a.unsqueeze(-1) - u.unsqueeze(-2)).abs(), mode)


def _smoothed(a: Tensor, h: Tensor, mode: str) -> Tensor:
    r"""Local averages of a row over an ascending row ``a``: :math:`\sum_j \Pi_j(-|a_i - a_j|)\,h_j`.

    The derivative of :math:`|a_i - a_j|` is 0 between equal elements, and those of every order are the true ones elsewhere.
    """
    if a.shape[-1] * a.numel() <= SMALL[mode] and (a.shape[-1] <= SHORT[mode] or not transforms_active()):
        return weighted(_distance_weights(a, a, mode), h)
    a, x = wide(a), wide(h)
    soft = exponential.averages(a, x) if mode == "smooth" else window.averages(a, x, POWERS[mode])
    return soft.to(h.dtype)
