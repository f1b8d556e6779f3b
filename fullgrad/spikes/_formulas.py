"""Formulas that several surrogates share, as plain torch code that autograd may differentiate."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fullgrad._core.fast import replaceable
from fullgrad._core.windows import where_between, where_inside, where_positive
from fullgrad._dispatch import at_least

# The number of standard deviations beyond which a normal density is 0, in float64 too.
_FAR = 60.0


# The number of widths beyond which an exponential is 0, in float64 too.
NO_EXPONENTIAL = 800.0


@replaceable
def clamp_to_finite(u: Tensor, factor: Any, reach: float = math.inf) -> Tensor:
    """``u`` clamped so that its product with a factor is finite: in derivatives of slopes, infinity would be multiplied by 0.

    Beyond the bound, a quarter of the largest number, whose inverse is a normal number, every slope equals its value at infinity.
    An infinite factor would make it 0. ``reach`` is a smaller bound of the product, if slopes have that value from there on.
    """
    largest = torch.finfo(u.dtype).max / 4
    reach = min(reach, largest)
    if isinstance(factor, Tensor):
        return clamp_within(u, reach / torch.clamp(factor.detach().to(u.dtype), reach / largest, largest))
    return clamp_within(u, reach / at_least(factor, reach / largest))


@replaceable
def nearness(distance: Callable[[Tensor, Tensor], Tensor], u: Tensor, inverse_width: Any, width: float = 1.0) -> Tensor:
    """``b / distance(u, b)`` for the width ``b = width / inverse_width``, where ``distance`` is homogeneous: from 1 down to 0."""
    u, b, _ = in_units(u, inverse_width, width)
    return b / distance(u, b)


def in_units(u: Tensor, inverse_width: Any, width: float = 1.0) -> tuple[Tensor, Tensor, Any]:
    """``u`` and the width ``width / inverse_width``, in a unit; and the inverse of the unit, a constant.

    The unit is 1 if no derivative could over- or underflow on its way: a billion widths if these are tiny, as at the threshold a
    derivative is multiplied by 0; and a width above 1 that has a derivative itself.
    """
    largest = torch.finfo(u.dtype).max / 4
    if not isinstance(inverse_width, Tensor):
        per_unit = at_least(inverse_width * 1e-9, 1.0)
        # Not 0 and not infinite, for numbers that the dtype does not have.
        b = at_least(-at_least(-width / inverse_width, -largest) * per_unit, 1 / largest)
        u = u if per_unit.__class__ is float and per_unit == 1.0 else u * per_unit
        return u, torch.full((), b, dtype=u.dtype, device=u.device), per_unit
    largest = min(largest, torch.finfo(inverse_width.dtype).max / 4)
    constant = torch.clamp(inverse_width.detach(), 1 / largest, largest)
    per_unit = torch.maximum(constant * 1e-9, torch.clamp(constant, max=1))
    return u * per_unit, torch.clamp(per_unit * width / inverse_width, 1 / largest, largest), per_unit


def by_sum(u: Tensor, b: Tensor) -> Tensor:
    """A distance from 0 with a corner there."""
    return u.abs() + b


def times(v: Tensor, q: Tensor, count: int) -> Tensor:
    """``v * q ** count``, without a power, which would be 0 before the product is."""
    for _ in range(count):
        v = v * q
    return v


def clamp_within(u: Tensor, bound: Any) -> Tensor:
    """``u`` clamped to plus and minus a bound, which is a constant."""
    if not isinstance(bound, Tensor):
        least = at_least(-bound, torch.finfo(u.dtype).min)  # torch refuses a number that the dtype does not have
        return torch.clamp(u, least, -least)
    # The forward derivative of a maximum adds and subtracts the derivative of the bound, which may be huge.
    bound = bound.detach().to(u.dtype)
    return torch.minimum(torch.maximum(u, -bound), bound)


def where_right(g: Tensor, u: Tensor, tie: float) -> Tensor:
    """``g`` where ``u`` is positive, ``tie * g`` where it is 0; else 0, also where ``u`` is NaN."""
    if tie not in (0.0, 1.0):
        return (where_right(g, u, 1.0) + where_right(g, u, 0.0)) * 0.5
    return where_between(g, u, 0.0, None) if tie else where_inside(g, u, 0.0, None)


def where_left(g: Tensor, u: Tensor, tie: float) -> Tensor:
    """``g`` less `where_right` of it, also where ``g`` is infinite; ``g`` where ``u`` is NaN."""
    if tie not in (0.0, 1.0):
        return (where_left(g, u, 1.0) + where_left(g, u, 0.0)) * 0.5
    return where_positive(g, ~(u >= 0 if tie else u > 0))


@replaceable
def right_or_left(right: Tensor, left: Tensor, u: Tensor, tie: float) -> Tensor:
    """The sum of `where_right` and `where_left`, of finite numbers."""
    return where_right(right, u, tie) + where_left(left, u, tie)


@replaceable
def saturating(x: Tensor, k: Any) -> Tensor:
    """``x / (1 + k abs(x))`` for ``k`` that is not negative, and products that are finite.

    Far out the quotient has the derivative ``n - k abs(x) n^2 = n^2`` with ``n = 1 / (1 + k abs(x))``, which cancels; that of
    ``1 - n`` does not.
    """
    z = x.abs() * k
    n, far = torch.reciprocal(1 + z), z > 1
    limit = torch.where(far, k, 1.0)
    return torch.where(far, torch.sign(x) * (1 - n) / limit, x * n)


def one_less_exp(x: Tensor) -> Tensor:
    """``1 - exp(-x)`` for ``x`` that is not negative. torch's derivative of ``expm1`` is ``1 + expm1``, which cancels far out."""
    far = x > 1
    return torch.where(far, 1 - torch.exp(-x), -torch.expm1(-torch.where(far, 0, x)))


@replaceable
def bell(x: Tensor, factor: Any = 1.0) -> Tensor:
    """The derivative of the logistic function at ``z = x * factor``, ``s(z) s(-z)``: without ``1 - s(z)``, which cancels."""
    z = x * factor
    p = torch.sigmoid(torch.where(z < 0, z, -z))  # at most 1/2; both sides are the same function
    return p * (1 - p)


def sech2(x: Tensor, factor: Any) -> Tensor:
    """The derivative of the hyperbolic tangent at ``x * factor``."""
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


def expm1(x: Any) -> Any:
    """The exponential less 1 of a number or a tensor."""
    return torch.expm1(x) if isinstance(x, Tensor) else math.expm1(x)
