r"""The curves behind every relaxation, in plain torch code that autograd can differentiate.

The sigmoid :math:`S(x; s)`, its derivative and its integral, for a softness :math:`s` in one of the modes

* ``smooth``: :math:`S = 1 / (1 + e^{-x/s})`;
* ``c0``, ``c1``, ``c2``: a polynomial in :math:`t = \operatorname{clamp}((x + w) / 2w, 0, 1)` with :math:`w = 5s`, constant
  beyond :math:`\pm w`, and zero, one or two times continuously differentiable there: :math:`t`, :math:`3t^2 - 2t^3`,
  :math:`10t^3 - 15t^4 + 6t^5`;
* ``laplace``, for steps alone: :math:`S = \frac12 e^{x/s}` below 0 and :math:`1 - \frac12 e^{-x/s}` above.

All avoid differences of large numbers, and are right at infinity. ``1 - S(x)`` is ``S(-x)``.
"""

import torch
from torch import Tensor

from fullgrad._core.fast import if_recorded
from fullgrad._core.pieces import pointwise
from fullgrad._core.windows import compared, sigmoid_gate

Softness = Tensor | float

# Between these bounds the reciprocal of a softness is finite and normal in float32 too, as torch's kernels need.
SMALLEST, LARGEST = 1e-30, 1e30

# Coefficients, the highest power first. With u = x / 5s: S and its integral are polynomials in t, 2S - 1 is u times one in u^2.
# The last two are to be multiplied by their scales, the integral by s as well.
_SIGMOID = {"c1": (-2, 3, 0, 0), "c2": (6, -15, 10, 0, 0, 0)}
_INTEGRAL = {"c0": (1, 0, 0), "c1": (1, -2, 0, 0, 0), "c2": (2, -6, 5, 0, 0, 0, 0)}
_INTEGRAL_SCALE = {"c0": 5, "c1": -5, "c2": 5}
_SIGN = {"c1": (1, -3), "c2": (3, -10, 15)}
_SIGN_SCALE = {"c1": -0.5, "c2": 0.125}
# Beyond this many softnesses a smooth curve has its limit at infinity, in float64 too.
_FAR = 800.0
_UNBOUNDED_MODES = ("smooth", "laplace")


def sigmoid(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The sigmoid S."""
    if mode == "smooth":
        return torch.sigmoid(x / s)
    if mode == "laplace":
        z = x / s
        tail = torch.exp(-z.abs()) / 2
        return torch.where(z < 0, tail, 1 - tail)
    t = _ramp(x, s)
    return t if mode == "c0" else _in_range(_polynomial(t, _SIGMOID[mode]), mode)


def slope(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The slope S'."""
    if mode == "smooth":  # S (1 - S), each accurate where it is small
        z = x / s
        return torch.sigmoid(z) * torch.sigmoid(-z) / s
    if mode == "laplace":  # with a kink at 0, where its own slope counts as 0
        return torch.exp(-(x / s).abs()) / (2 * s)
    width = 10 * s
    if mode == "c0":
        # The mean of both sides on a join, as in a central difference.
        a = x.abs()
        return (compared(torch.lt, a, 5 * s) + compared(torch.le, a, 5 * s)) / (2 * width)
    t = _ramp(x, s)
    p = t * (1 - t)
    return p * (6 / width) if mode == "c1" else p * p * (30 / width)


@pointwise
def slope_times(v: Tensor, x: Tensor, s: Softness, mode: str, factor: float = 1) -> Tensor:
    """v S' times a factor."""
    if mode in _UNBOUNDED_MODES and isinstance(s, Tensor):  # by which the slope is differentiated
        x = clamp_to_transition(x, s, mode)
    if mode == "smooth":
        return sigmoid_gate(sigmoid_gate(v, x, s), x, -s) / (s / factor)
    return (v if factor == 1 else v * factor) * slope(x, s, mode)


def right_slope_times(v: Tensor, x: Tensor, s: Softness, mode: str, factor: float) -> Tensor:
    """`slope_times` for x >= 0, where in smooth mode S' = p (1 - p) / s is accurate with p = S(-x)."""
    if mode != "smooth":
        return slope_times(v, x, s, mode, factor)
    if isinstance(s, Tensor):  # by which the slope is differentiated
        x = clamp_to_transition(x, s, mode)
    return torch.ops.aten.sigmoid_backward.default(v, torch.sigmoid(x / -s)) / (s / factor)


def softplus(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The integral of S from minus infinity."""
    if mode != "smooth":
        return torch.clamp(x - 5 * s, 0) + _integral_to_join(x, s, mode)
    if isinstance(s, Tensor):
        return torch.nn.functional.softplus(x / s, threshold=50.0) * s
    return torch.nn.functional.softplus(x, 1 / s, 50.0)


def relu_minus_softplus(x: Tensor, s: Softness, mode: str) -> Tensor:
    """max(x, 0) less the integral of S: even in x, 0 far away. For values only: autograd's derivative at 0 is wrong."""
    a = x.abs()
    # softplus(a, -s) is -softplus(-a, s)
    return softplus(a, -s, mode) if mode == "smooth" else -_integral_to_join(-a, s, mode)


def soft_sign(x: Tensor, s: Softness, mode: str) -> Tensor:
    """2S - 1, without cancellation near 0."""
    if mode == "smooth":
        return torch.tanh(x / (2 * s))
    u = clamp_to_transition(x, s, mode) / (5 * s)
    return u if mode == "c0" else _in_range(_polynomial(u * u, _SIGN[mode]) * u * _SIGN_SCALE[mode], mode)


def clamp_to_transition(x: Tensor, s: Softness, mode: str) -> Tensor:
    """x clamped to where S changes: finite at infinity, for products with factors that are 0 there."""
    far = (_FAR if mode in _UNBOUNDED_MODES else 5.0) * s
    if isinstance(far, Tensor):
        return torch.minimum(torch.maximum(x, -far), far)
    return torch.clamp(x, -far, far)


def clamp_to_finite(x: Tensor) -> Tensor:
    """x, with infinity as the largest number where its products are differentiated: infinity times 0 occurs there."""
    largest = torch.finfo(x.dtype).max
    return if_recorded(torch.clamp, x, -largest, largest)


def absolute(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The soft absolute value x (2S - 1)."""
    return x * soft_sign(x, s, mode)


def absolute_slope(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The derivative of the soft absolute value, 2S - 1 + 2x S'."""
    return _sign_and_absolute_slope(x, s, mode)[1]


def absolute_and_slope(x: Tensor, s: Softness, mode: str) -> tuple[Tensor, Tensor]:
    """The soft absolute value and its derivative, which share steps. ``x`` is finite where it is differentiated."""
    t, derivative = _sign_and_absolute_slope(x, s, mode)
    return x * t, derivative


def _sign_and_absolute_slope(x: Tensor, s: Softness, mode: str) -> tuple[Tensor, Tensor]:
    near = clamp_to_transition(x, s, mode)
    if mode != "smooth":
        t = soft_sign(x, s, mode)
        return t, t + near * slope(x, s, mode) * 2
    z = near / (2 * s)
    t = torch.tanh(z)
    return t, t + torch.ops.aten.tanh_backward.default(z, t)  # 2S' is (1 - t^2) / 2s


def absolute_by_softness(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The derivative of the soft absolute value with respect to the softness."""
    near = clamp_to_transition(x, s, mode)
    # Squares of x may overflow.
    return (near / s) * (near * _slope_near(near, x, s, mode)) * -2


def gated(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The product x S. Minus infinity counts as a finite number, since S is 0 there."""
    far = -_FAR * s
    bounded = torch.maximum(x, far) if isinstance(far, Tensor) else torch.clamp(x, min=far)
    return bounded * sigmoid(x, s, mode)


def gated_slope(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The derivative of x S, S + x S'."""
    near = clamp_to_transition(x, s, mode)
    if mode != "smooth":
        return sigmoid(x, s, mode) + near * slope(x, s, mode)
    z = near / s
    t = torch.sigmoid(z)
    return t + torch.ops.aten.sigmoid_backward.default(z, t)  # S' is t (1 - t) / s


def gated_slope_times(v: Tensor, x: Tensor, s: Softness, mode: str) -> Tensor:
    """v times the derivative of x S."""
    return v * gated_slope(x, s, mode)


def gated_by_softness(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The derivative of x S with respect to the softness."""
    return absolute_by_softness(x, s, mode) / 2


def relu_minus_gated(x: Tensor, s: Softness, mode: str) -> Tensor:
    """max(x, 0) less x S: even in x, 0 far away. For values only, as `relu_minus_softplus`."""
    a = clamp_to_transition(x, s, mode).abs()
    return a * sigmoid(-a, s, mode)


def sigmoid_by_softness(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The derivative of S with respect to the softness: -x S' / s, as S is a function of x / s."""
    near = clamp_to_transition(x, s, mode)
    return near * _slope_near(near, x, s, mode) / -s


def _slope_near(near: Tensor, x: Tensor, s: Softness, mode: str) -> Tensor:
    """The slope at x clamped, as that of x / s may overflow far away; in c0 at x itself: it is not 0 on the joins."""
    return slope(near if mode in _UNBOUNDED_MODES else x, s, mode)


@pointwise
def sigmoid_by_softness_times(v: Tensor, x: Tensor, s: Softness, mode: str, factor: float = 1) -> Tensor:
    """v times the derivative of S with respect to the softness, times a factor."""
    return (v if factor == 1 else v * factor) * sigmoid_by_softness(x, s, mode)


def softplus_by_softness(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The derivative of the integral of S with respect to the softness. The integral is s times a function of x / s."""
    x = clamp_to_transition(x, s, mode)
    return (softplus(x, s, mode) - x * sigmoid(x, s, mode)) / s


def _polynomial(t: Tensor, coefficients: tuple[int, ...]) -> Tensor:
    """A polynomial by Horner's rule."""
    lead, second, *rest = coefficients
    p = (t if lead == 1 else t * lead) + second if second else t * lead
    for c in rest:
        p = p * t + c if c else p * t
    return p


def _in_range(p: Tensor, mode: str) -> Tensor:
    """A value clamped to [-1, 1]: the terms of c2 are so large that rounding exceeds 1."""
    return torch.clamp(p, -1, 1) if mode == "c2" else p


def _ramp(x: Tensor, s: Softness) -> Tensor:
    """The ramp t, from 0 to 1 where S changes."""
    if isinstance(s, Tensor):  # infinity over the softness, times 0, is in derivatives with respect to it
        far = 10 * s.detach()
        x = if_recorded(torch.clamp, x, -far, far)
    return torch.clamp((x + 5 * s) / (10 * s), 0, 1)


def _integral_to_join(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The integral of S in a polynomial mode up to the upper join."""
    return _polynomial(_ramp(x, s), _INTEGRAL[mode]) * (_INTEGRAL_SCALE[mode] * s)
