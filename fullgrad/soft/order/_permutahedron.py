"""Projection onto the permutahedron, and its solution of sorted rows as an operator."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._batching import aligned
from fullgrad._function import Function
from fullgrad._inputs import sum_to
from fullgrad._machinery import has_data, tracing
from fullgrad.soft.order._isotonic import isotonic

__all__ = ["Isotonic", "project", "project_sorted"]

_ALPHA = {"c0": 1, "c1": 2, "c2": 3}


def project(u: Tensor, w: Tensor, mode: str) -> Tensor:
    r"""The projection of ``u`` onto the convex hull of the permutations of ``w``, with softness 1, along the last dimension.

    .. math::
        y = \operatorname*{arg\,max}_{y \in \mathcal{P}(w)} \; \langle u, y \rangle - \sum_i \frac{|y_i|^p}{p}, \qquad
        p = 2, \tfrac32, \tfrac43

    for ``c0``, ``c1`` and ``c2``; in ``smooth`` mode, :math:`e^y` is the projection of :math:`e^u` onto
    :math:`\mathcal{P}(e^w)` by relative entropy. Elements of ``u`` that pool with no other get elements of ``w``, exactly. The
    leading dimensions broadcast.
    """
    u, order = torch.sort(u, dim=-1, descending=True, stable=True)
    y = project_sorted(u, torch.sort(w, dim=-1, descending=True, stable=True).values, mode)
    return torch.zeros_like(y).scatter(-1, order.expand(y.shape), y)


def project_sorted(u: Tensor, w: Tensor, mode: str) -> Tensor:
    """`project` of rows that are nonincreasing, both of them."""
    dtype = torch.promote_types(u.dtype, w.dtype)
    u, w = u.to(dtype), w.to(dtype)
    t, first = Isotonic.apply(u, w, mode)
    if mode in ("c0", "smooth"):
        return t
    y = t * t.abs() if mode == "c1" else t * t * t
    return torch.where(_alone(first) & (t == 0), w, y)


def _alone(first: Tensor) -> Tensor:
    """Which elements are alone in their block."""
    begins = first == torch.arange(first.shape[-1], device=first.device)
    return begins & torch.cat([begins[..., 1:], torch.ones_like(begins[..., :1])], -1)


class Isotonic(Function):
    r"""The difference of nonincreasing rows ``u`` and their isotonic regression :math:`v(u, w)`, and the blocks of that.

    .. math::
        t = u - v, \qquad v = \gamma_B \text{ on the block } B, \qquad
        d\gamma_B = \frac{\sum_B \omega\, du - \frac{1}{\alpha} \sum_B dw}{\sum_B \omega}, \quad \omega = |t|^{\alpha - 1}

    and in ``smooth`` mode :math:`d\gamma_B = \sum_B p\, du - \sum_B q\, dw` with the softmax :math:`p` of ``u`` and :math:`q` of
    ``w`` on the block. The blocks, constant, are given by the place of the first element of the block which each element
    is in.

    On a block of one, ``t`` is ``w`` for ``c0`` and ``smooth``; for ``c1`` and ``c2``, where :math:`dt` is not bounded, ``t`` is
    the constant 0 and the caller takes ``w``. By convention :math:`dt = 0` where the sum of :math:`\omega` is 0. Saved: the
    blocks, and ``t`` for ``c1`` and ``c2``, the inputs in ``smooth`` mode.
    """

    @staticmethod
    def forward(u: Tensor, w: Tensor, mode: str) -> tuple[Tensor, Tensor]:
        if u.shape != w.shape:
            u, w = torch.broadcast_tensors(u, w)
        if tracing() or not has_data(u) or not has_data(w):
            return _isotonic(u, w, mode)
        return isotonic(u, w, mode)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        u, w, mode = inputs
        t, first = output
        saved = (first, u, w) if mode == "smooth" else (first, *[t][: mode != "c0"])
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)
        ctx.mode, ctx.shapes, ctx.like = mode, (u.shape, w.shape), (t.dtype, t.device)
        ctx.mark_non_differentiable(first)

    @staticmethod
    def vjp(ctx: Any, g: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        first, *rest = ctx.saved_tensors
        pooled = _pooled(g, first)
        if ctx.mode == "smooth":
            u, w = rest
            g_u = g - _softmax(u, first) * pooled if ctx.needs_input_grad[0] else None
            g_w = _softmax(w, first) * pooled if ctx.needs_input_grad[1] else None
        else:
            omega, scale, moves = _weights(ctx.mode, first, g, *rest)
            mean = pooled * scale
            g_u = (g - omega * mean) * moves if ctx.needs_input_grad[0] else None
            g_w = mean / _ALPHA[ctx.mode] if ctx.needs_input_grad[1] else None
        g_u, g_w = [None if p is None else sum_to(p, s) for p, s in zip((g_u, g_w), ctx.shapes, strict=True)]
        return g_u, g_w, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor | None, ...]:
        first, *rest = ctx.saved_tensors
        zero = torch.zeros(first.shape, dtype=ctx.like[0], device=ctx.like[1])
        du, dw = [zero if d is None else d.expand(first.shape) for d in tangents[:2]]
        if ctx.mode == "smooth":
            u, w = rest
            return du - _pooled(_softmax(u, first) * du, first) + _pooled(_softmax(w, first) * dw, first), None
        omega, scale, moves = _weights(ctx.mode, first, zero, *rest)
        return (du - _pooled(omega * du - dw / _ALPHA[ctx.mode], first) * scale) * moves, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        return Isotonic.apply(*aligned(in_dims, args)), (0, 0)


def _pooled(x: Tensor, first: Tensor) -> Tensor:
    """Sums over blocks, for each of their elements."""
    return torch.zeros_like(x).scatter_add(-1, first, x).gather(-1, first)


def _softmax(x: Tensor, first: Tensor) -> Tensor:
    """The softmax on each block of nonincreasing rows."""
    x = x.expand(first.shape)
    # The greatest element is the first; the softmax does not depend on it.
    e = torch.exp(x - x.detach().gather(-1, first))
    return e / _pooled(e, first)


def _weights(mode: str, first: Tensor, like: Tensor, t: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The weights of the elements, one over their sum, and 1 where that sum is not 0. Where it is, 0 for both."""
    omega = torch.ones_like(like) if t is None else t.abs() if mode == "c1" else t * t
    total = _pooled(omega, first)
    moves = (total != 0).to(total.dtype)
    return omega, moves / torch.where(total != 0, total, torch.ones_like(total)), moves


def _shapes(u: Tensor, w: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    return torch.empty_like(u, memory_format=torch.contiguous_format), u.new_empty(u.shape, dtype=torch.int64)


# CUDA graphs replay kernels; the solver asks how many blocks are left.
_isotonic: Any = torch.library.custom_op("fullgrad::isotonic", isotonic, mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
_isotonic.register_fake(_shapes)
