r"""The curves of which every relaxation is made, as plain torch code that autograd may differentiate.

The sigmoid :math:`S(x; s)`, its derivative and its integral, for a softness :math:`s` in one of the modes

* ``smooth``: :math:`S = 1 / (1 + e^{-x/s})`;
* ``c0``, ``c1``, ``c2``: a polynomial in :math:`t = \operatorname{clamp}((x + w) / 2w, 0, 1)` with :math:`w = 5s`, constant
  beyond :math:`\pm w`, and none, one or two times continuously differentiable there: :math:`t`, :math:`3t^2 - 2t^3`,
  :math:`10t^3 - 15t^4 + 6t^5`.

All are written without the difference of large numbers, and stay finite, or right, at infinity. ``1 - S(x)`` is ``S(-x)``.
"""

import torch
from torch import Tensor

Softness = Tensor | float

SOFT_MODES = ("smooth", "c0", "c1", "c2")
MODES = ("hard", *SOFT_MODES)
# Beyond this many softnesses a smooth curve is what it is at infinity, in float64 too.
_FAR = 800.0


def sigmoid(x: Tensor, s: Softness, mode: str) -> Tensor:
    """S."""
    if mode == "smooth":
        return torch.sigmoid(x / s)
    t = _ramp(x, s)
    if mode == "c0":
        return t
    return t * t * (3 - 2 * t) if mode == "c1" else t * t * t * (t * (6 * t - 15) + 10)


def slope(x: Tensor, s: Softness, mode: str) -> Tensor:
    """S'."""
    if mode == "smooth":
        t = torch.sigmoid(x / s)
        return t * (1 - t) / s
    width = 10 * s
    if mode == "c0":
        # On a join the mean of both sides, as a difference quotient has it.
        a = x.abs()
        return ((a < 5 * s).to(x.dtype) + (a <= 5 * s).to(x.dtype)) / (2 * width)
    t = _ramp(x, s)
    t = t * (1 - t)
    return t * (6 / width) if mode == "c1" else t * t * (30 / width)


def softplus(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The integral of S from minus infinity."""
    if mode == "smooth":
        if isinstance(s, Tensor):
            return torch.nn.functional.softplus(x / s, threshold=50.0) * s
        return torch.nn.functional.softplus(x, 1 / s, 50.0)
    t, w = _ramp(x, s), 5 * s
    rest = torch.clamp(x - w, min=0)
    if mode == "c0":
        return t * t * w + rest
    return (t * t * t * (2 - t) if mode == "c1" else t * t * t * t * (t * (2 * t - 6) + 5)) * w + rest


def excess(x: Tensor, s: Softness, mode: str) -> Tensor:
    """What the integral of S has beyond max(x, 0): even in x, 0 far away. For values only: its derivative at 0 is not that."""
    a = -x.abs()
    return torch.log1p(torch.exp(a / s)) * s if mode == "smooth" else softplus(a, s, mode)


def odd(x: Tensor, s: Softness, mode: str) -> Tensor:
    """2S - 1, without cancellation near 0 in the polynomial modes."""
    if mode == "smooth":
        return torch.sigmoid(x / s) * 2 - 1
    u = near(x, s, mode) / (5 * s)
    if mode == "c0":
        return u
    v = u * u
    return u * (3 - v) * 0.5 if mode == "c1" else u * (v * (3 * v - 10) + 15) * 0.125


def near(x: Tensor, s: Softness, mode: str) -> Tensor:
    """x as far as S changes: finite at infinity, where it multiplies what is 0 there."""
    far = (_FAR if mode == "smooth" else 5.0) * s
    if isinstance(far, Tensor):
        return torch.minimum(torch.maximum(x, -far), far)
    return torch.clamp(x, -far, far)


def finite(x: Tensor) -> Tensor:
    """x, with the largest numbers in the place of infinities, at which a product rule would be infinity times 0."""
    largest = torch.finfo(x.dtype).max
    return torch.clamp(x, -largest, largest)


def from_below(x: Tensor, s: Softness) -> Tensor:
    """x, with a finite number in the place of minus infinity, where S is 0."""
    far = -_FAR * s
    return torch.maximum(x, far) if isinstance(far, Tensor) else torch.clamp(x, min=far)


def absolute(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The soft absolute value x (2S - 1)."""
    return x * odd(x, s, mode)


def absolute_slope(x: Tensor, s: Softness, mode: str) -> Tensor:
    """Its derivative, 2S - 1 + 2x S'."""
    return odd(x, s, mode) + 2 * near(x, s, mode) * slope(x, s, mode)


def absolute_by_softness(x: Tensor, s: Softness, mode: str) -> Tensor:
    """Its derivative with respect to the softness."""
    x = near(x, s, mode)
    return x * x * slope(x, s, mode) * (-2 / s)


def sigmoid_by_softness(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The derivative of S with respect to the softness. S is a function of x / s, hence -x S' / s."""
    return near(x, s, mode) * slope(x, s, mode) / -s


def softplus_by_softness(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The derivative of the integral with respect to the softness. It is s times a function of x / s."""
    x = near(x, s, mode)
    return (softplus(x, s, mode) - x * sigmoid(x, s, mode)) / s


def gated_slope(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The derivative of x S."""
    return sigmoid(x, s, mode) + near(x, s, mode) * slope(x, s, mode)


def gated_by_softness(x: Tensor, s: Softness, mode: str) -> Tensor:
    """The derivative of x S with respect to the softness."""
    return absolute_by_softness(x, s, mode) / 2


def gated_excess(x: Tensor, s: Softness, mode: str) -> Tensor:
    """What x S has beyond max(x, 0): even in x, and 0 far away. For values only, as `excess`."""
    a = -near(x, s, mode).abs()
    return a * sigmoid(a, s, mode)


def _ramp(x: Tensor, s: Softness) -> Tensor:
    """From 0 to 1 where S changes."""
    return torch.clamp((x + 5 * s) / (10 * s), 0, 1)
