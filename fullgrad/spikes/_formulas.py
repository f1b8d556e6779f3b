"""Formulas that several surrogates share, as plain torch code that autograd may differentiate."""

import functools
import math
from typing import Any

import torch
from torch import Tensor

from fullgrad._buffers import apply_steps
from fullgrad._dispatch import at_least, can_reuse_buffers, is_compiling
from fullgrad._kernels import sigmoid_gate, where_between, where_positive
from fullgrad._neighbors import neighbor

# The number of standard deviations beyond which a normal density is 0, in float64 too.
_FAR = 60.0


def scaled(temporary: Tensor, factor: Any) -> Tensor:
    """``temporary * factor``, in its buffer where the factor is a number."""
    return temporary * factor if isinstance(factor, Tensor) else apply_steps(temporary, (torch.mul, factor))


def plus_scaled(temporary: Tensor, v: Tensor, factor: Any) -> Tensor:
    """``temporary + v * factor``, in one pass and in the buffer of ``temporary`` where the factor is a number."""
    if isinstance(factor, Tensor) or not can_reuse_buffers() or temporary.shape != v.shape or temporary.dtype != v.dtype:
        return temporary + v * factor
    return torch.add(temporary, v, alpha=factor, out=temporary)


def affine_of_abs(u: Tensor, factor: Any, offset: float = 0.0) -> Tensor:
    """``factor * abs(u) + offset``, in two passes and one buffer where it is not recorded and the factor is a number."""
    a = u.abs()
    if isinstance(factor, Tensor) or not can_reuse_buffers():
        return a * factor + offset
    return torch.add(a.new_full((), offset), a, alpha=factor, out=a)


def exponential(dtype: torch.dtype) -> tuple[float, Any]:
    """A factor and a function such that ``function(x * factor)`` is exp(x).

    In float32 the function is a power of two, which takes a third of the time of torch.exp on the CPU. In float64 exponents may
    be so large that exponents of two, larger yet, would lose digits.
    """
    return (math.log2(math.e), torch.exp2) if dtype == torch.float32 else (1.0, torch.exp)


def right_or_left(right: Tensor, left: Tensor, u: Tensor, tie: float) -> Tensor:
    """``where_right(right, u, tie) + where_left(left, u, tie)`` of finite numbers; NaN where both are."""
    if (
        can_reuse_buffers()
        and right.shape == left.shape == u.shape
        and right.dtype == left.dtype == u.dtype
        and tie in (0.0, 1.0)
    ):
        mask = (torch.ge if tie else torch.gt)(u, 0, out=torch.empty_like(u))
        return torch.lerp(left, right, mask, out=left)  # exact for the weights 0 and 1
    return where_right(right, u, tie) + where_left(left, u, tie)


def clamp_to_finite(u: Tensor, factor: Any) -> Tensor:
    """``u`` clamped so that its product with a factor is finite: in derivatives of slopes, infinity would be multiplied by 0.

    Beyond the bound, half the largest number, every slope equals its value at infinity.
    """
    largest = torch.finfo(u.dtype).max / 2
    return clamp_within(u, largest / (torch.clamp(factor, min=1.0) if isinstance(factor, Tensor) else at_least(factor, 1.0)))


def clamp_within(u: Tensor, bound: Any) -> Tensor:
    """``u`` clamped to plus and minus a bound, which is a constant."""
    if not isinstance(bound, Tensor):
        return torch.clamp(u, -bound, bound)
    # The forward derivative of a maximum adds and subtracts the derivative of the bound, which may be huge.
    bound = bound.detach().to(u.dtype)
    return torch.minimum(torch.maximum(u, -bound), bound)


def where_within(g: Tensor, u: Tensor, width: Any, closed: bool = True) -> Tensor:
    """``g`` where ``abs(u)`` is below ``width``, or equal to it where ``closed``; else 0, also where ``u`` is NaN."""
    if isinstance(width, (int, float)) and not is_compiling():
        width = float(width) if closed else neighbor(float(width), u.dtype, False)
        return where_between(g, u, -width, width)
    a = u.abs()
    return torch.where(a <= width if closed else a < width, g, 0)


def where_inside(g: Tensor, u: Tensor, low: float, high: float) -> Tensor:
    """``g`` where ``low < u < high``, else 0, also where ``u`` is NaN."""
    if is_compiling():
        return torch.where((u > low) & (u < high), g, 0)
    return where_between(g, u, neighbor(float(low), u.dtype, True), neighbor(float(high), u.dtype, False))


def where_right(g: Tensor, u: Tensor, tie: float) -> Tensor:
    """``g`` where ``u`` is positive, ``tie * g`` where it is 0; else 0, also where ``u`` is NaN."""
    if tie not in (0.0, 1.0):
        return (where_right(g, u, 1.0) + where_right(g, u, 0.0)) * 0.5
    if is_compiling():
        return torch.where(u >= 0 if tie else u > 0, g, 0)
    return where_between(g, u, 0.0 if tie else _smallest(u.dtype), None)


def where_left(g: Tensor, u: Tensor, tie: float) -> Tensor:
    """``g`` less `where_right` of it, also where ``g`` is infinite; ``g`` where ``u`` is NaN."""
    if tie not in (0.0, 1.0):
        return (where_left(g, u, 1.0) + where_left(g, u, 0.0)) * 0.5
    right = u >= 0 if tie else u > 0
    return torch.where(right, 0, g) if is_compiling() else where_positive(g, ~right)


@functools.cache
def _smallest(dtype: torch.dtype) -> float:
    return neighbor(0.0, dtype, True)


def bell(x: Tensor, factor: Any = 1.0) -> Tensor:
    """The derivative of the logistic function at ``z = x * factor``, ``s(z) s(-z)``: without ``1 - s(z)``, which cancels."""
    if not can_reuse_buffers():
        z = x * factor
        if is_compiling():  # a choice costs less than an exponential; both sides are the same function
            p = torch.sigmoid(torch.where(z < 0, z, -z))
            return p * (1 - p)
        return torch.sigmoid(z) * torch.sigmoid(-z)
    p = apply_steps(affine_of_abs(x, -factor), (torch.sigmoid,))  # at most 1/2: p - p^2 does not cancel
    return torch.addcmul(p, p, p, value=-1, out=p)


def bell_times(v: Tensor, x: Tensor, factor: float) -> Tensor:
    """``v * bell(x, factor)`` where nothing is recorded: two fused passes, each of which is accurate where it is small."""
    p = sigmoid_gate(v, x, 1 / factor)
    if p.shape != x.shape or p.dtype != x.dtype:
        return sigmoid_gate(p, x, -1 / factor)
    return torch.ops.aten.softplus_backward.grad_input(p, x, -factor, 60.0, grad_input=p)


def sech2(x: Tensor, factor: Any) -> Tensor:
    """The derivative of the hyperbolic tangent at ``x * factor``, by `bell`."""
    return bell(x, factor * 2) * 4


def normal(x: Tensor, deviation: Any) -> Tensor:
    """The normal density at ``x``."""
    t = torch.clamp(x / deviation, -_FAR, _FAR)
    return torch.exp(t * t * -0.5) / (deviation * math.sqrt(2 * math.pi))


def normal_integral(x: Tensor, deviation: Any) -> Tensor:
    """The integral of the normal density from 0."""
    return torch.erf(x / (deviation * math.sqrt(2))) * 0.5


def tanh(x: Any) -> Any:
    """The hyperbolic tangent of a number or a tensor."""
    return torch.tanh(x) if isinstance(x, Tensor) else math.tanh(x)


def exp(x: Any) -> Any:
    """The exponential of a number or a tensor."""
    return torch.exp(x) if isinstance(x, Tensor) else math.exp(x)
