"""SoftSort along the last dim: soft sorted values and soft ranks, in O(n log n) time and O(n) memory."""

import torch
from torch import Tensor

from fullgrad._dispatch import transforms_active
from fullgrad.soft.order._numbers import POWERS, weighted, wide
from fullgrad.soft.order.kernels import exponential as _exponential
from fullgrad.soft.order.kernels import window as _window
from fullgrad.soft.order.projections.simplex import project

__all__ = ["ranks", "smoothed", "values"]

# Matrices up to this many elements, and rows up to this length, are computed as a matrix. Measured forward and backward by
# `sort_st`: one row of 384 takes 0.9 ms as a matrix and 2.0 ms as scans in smooth mode, one of
# 512 takes 2.6 and 2.0; in c1 one of 512 takes 3.6 and 10.7, one of 1024 takes 18 and 14; 64 rows of 128 take 19 and 2.4 ms in
# smooth mode, 21 and 20 in c1. Under vmap the length alone is seen, not the number of rows: hence a limit for it.
SMALL = {"smooth": 2**17, "c0": 2**19, "c1": 2**19, "c2": 2**19}
SHORT = {"smooth": 128, "c0": 256, "c1": 256, "c2": 256}


def values(u: Tensor, x: Tensor, mode: str) -> Tensor:
    r"""The soft sorted values, ascending: :math:`\sum_j \Pi_j(-|a_i - u_j|)\,x_j`, with ``a`` the sorted row ``u``.

    :math:`\Pi` is the projection onto the simplex of the mode. ``x`` is a row in the order of ``u``, which is often a function of
    it.
    """
    a, order = torch.sort(u, dim=-1)
    return smoothed(a, x.gather(-1, order), mode)


def ranks(u: Tensor, mode: str) -> Tensor:
    r"""The soft ranks, from 1 for the smallest: :math:`\sum_i i\,\Pi_i(-|u_j - a_i|)`, with ``a`` the sorted row ``u``."""
    a, order = torch.sort(u, dim=-1)
    soft = smoothed(a, torch.arange(1, u.shape[-1] + 1, device=u.device, dtype=u.dtype).expand(a.shape), mode)
    return soft.gather(-1, torch.argsort(order, dim=-1))


def smoothed(a: Tensor, h: Tensor, mode: str) -> Tensor:
    r"""Local averages of a row over an ascending row ``a``: :math:`\sum_j \Pi_j(-|a_i - a_j|)\,h_j`.

    The derivative of :math:`|a_i - a_j|` is 0 between equal elements, and those of every order are the true ones elsewhere.
    """
    if a.shape[-1] * a.numel() <= SMALL[mode] and (a.shape[-1] <= SHORT[mode] or not transforms_active()):
        # The slope of abs at 0 is 0 in torch, and so are all derivatives of its sign.
        weights = project(-(a.unsqueeze(-1) - a.unsqueeze(-2)).abs(), mode)
        return weighted(weights, h)
    a, x = wide(a), wide(h)
    soft = _exponential.averages(a, x) if mode == "smooth" else _window.averages(a, x, POWERS[mode])
    return soft.to(h.dtype)
