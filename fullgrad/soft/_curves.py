r"""The curves of which every relaxation is made, as plain torch code that autograd may differentiate.

The sigmoid :math:`S(x; s)`, its derivative and its integral, for a softness :math:`s` in one of the modes

* ``smooth``: :math:`S = 1 / (1 + e^{-x/s})`;
* ``c0``, ``c1``, ``c2``: a polynomial in :math:`t = \operatorname{clamp}((x + w) / 2w, 0, 1)` with :math:`w = 5s`, constant
  beyond :math:`\pm w`, and none, one or two times continuously differentiable there: :math:`t`, :math:`3t^2 - 2t^3`,
  :math:`10t^3 - 15t^4 + 6t^5`.

All are written without the difference of large numbers, and stay finite, or right, at infinity. ``1 - S(x)`` is ``S(-x)``.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import can_reuse_buffers
from fullgrad.soft._half_precision import HALF

Softness = Tensor | float

SOFT_MODES = ("smooth", "c0", "c1", "c2")
MODES = ("hard", *SOFT_MODES)
# Beyond this many softnesses a smooth curve is what it is at infinity, in float64 too.
_FAR = 800.0


def sigmoid(x: Tensor, s: Softness, mode: str) -> Tensor:
    """S."""
    again = overwrites()
    if mode == "smooth":
        z = x / s
        return torch.sigmoid(z, out=again(z))
    t = _ramp(x, s)
    if mode == "c0":
        return t
    if mode == "c1":
        p = t * -2
        p = torch.add(p, 3, out=again(p))
    else:
        p = t * 6
        p = torch.sub(p, 15, out=again(p))
        p = torch.mul(p, t, out=again(p))
        p = torch.add(p, 10, out=again(p))
        p = torch.mul(p, t, out=again(p))
    p = torch.mul(p, t, out=again(p))
    return torch.mul(p, t, out=again(p))


def slope(x: Tensor, s: Softness, mode: str) -> Tensor:
    """S'."""
    again = overwrites()
    if mode == "smooth":
        z = x / s
        if torch.compiler.is_compiling():  # a choice costs less than an exponential, and its derivative at 0 may be either
            return _variance(torch.sigmoid(torch.where(z < 0, z, -z))) / s
        if again is _never:
            return torch.sigmoid(z) * torch.sigmoid(-z) / s
        return divided(_variance(_less_than_half(z)), s)
    width = 10 * s
    if mode == "c0":
        # On a join the mean of both sides, as a difference quotient has it.
        a = x.abs()
        return ((a < 5 * s).to(x.dtype) + (a <= 5 * s).to(x.dtype)) / (2 * width)
    p = _variance(_ramp(x, s))
    if mode == "c2":
        p = torch.mul(p, p, out=again(p))
    return torch.mul(p, (6 if mode == "c1" else 30) / width, out=again(p))


def has_fused_kernel(x: Tensor, s: Any, mode: str) -> bool:
    """Whether `gate` may stand in for steps in float32: in half precision, where nobody looks at the steps."""
    return mode == "smooth" and x.dtype in HALF and s.__class__ is float and 1e-6 < s < 1e6 and overwrites() is _always


def gate(v: Tensor, x: Tensor, s: Any) -> Tensor:
    """v S in smooth mode, of half precision, in one kernel that computes in float32 and rounds once. For -s it is v (1 - S)."""
    return torch.ops.aten.softplus_backward.default(v, x, 1 / s, 60.0)


def gate_slope(v: Tensor, x: Tensor, value: Tensor | None, s: Any) -> Tensor:
    """v S' likewise, from the value of S if it is at hand. Each factor is accurate where it is small, as 1 - value is not."""
    v = gate(v, x, -s)
    if value is None:
        return torch.mul(gate(v, x, s), 1 / s)
    return torch.addcmul(v.new_zeros(()), v, value, value=1 / s)


def softplus(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The integral of S from minus infinity."""
    if mode == "smooth":
        if isinstance(s, Tensor):
            return torch.nn.functional.softplus(x / s, threshold=50.0) * s
        return torch.nn.functional.softplus(x, 1 / s, 50.0)
    again = overwrites()
    rest = x - 5 * s
    rest = torch.clamp(rest, min=0, out=again(rest))
    p = _under_ramp(x, s, mode)
    return torch.add(p, rest, out=again(p))


def softplus_minus_relu(x: Tensor, s: Softness, mode: str) -> Tensor:
    """What the integral of S has beyond max(x, 0): even in x, 0 far away. For values only: its derivative at 0 is not that."""
    again = overwrites()
    a = x.abs()
    a = torch.neg(a, out=again(a))
    if mode != "smooth":
        return _under_ramp(a, s, mode)
    z = divided(a, s)
    z = torch.exp(z, out=again(z))
    z = torch.log1p(z, out=again(z))
    return torch.mul(z, s, out=again(z))


def soft_sign(x: Tensor, s: Softness, mode: str) -> Tensor:
    """2S - 1, without cancellation near 0 in the polynomial modes."""
    again = overwrites()
    if mode == "smooth":
        return _doubled_less_1(sigmoid(x, s, mode))
    u = clamp_to_transition(x, s, mode) / (5 * s)
    if mode == "c0":
        return u
    v = u * u
    if mode == "c1":
        p = torch.neg(v, out=again(v))
        p = torch.add(p, 3, out=again(p))
    else:
        p = v * 3
        p = torch.sub(p, 10, out=again(p))
        p = torch.mul(p, v, out=again(p))
        p = torch.add(p, 15, out=again(p))
    p = torch.mul(p, u, out=again(p))
    return torch.mul(p, 0.5 if mode == "c1" else 0.125, out=again(p))


def clamp_to_transition(x: Tensor, s: Softness, mode: str) -> Tensor:
    """x as far as S changes: finite at infinity, where it multiplies what is 0 there."""
    far = (_FAR if mode == "smooth" else 5.0) * s
    if isinstance(far, Tensor):
        return torch.minimum(torch.maximum(x, -far), far)
    return torch.clamp(x, -far, far)


def clamp_to_finite(x: Tensor) -> Tensor:
    """x, or where somebody differentiates products with it, in which infinity meets 0, the largest number for infinity."""
    if overwrites() is _always:
        return x
    largest = torch.finfo(x.dtype).max
    return torch.clamp(x, -largest, largest)


def absolute(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The soft absolute value x (2S - 1)."""
    return mul_into(x, soft_sign(x, s, mode))


def absolute_and_slope(x: Tensor, s: Softness, mode: str) -> tuple[Tensor, Tensor]:
    """It and its derivative, of which most is the same in smooth mode. x is finite."""
    if mode != "smooth":
        return absolute(x, s, mode), absolute_slope(x, s, mode)
    t, p = _smooth_gate(x, s)
    return mul_into(x, _doubled_less_1(t)), _doubled_less_1(p)


def absolute_slope(x: Tensor, s: Softness, mode: str) -> Tensor:
    """Its derivative, 2S - 1 + 2x S'."""
    again = overwrites()
    if mode == "smooth":
        return _doubled_less_1(gated_slope(x, s, mode))
    p = mul_into(clamp_to_transition(x, s, mode), slope(x, s, mode))
    p = torch.mul(p, 2, out=again(p))
    return torch.add(p, soft_sign(x, s, mode), out=again(p))


def absolute_by_softness(x: Tensor, s: Softness, mode: str) -> Tensor:
    """Its derivative with respect to the softness."""
    x = clamp_to_transition(x, s, mode)
    return x * x * slope(x, s, mode) * (-2 / s)


def gated(x: Tensor, s: Softness, mode: str) -> Tensor:
    """x S. Minus infinity is a finite number here, where S is 0."""
    far = -_FAR * s
    bounded = torch.maximum(x, far) if isinstance(far, Tensor) else torch.clamp(x, min=far)
    return mul_into(bounded, sigmoid(x, s, mode))


def gated_slope(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The derivative of x S, which is S + x S'."""
    again = overwrites()
    if mode != "smooth":
        p = mul_into(clamp_to_transition(x, s, mode), slope(x, s, mode))
        return torch.add(p, sigmoid(x, s, mode), out=again(p))
    return _smooth_gate(x, s)[1]


def gated_by_softness(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The derivative of x S with respect to the softness."""
    return absolute_by_softness(x, s, mode) / 2


def gated_minus_relu(x: Tensor, s: Softness, mode: str) -> Tensor:
    """What x S has beyond max(x, 0): even in x, and 0 far away. For values only, as `excess`."""
    a = -clamp_to_transition(x, s, mode).abs()
    return mul_into(a, sigmoid(a, s, mode))


def sigmoid_by_softness(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The derivative of S with respect to the softness. S is a function of x / s, hence -x S' / s."""
    return clamp_to_transition(x, s, mode) * slope(x, s, mode) / -s


def softplus_by_softness(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The derivative of the integral with respect to the softness. It is s times a function of x / s."""
    x = clamp_to_transition(x, s, mode)
    return (softplus(x, s, mode) - x * sigmoid(x, s, mode)) / s


def slope_of(v: Tensor, value: Tensor, s: Softness) -> Tensor:
    """v S' in smooth mode, from the value of S."""
    return divided(torch.ops.aten.sigmoid_backward.default(v, value), s)


def gated_slope_times(v: Tensor, x: Tensor, s: Softness, mode: str) -> Tensor:
    """v times the derivative of x S; in smooth mode that of SiLU."""
    if mode != "smooth" or overwrites() is _never:
        return mul_into(v, gated_slope(x, s, mode))
    # One fused kernel, which torch does not differentiate.
    return torch.ops.aten.silu_backward.default(v, divided(clamp_to_transition(x, s, mode), s))


def absolute_slope_times(v: Tensor, x: Tensor, s: Softness, mode: str) -> Tensor:
    """v times the derivative of the soft absolute value, which is that of 2 x S - x."""
    if mode != "smooth" or overwrites() is _never:
        return mul_into(v, absolute_slope(x, s, mode))
    p = gated_slope_times(v, x, s, mode)
    p = torch.mul(p, 2, out=p)
    return p - v


def slope_times(v: Tensor, x: Tensor, s: Softness, mode: str) -> Tensor:
    """v S'."""
    if mode != "smooth" or overwrites() is _never:
        return mul_into(v, slope(x, s, mode))
    return slope_of(v, _less_than_half(x / s), s)


def divided(fresh: Tensor, s: Softness) -> Tensor:
    """A temporary over a softness."""
    return torch.div(fresh, s, out=None if isinstance(s, Tensor) else overwrites()(fresh))


def mul_into(v: Tensor, fresh: Tensor) -> Tensor:
    """A product in the place of its second factor, where that is a temporary of its shape."""
    fits = v.shape == fresh.shape and v.dtype == fresh.dtype
    return torch.mul(v, fresh, out=overwrites()(fresh) if fits else None)


def overwrites() -> Callable[[Tensor], Tensor | None]:
    """What gives an elementwise step its ``out``: a temporary that it may overwrite, or None where somebody looks at the steps.

    New memory costs more than the arithmetic: a polynomial of ten steps takes a quarter of the time in its own place.
    """
    return _always if can_reuse_buffers() else _never


def _always(temporary: Tensor) -> Tensor:
    return temporary


def _never(temporary: Tensor) -> None:
    return None


def _variance(t: Tensor) -> Tensor:
    """t (1 - t)."""
    return mul_into(t, 1 - t)


def _doubled_less_1(t: Tensor) -> Tensor:
    """2t - 1, of a temporary."""
    again = overwrites()
    t = torch.mul(t, 2, out=again(t))
    return torch.sub(t, 1, out=again(t))


def _smooth_gate(x: Tensor, s: Softness) -> tuple[Tensor, Tensor]:
    """S and S + x S' in smooth mode."""
    again = overwrites()
    z = divided(clamp_to_transition(x, s, "smooth"), s)
    t = torch.sigmoid(z)
    p = torch.mul(z, t, out=again(z))
    p = mul_into(p, 1 - t)
    return t, torch.add(p, t, out=again(p))


def _less_than_half(z: Tensor) -> Tensor:
    """The sigmoid of a temporary, or what it lacks to 1: the one of which S' is a product without cancellation."""
    z = torch.abs(z, out=z)
    z = torch.neg(z, out=z)
    return torch.sigmoid(z, out=z)


def _ramp(x: Tensor, s: Softness) -> Tensor:
    """From 0 to 1 where S changes."""
    again = overwrites()
    t = x + 5 * s
    t = torch.div(t, 10 * s, out=again(t))
    return torch.clamp(t, 0, 1, out=again(t))


def _under_ramp(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The integral of S in a polynomial mode up to the upper join."""
    again = overwrites()
    t = _ramp(x, s)
    if mode == "c0":
        p = t * (5 * s)
        return torch.mul(p, t, out=again(p))
    if mode == "c1":
        p = 2 - t
    else:
        p = t * 2
        p = torch.sub(p, 6, out=again(p))
        p = torch.mul(p, t, out=again(p))
        p = torch.add(p, 5, out=again(p))
        p = torch.mul(p, t, out=again(p))
    for _ in range(3):
        p = torch.mul(p, t, out=again(p))
    return torch.mul(p, 5 * s, out=again(p))
