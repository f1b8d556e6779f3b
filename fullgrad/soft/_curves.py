r"""The curves behind every relaxation, in plain torch code that autograd can differentiate.

The sigmoid :math:`S(x; s)`, its derivative and its integral, for a softness :math:`s` in one of the modes

* ``smooth``: :math:`S = 1 / (1 + e^{-x/s})`;
* ``c0``, ``c1``, ``c2``: a polynomial in :math:`t = \operatorname{clamp}((x + w) / 2w, 0, 1)` with :math:`w = 5s`, constant
  beyond :math:`\pm w`, and zero, one or two times continuously differentiable there: :math:`t`, :math:`3t^2 - 2t^3`,
  :math:`10t^3 - 15t^4 + 6t^5`;
* ``laplace``, for steps alone: :math:`S = \frac12 e^{x/s}` below 0 and :math:`1 - \frac12 e^{-x/s}` above.

All avoid differences of large numbers, and are right at infinity. ``1 - S(x)`` is ``S(-x)``.
"""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core.buffers import apply_steps, mul_into, number_for, operand
from fullgrad._core.opmath import HALF
from fullgrad._core.windows import sigmoid_gate
from fullgrad._dispatch import can_record_in_place, can_reuse_buffers, is_compiling

Softness = Tensor | float

# Between these bounds the reciprocal of a softness is finite and normal in float32 too, as torch's kernels need.
SMALLEST, LARGEST = 1e-30, 1e30

# Coefficients, the highest power first. With u = x / 5s: S and its integral are polynomials in t, 2S - 1 is u times one in u^2.
# The last two are to be multiplied by their scales, the integral by s as well.
_SIGMOID = {"c1": (-2, 3, 0, 0), "c2": (6, -15, 10, 0, 0, 0)}
_INTEGRAL = {"c1": (1, -2, 0, 0, 0), "c2": (2, -6, 5, 0, 0, 0, 0)}
_INTEGRAL_SCALE = {"c1": -5, "c2": 5}
_SIGN = {"c1": (1, -3), "c2": (3, -10, 15)}
_SIGN_SCALE = {"c1": -0.5, "c2": 0.125}
# Beyond this many softnesses a smooth curve has its limit at infinity, in float64 too.
_FAR = 800.0
_UNBOUNDED_MODES = ("smooth", "laplace")


def recorded_sigmoid(x: Tensor, s: Softness, is_temporary: bool = False) -> Tensor:
    """S in smooth mode, recorded by autograd: torch computes the derivative from the value and saves nothing else."""
    if can_record_in_place(x):
        return (x.div_(s) if is_temporary else x / s).sigmoid_()
    return torch.sigmoid(x / s)


def sigmoid(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The sigmoid S."""
    if mode == "smooth":
        if not can_reuse_buffers():
            return torch.sigmoid(x / s)
        z = x / number_for(x, s)
        return torch.sigmoid(z, out=z)
    if mode == "laplace":
        z = x / s
        tail = torch.exp(-z.abs()) / 2
        return torch.where(z < 0, tail, 1 - tail)
    t = _ramp(x, s)
    return t if mode == "c0" else _in_range(_polynomial(t, _SIGMOID[mode]), mode)


def slope(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The slope S'."""
    if mode == "laplace":  # with a kink at 0, where its own slope counts as 0
        return torch.exp(-(x / s).abs()) / (2 * s)
    if mode == "smooth":
        z = x / s
        if is_compiling():  # a choice costs less than an exponential; at 0 both branches are right
            return _variance(torch.sigmoid(torch.where(z < 0, z, -z))) / s
        if not can_reuse_buffers():
            return torch.sigmoid(z) * torch.sigmoid(-z) / s
        return divided(_variance(_sigmoid_of_minus_abs(z)), s)
    width = 10 * s
    if mode == "c0":
        # The mean of both sides on a join, as in a central difference.
        a = x.abs()
        if not isinstance(s, Tensor) and can_reuse_buffers():  # torch converts bools slowly
            inside = torch.lt(a, 5 * s, out=torch.empty_like(a))
            return apply_steps(torch.le(a, 5 * s, out=a), (torch.add, inside), (torch.div, 2 * width))
        return ((a < 5 * s).to(x.dtype) + (a <= 5 * s).to(x.dtype)) / (2 * width)
    p = _variance(_ramp(x, s))
    return apply_steps(p, (torch.mul, 6 / width)) if mode == "c1" else apply_steps(p, (torch.mul, p), (torch.mul, 30 / width))


def has_fused_kernel(x: Tensor, s: Any, mode: str) -> bool:
    """Whether `sigmoid_gate` can replace several float32 steps: in half precision, where no step is recorded."""
    return mode == "smooth" and x.dtype in HALF and s.__class__ is float and 1e-6 < s < 1e6 and can_reuse_buffers()


def gate_slope(v: Tensor, x: Tensor, value: Tensor | None, s: Any) -> Tensor:
    """v S' where `has_fused_kernel`, from S if ``value`` is given. Each factor is accurate where it is small, unlike 1 - S."""
    v = sigmoid_gate(v, x, -s)
    if value is None:
        return torch.mul(sigmoid_gate(v, x, s), 1 / s)
    return torch.addcmul(v.new_zeros(()), v, value, value=1 / s)


def softplus(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The integral of S from minus infinity."""
    if mode == "smooth":
        if isinstance(s, Tensor):
            return torch.nn.functional.softplus(x / s, threshold=50.0) * s
        return torch.nn.functional.softplus(x, 1 / s, 50.0)
    return apply_steps(x - 5 * s, (torch.clamp, 0), (torch.add, _integral_to_join(x, s, mode)))


def relu_minus_softplus(x: Tensor, s: Softness, mode: str) -> Tensor:
    """max(x, 0) less the integral of S: even in x, 0 far away. For values only: autograd's derivative at 0 is wrong.

    ``x`` is a temporary that may be overwritten.
    """
    reuse = can_reuse_buffers()
    a = torch.abs(x, out=x if reuse else None)
    if mode == "smooth":  # softplus(a, -s) is -softplus(-a, s)
        if reuse and not isinstance(s, Tensor):
            return torch.nn.functional.softplus(a, -1 / s, 50.0, out=a)  # pyright: ignore[reportCallIssue]
        return softplus(a, -s, mode)
    r = _integral_to_join(torch.neg(a, out=a if reuse else None), s, mode)
    return torch.neg(r, out=r if reuse else None)


def soft_sign(x: Tensor, s: Softness, mode: str) -> Tensor:
    """2S - 1, without cancellation near 0 in the polynomial modes."""
    if mode == "smooth":
        return _twice_minus_1(sigmoid(x, s, mode))
    u = clamp_to_transition(x, s, mode) / (5 * s)
    return u if mode == "c0" else _in_range(_polynomial(u * u, _SIGN[mode], u, _SIGN_SCALE[mode]), mode)


def clamp_to_transition(x: Tensor, s: Softness, mode: str) -> Tensor:
    """x clamped to where S changes: finite at infinity, for products with factors that are 0 there."""
    far = (_FAR if mode in _UNBOUNDED_MODES else 5.0) * s
    if isinstance(far, Tensor):
        return torch.minimum(torch.maximum(x, -far), far)
    return torch.clamp(x, -far, far)


def clamp_to_finite(x: Tensor) -> Tensor:
    """x, with infinity as the largest number where its products are differentiated: infinity times 0 occurs there."""
    if can_reuse_buffers():
        return x
    largest = torch.finfo(x.dtype).max
    return torch.clamp(x, -largest, largest)


def absolute(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The soft absolute value x (2S - 1)."""
    return mul_into(x, soft_sign(x, s, mode))


def half_absolute(x: Tensor, s: Softness) -> Tensor:
    """Half the soft absolute value in smooth mode, x (S - 1/2), as a new tensor; for code that autograd does not record."""
    z = x / number_for(x, s)
    return z.sigmoid_().sub_(number_for(z, 0.5)).mul_(x)


def absolute_and_slope(x: Tensor, s: Softness, mode: str) -> tuple[Tensor, Tensor]:
    """The soft absolute value and its derivative, which share most steps in smooth mode. ``x`` is finite."""
    if mode != "smooth":
        return absolute(x, s, mode), absolute_slope(x, s, mode)
    t, p = _sigmoid_and_gated_slope(x, s)
    return mul_into(x, _twice_minus_1(t)), _twice_minus_1(p)


def absolute_slope(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The derivative of the soft absolute value, 2S - 1 + 2x S'."""
    if mode == "smooth":
        return _twice_minus_1(gated_slope(x, s, mode))
    p = mul_into(clamp_to_transition(x, s, mode), slope(x, s, mode))
    return apply_steps(p, (torch.mul, 2), (torch.add, soft_sign(x, s, mode)))


def absolute_by_softness(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The derivative of the soft absolute value with respect to the softness."""
    near = clamp_to_transition(x, s, mode)
    # Squares of x may overflow. The slope is taken at x itself: in c0 it is not 0 on the joins.
    return (near / s) * (near * slope(x, s, mode)) * -2


def gated(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The product x S. Minus infinity counts as a finite number, since S is 0 there."""
    far = -_FAR * s
    bounded = torch.maximum(x, far) if isinstance(far, Tensor) else torch.clamp(x, min=far)
    return mul_into(bounded, sigmoid(x, s, mode))


def gated_slope(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The derivative of x S, S + x S'."""
    if mode == "smooth":
        return _sigmoid_and_gated_slope(x, s)[1]
    p = mul_into(clamp_to_transition(x, s, mode), slope(x, s, mode))
    return apply_steps(p, (torch.add, sigmoid(x, s, mode)))


def gated_by_softness(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The derivative of x S with respect to the softness."""
    return absolute_by_softness(x, s, mode) / 2


def relu_minus_gated(x: Tensor, s: Softness, mode: str) -> Tensor:
    """max(x, 0) less x S: even in x, 0 far away. For values only, as `relu_minus_softplus`."""
    a = clamp_to_transition(x, s, mode).abs()
    return mul_into(a, sigmoid(a, -s, mode) if mode == "smooth" else sigmoid(-a, s, mode))


def sigmoid_by_softness(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The derivative of S with respect to the softness: -x S' / s, as S is a function of x / s."""
    return clamp_to_transition(x, s, mode) * slope(x, s, mode) / -s


def softplus_by_softness(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The derivative of the integral of S with respect to the softness. The integral is s times a function of x / s."""
    x = clamp_to_transition(x, s, mode)
    return (softplus(x, s, mode) - x * sigmoid(x, s, mode)) / s


def slope_of(v: Tensor, value: Tensor, s: Softness) -> Tensor:
    """v S' in smooth mode, from the value of S."""
    return divided(torch.ops.aten.sigmoid_backward.default(v, value), s)


def gated_slope_times(v: Tensor, x: Tensor, s: Softness, mode: str) -> Tensor:
    """v times the derivative of x S, in smooth mode the derivative of SiLU."""
    if mode != "smooth" or not can_reuse_buffers():
        return mul_into(v, gated_slope(x, s, mode))
    # One fused kernel, which torch does not differentiate.
    z = x / number_for(x, s)
    return torch.ops.aten.silu_backward.default(v, torch.clamp(z, -_FAR, _FAR, out=z))


def absolute_slope_times(v: Tensor, x: Tensor, s: Softness, mode: str) -> Tensor:
    """v times the derivative of the soft absolute value 2 x S - x."""
    if mode != "smooth" or not can_reuse_buffers():
        return mul_into(v, absolute_slope(x, s, mode))
    p = gated_slope_times(v, x, s, mode)
    return torch.lerp(v, p, 2.0) if v.dtype == p.dtype else p * 2 - v


def slope_times(v: Tensor, x: Tensor, s: Softness, mode: str, factor: float = 1) -> Tensor:
    """v S' times a factor."""
    if has_gate(s, mode):  # S (1 - S), each accurate where it is small
        return divided(sigmoid_gate(sigmoid_gate(v, x, s), x, -s), s / factor)
    if mode != "smooth" or not can_reuse_buffers():
        return mul_into(v if factor == 1 else v * factor, slope(x, s, mode))
    z = divided(x.abs(), -s)
    return slope_of(v, torch.sigmoid(z, out=z), s / factor)


def has_gate(s: Softness, mode: str) -> bool:
    """Whether `sigmoid_gate` computes the smooth S: in eager code alone, since a compiler fuses the steps anyway."""
    return mode == "smooth" and isinstance(s, float) and SMALLEST < s < LARGEST and not is_compiling()


def divided(temporary: Tensor, s: Softness) -> Tensor:
    """A temporary over a softness, in the buffer of the temporary where the shape surely fits."""
    if isinstance(s, Tensor) or not can_reuse_buffers():
        return torch.div(temporary, s)
    return torch.div(temporary, number_for(temporary, s), out=temporary)


def _polynomial(t: Tensor, coefficients: tuple[int, ...], *factors: Softness) -> Tensor:
    """A polynomial of a temporary by Horner's rule, times factors. ``t`` is overwritten if it is read only once."""
    reuse = can_reuse_buffers()
    lead, second, *rest = coefficients
    p = t if lead == 1 else t * lead
    p = torch.add(p, second, out=p if reuse and not (rest and p is t) else None)
    for c in rest:
        p = torch.mul(p, t, out=p if reuse else None)
        if c != 0:
            p = torch.add(p, c, out=p if reuse else None)
    for factor in factors:
        p = torch.mul(p, factor, out=p if reuse else None)
    return p


def _in_range(p: Tensor, mode: str) -> Tensor:
    """A temporary clamped to [-1, 1]: the terms of c2 are so large that rounding exceeds 1."""
    return apply_steps(p, (torch.clamp, -1, 1)) if mode == "c2" else p


def _variance(t: Tensor) -> Tensor:
    """The product t (1 - t)."""
    return mul_into(t, operand(t, 1.0) - t)


def _twice_minus_1(t: Tensor) -> Tensor:
    # The one operation that takes both numbers.
    return torch.rsub(t, operand(t, -1.0), alpha=-2)


def _sigmoid_and_gated_slope(x: Tensor, s: Softness) -> tuple[Tensor, Tensor]:
    """S and S + x S' in smooth mode."""
    z = divided(clamp_to_transition(x, s, "smooth"), s)
    t = torch.sigmoid(z)
    p = torch.ops.aten.sigmoid_backward.default(z, t)  # z t (1 - t)
    return t, torch.add(p, t, out=p if can_reuse_buffers() else None)


def _sigmoid_of_minus_abs(z: Tensor) -> Tensor:
    """The smaller of S and 1 - S, of a temporary that may be overwritten: S' is their product, without cancellation."""
    for function in (torch.abs, torch.neg, torch.sigmoid):
        z = function(z, out=z)
    return z


def _ramp(x: Tensor, s: Softness) -> Tensor:
    """The ramp t, from 0 to 1 where S changes."""
    reuse = can_reuse_buffers()
    t = x + 5 * s
    t = torch.div(t, 10 * s, out=t if reuse else None)
    return torch.clamp(t, 0, 1, out=t if reuse else None)


def _integral_to_join(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The integral of S in a polynomial mode up to the upper join."""
    t = _ramp(x, s)
    if mode == "c0":
        return apply_steps(t * (5 * s), (torch.mul, t))
    return _polynomial(t, _INTEGRAL[mode], _INTEGRAL_SCALE[mode] * s)
