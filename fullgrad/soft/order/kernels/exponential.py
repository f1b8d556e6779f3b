"""The exponential kernel over a sorted row: the sums to the left and to the right of every element, in O(n)."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core.batching import aligned
from fullgrad._core.opmath import wide
from fullgrad._core.recomputed import saved_inputs
from fullgrad._dispatch import opaque
from fullgrad.soft._curves import Softness
from fullgrad.soft.order._numbers import RowFunction, group_sums, middle, tie_bounds

# Rows this short are summed element by element: halving them further takes more operations.
_SHORT = 12


class TwoSided(RowFunction):
    r"""Decayed sums over the strictly smaller and the strictly larger elements of an ascending row ``a``.

    .. math::
        L_i = \sum_{a_j < a_i} e^{-(a_i - a_j)} p_j, \qquad R_i = \sum_{a_j > a_i} e^{-(a_j - a_i)} q_j

    The family is closed, so that derivatives of every order are such sums:

    .. math::
        dL = L(da\,p + dp) - da\,L, \qquad dR = R(dq - da\,q) + da\,R, \qquad L^T = R

    ``first`` and ``last``, constants, are the bounds of the group of equal elements around each element. All arguments broadcast.
    Saved: the inputs and both outputs.
    """

    saves = range(7)

    @staticmethod
    def forward(a: Tensor, first: Tensor, last: Tensor, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        return decayed_sums(a, first, last, p, q)

    @staticmethod
    def vjp(ctx: Any, gl: Tensor, gr: Tensor) -> tuple[Tensor | None, ...]:
        a, first, last, p, q, left, right = saved_inputs(ctx)
        for_q, for_p = TwoSided.apply(a, first, last, gr, gl)
        for_a = p * for_p - gl * left + gr * right - q * for_q if ctx.needs_input_grad[0] else None
        return for_a, None, None, for_p, for_q

    @staticmethod
    def jvp(ctx: Any, da: Any, _first: Any, _last: Any, dp: Any, dq: Any) -> tuple[Tensor, Tensor]:
        a, first, last, p, q, left, right = saved_inputs(ctx)
        da, dp, dq = [torch.zeros_like(v) if d is None else d for d, v in ((da, a), (dp, p), (dq, q))]
        moved_left, moved_right = TwoSided.apply(a, first, last, dp + da * p, dq - da * q)
        return moved_left - da * left, moved_right + da * right


def averages(a: Tensor, h: Tensor, ties: tuple[Tensor, Tensor]) -> Tensor:
    r"""The averages :math:`\sum_j P_{ij} h_j`, :math:`P_i = \operatorname{softmax}_j(-|a_i - a_j|)`, of an ascending row with the
    `tie_bounds` of its equal elements.
    """
    first, last = ties
    # The rows of P sum to 1. With the offset removed, h loses no digits in the differences of the derivative.
    offset = middle(h)
    f = torch.stack(torch.broadcast_tensors(torch.ones_like(a), h - offset))
    left, right = TwoSided.apply(a, first, last, f, f)
    mass, total = (left + right + group_sums(f, first)).unbind(0)
    return total / mass + offset


def laplace_sums(z: Tensor, softness: Softness) -> Tensor:
    r"""The sums :math:`\sum_k S((z_j - z_k) / s)` of the step S of a Laplace distribution, in O(n log n):
    :math:`1 - \frac12 e^{-d}` for smaller elements, :math:`\frac12` for equal ones, :math:`\frac12 e^{-d}` for larger ones.
    """
    a, order = torch.sort(z, dim=-1)
    first, last = tie_bounds(a)
    a = wide(a) / softness
    ones = torch.ones_like(a)
    left, right = TwoSided.apply(a, first, last, ones, ones)
    # Between equal elements S has the value 1/2 and the slope 1/2. An element alone has no such slope: as a difference of two
    # equal ones it would take the digits of the slopes between distant elements.
    count = (last - first + 1).to(a.dtype)
    d = torch.where(count > 1, a - a.detach(), 0)
    sums = first + (count + count * d - group_sums(d, first) + right - left) / 2
    return sums.gather(-1, torch.argsort(order, dim=-1)).to(z.dtype)


def cross_sums(points: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    r"""The sums :math:`\sum_j e^{-|p_i - k_j|} v_j` at each point, in O(n log n). The slope of the distance counts as 0 at 0."""
    n = points.shape[-1]
    a, order = torch.sort(torch.cat((points, knots), -1), dim=-1)
    first, last = tie_bounds(a)
    f = torch.cat((torch.zeros_like(points), values), -1).gather(-1, order)
    left, right = TwoSided.apply(a, first, last, f, f)
    return (left + right + group_sums(f, first)).gather(-1, torch.argsort(order, dim=-1)[..., :n])


def _like(a: Tensor, first: Tensor, last: Tensor, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    shape = torch.broadcast_shapes(a.shape, p.shape, q.shape)
    return p.new_empty(shape), q.new_empty(shape)


@opaque("decayed_sums", fake=_like, batched=lambda in_dims, args: (aligned(in_dims, args), (0, 0)))
def decayed_sums(a: Tensor, first: Tensor, last: Tensor, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """The value of `TwoSided`. Only gaps between neighbors are exponentiated, so nothing overflows."""
    shape = torch.broadcast_shapes(a.shape, p.shape, q.shape)
    decay = torch.exp(a[..., :-1] - a[..., 1:])
    decay = decay.reshape(*(1,) * (len(shape) - decay.ndim), *decay.shape)
    # The contributions to element i of its neighbor, and by the scan of all elements behind it: without element i itself.
    p, q = p[..., :-1] * decay, q[..., 1:] * decay
    inner = (*shape[:-1], max(shape[-1] - 1, 0))
    sums = _scan(torch.stack((decay, decay.flip(-1))), torch.stack((p.expand(inner), q.flip(-1).expand(inner))))
    sums = torch.nn.functional.pad(sums, (1, 0))
    left, right = sums[0], sums[1].flip(-1)
    return left.gather(-1, first.expand(shape)), right.gather(-1, last.expand(shape))


def _scan(decay: Tensor, values: Tensor) -> Tensor:
    """``s[i] = values[i] + decay[i] * s[i - 1]`` along the last dim: pairs are joined, and a row half as long is scanned."""
    n = values.shape[-1]
    if n <= _SHORT:
        sums = [*values[..., :1].unbind(-1)]
        for i in range(1, n):
            sums.append(torch.addcmul(values[..., i], decay[..., i], sums[-1]))
        return torch.stack(sums, -1) if n else values
    half = n // 2
    d0, d1 = decay[..., 0::2], decay[..., 1::2]
    v0, v1 = values[..., 0::2], values[..., 1::2]
    odd = _scan(d0[..., :half] * d1, torch.addcmul(v1, d1, v0[..., :half]))
    before = odd[..., : v0.shape[-1] - 1]
    even = torch.cat((v0[..., :1], torch.addcmul(v0[..., 1:], d0[..., 1:], before)), -1)
    result = torch.stack((even[..., :half], odd), -1).flatten(-2)
    return torch.cat((result, even[..., half:]), -1) if n % 2 else result
