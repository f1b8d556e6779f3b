"""The projection onto the permutahedron, and its solution for sorted rows as an operator."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.opmath import to_opmath
from fullgrad._core.opmath import wide as in_float64
from fullgrad._core.shards import rows_code
from fullgrad._dispatch import holds, same_shape, uses_last_dims
from fullgrad.soft._curves import SMALLEST, Softness
from fullgrad.soft._mode_names import SOFT_MODES
from fullgrad.soft._relaxation import check, floating
from fullgrad.soft.order._numbers import POWERS, RowFunction, group_sums, power, row_origin
from fullgrad.soft.order.kernels.isotonic import isotonic


@uses_last_dims(1)
def proj_permutahedron(z: Tensor, w: Tensor, softness: Softness = 0.1, mode: str = "smooth") -> Tensor:
    r"""The projection of rows onto the permutahedron, the convex hull of all orders of a row.

    .. math::
        y = \arg\max_{y \in \mathcal{P}(w)} \langle z, y \rangle - s \sum_i \frac{|y_i|^p}{p}, \qquad
        D_z\, t = \frac{\alpha}{s}\, \omega \Big(t - \frac{\sum_B \omega t}{\sum_B \omega}\Big), \quad
        D_w\, t = \omega\, \frac{\sum_B t}{\sum_B \omega}, \quad \omega = |y|^{(\alpha - 1) / \alpha}

    with p = 2, 3/2, 4/3 and :math:`\alpha` = 1, 2, 3 in ``c0``, ``c1``, ``c2``, and sums over the blocks B of elements that are
    pooled: y has the order of z, and is w itself, in that order, where nothing is pooled. In smooth mode y is the logarithm of
    the projection of :math:`e^{z/s}` onto the permutahedron of :math:`e^w` by relative entropy, and
    :math:`D_z t = (t - \sum_B p t) / s,\ D_w t = \sum_B q t`, with the softmax p of z / s and q of w on each block. Blocks are
    constants to every derivative, and equal levels are not pooled. Saved: the orders and blocks, and except in ``c0`` a few
    numbers per element.

    On a device the host waits for the solver, each round of which looks at numbers.

    Args:
        z: Rows in the last dimension, floating, or integer (which gives the default dtype).
        w: Rows of the same length; the other dimensions broadcast.
        softness: How much is pooled, positive: a number, or a tensor that broadcasts with ``z``, of size 1 in the last dimension.
        mode: ``"smooth"``, ``"c0"``, ``"c1"`` or ``"c2"``.

    Returns:
        A tensor of the broadcast shape.

    Raises:
        TypeError: ``z`` or ``w`` is not a real tensor, or ``softness`` is not a real number or tensor.
        ValueError: The rows differ in length, ``softness`` is a number that is not positive, or ``mode`` is unknown.

    Example:
        >>> import torch, fullgrad
        >>> w = torch.tensor([3.0, 2.0, 1.0])
        >>> fullgrad.soft.proj_permutahedron(torch.tensor([0.1, 0.9, 0.95]), w, mode="c0")
        tensor([1.0000, 2.2500, 2.7500])

    Source: Blondel et al., https://arxiv.org/abs/2002.08871; ``softjax.proj_permutahedron``.
    """
    checks.real_tensor("proj_permutahedron", "z", z)
    z, softness = check("proj_permutahedron", z, softness, mode, SOFT_MODES)
    checks.real_tensor("proj_permutahedron", "w", w)
    if not z.ndim or not w.ndim or not holds(z.shape[-1] == w.shape[-1]):
        raise ValueError(
            f"proj_permutahedron: `z` and `w` must have rows of one length, got shapes {tuple(z.shape)} and {tuple(w.shape)}."
        )
    w = floating(w)
    u, wide = to_opmath(z, w)

    def of_rows(u: Tensor, w: Tensor, s: Softness) -> Tensor:
        u = u - row_origin(u)
        # In float64 the quotient does not overflow.
        return project((in_float64(u) if s.__class__ is float and s < SMALLEST else u) / s, w, mode)

    y = rows_code("proj_permutahedron", of_rows, u, wide, softness)
    return y.to(torch.promote_types(z.dtype, w.dtype))


def project(u: Tensor, w: Tensor, mode: str) -> Tensor:
    r"""The projection of ``u`` onto the convex hull of the permutations of ``w``, with softness 1, along the last dimension.

    .. math::
        y = \operatorname*{arg\,max}_{y \in \mathcal{P}(w)} \; \langle u, y \rangle - \sum_i \frac{|y_i|^p}{p}, \qquad
        p = 2, \tfrac32, \tfrac43

    for ``c0``, ``c1`` and ``c2``; in ``smooth`` mode, :math:`e^y` is the projection of :math:`e^u` onto
    :math:`\mathcal{P}(e^w)` by relative entropy. Elements of ``u`` that pool with no other get elements of ``w``, exactly. The
    leading dimensions broadcast.
    """
    return project_onto_sorted(u, torch.sort(w, dim=-1, descending=True, stable=True).values, mode)


def project_onto_sorted(u: Tensor, w: Tensor, mode: str) -> Tensor:
    """`project` for nonincreasing ``w``."""
    u, order = torch.sort(u, dim=-1, descending=True, stable=True)
    y = project_sorted(u, w, mode)
    return torch.zeros_like(y).scatter(-1, order.expand(y.shape), y)


def project_sorted(u: Tensor, w: Tensor, mode: str) -> Tensor:
    """`project` for nonincreasing ``u`` and ``w``."""
    dtype = torch.promote_types(u.dtype, w.dtype)
    u, w = u.to(dtype), w.to(dtype)
    t, first = Isotonic.apply(u, w, mode)
    if mode in ("c0", "smooth"):
        return t
    y = t * t.abs() if mode == "c1" else power(t, 3)
    return torch.where(_alone(first) & (t == 0), w, y)


def _alone(first: Tensor) -> Tensor:
    """Whether each element is alone in its block."""
    begins = first == torch.arange(first.shape[-1], device=first.device)
    return begins & torch.cat([begins[..., 1:], torch.ones_like(begins[..., :1])], -1)


class Isotonic(RowFunction):
    r"""The difference of nonincreasing rows ``u`` and their isotonic regression :math:`v(u, w)`, and its blocks.

    .. math::
        t = u - v, \qquad v = \gamma_B \text{ on the block } B, \qquad
        d\gamma_B = \frac{\sum_B \omega\, du - \frac{1}{\alpha} \sum_B dw}{\sum_B \omega}, \quad \omega = |t|^{\alpha - 1}

    and in ``smooth`` mode :math:`d\gamma_B = \sum_B p\, du - \sum_B q\, dw` with the softmax :math:`p` of ``u`` and :math:`q` of
    ``w`` on the block. The blocks, constant, are given for each element as the place of the first element of its block.

    On a block of one, ``t`` is ``w`` for ``c0`` and ``smooth``; for ``c1`` and ``c2``, where :math:`dt` is not bounded, ``t`` is
    the constant 0 and the caller takes ``w``. By convention :math:`dt = 0` where the sum of :math:`\omega` is 0. Saved: the
    blocks, and ``t`` for ``c1`` and ``c2``, the inputs in ``smooth`` mode.
    """

    @staticmethod
    def forward(u: Tensor, w: Tensor, mode: str) -> tuple[Tensor, Tensor]:
        if not same_shape(u.shape, w.shape):
            u, w = torch.broadcast_tensors(u, w)
        return isotonic(u, w, mode)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        u, w, mode = inputs
        t, first = output
        saved = (first, u, w) if mode == "smooth" else (first, *[t][: mode != "c0"])
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)
        ctx.mode, ctx.like = mode, (t.dtype, t.device)
        ctx.mark_non_differentiable(first)

    @staticmethod
    def vjp(ctx: Any, g: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        first, *rest = ctx.saved_tensors
        pooled = group_sums(g, first)
        if ctx.mode == "smooth":
            u, w = rest
            g_u = g - _softmax(u, first) * pooled if ctx.needs_input_grad[0] else None
            g_w = _softmax(w, first) * pooled if ctx.needs_input_grad[1] else None
        else:
            omega, scale, moves = _weights(ctx.mode, first, g, *rest)
            mean = pooled * scale
            g_u = (g - omega * mean) * moves if ctx.needs_input_grad[0] else None
            g_w = mean / POWERS[ctx.mode] if ctx.needs_input_grad[1] else None
        return g_u, g_w, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor | None, ...]:
        first, *rest = ctx.saved_tensors
        zero = torch.zeros(first.shape, dtype=ctx.like[0], device=ctx.like[1])
        du, dw = [zero if d is None else d.expand(first.shape) for d in tangents[:2]]
        if ctx.mode == "smooth":
            u, w = rest
            return du - group_sums(_softmax(u, first) * du, first) + group_sums(_softmax(w, first) * dw, first), None
        omega, scale, moves = _weights(ctx.mode, first, zero, *rest)
        return (du - group_sums(omega * du - dw / POWERS[ctx.mode], first) * scale) * moves, None


def _softmax(x: Tensor, first: Tensor) -> Tensor:
    """The softmax on each block of nonincreasing rows."""
    x = x.expand(first.shape)
    # The greatest element is the first; subtracting it does not change the softmax.
    e = torch.exp(x - x.detach().gather(-1, first))
    return e / group_sums(e, first)


def _weights(mode: str, first: Tensor, like: Tensor, t: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The weights of the elements, one over their sum, and 1; the last two are 0 where the sum is 0."""
    omega = torch.ones_like(like) if t is None else t.abs() if mode == "c1" else t * t
    total = group_sums(omega, first)
    moves = (total != 0).to(total.dtype)
    return omega, moves / torch.where(total != 0, total, torch.ones_like(total)), moves
