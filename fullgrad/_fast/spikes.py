"""Slopes of spikes for an inverse width that is a number, in fewer steps: constants are folded, and sums have both factors."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fullgrad._core.fast import fast
from fullgrad._core.windows import where_inside
from fullgrad.spikes._atan import Atan
from fullgrad.spikes._circ import Circ
from fullgrad.spikes._erf import Erf
from fullgrad.spikes._fake_numerical_gradient import FakeNumericalGradient
from fullgrad.spikes._fast_sigmoid import FastSigmoid
from fullgrad.spikes._formulas import bell, clamp_to_finite, clamp_within, nearness, right_or_left, saturating
from fullgrad.spikes._nonzero_sign_log_abs import NonzeroSignLogAbs
from fullgrad.spikes._piecewise_exp import PiecewiseExp
from fullgrad.spikes._piecewise_leaky_relu import PiecewiseLeakyRelu
from fullgrad.spikes._piecewise_quadratic import PiecewiseQuadratic
from fullgrad.spikes._q_pseudo_spike import QPseudoSpike
from fullgrad.spikes._rect import Rect
from fullgrad.spikes._sigmoid import Sigmoid
from fullgrad.spikes._soft_sign import SoftSign


def slope_of(operator: Any, within: float = 8) -> Callable[..., Any]:
    """An entry for the ``slope_times`` of an operator, for ``alpha`` that is a number whose powers are numbers, too."""

    def register(version: Callable[[Tensor, Tensor, float], Tensor]) -> Callable[..., Any]:
        def entry(v: Tensor, u: Tensor, alpha: Any) -> Any:
            return version(v, u, alpha) if alpha.__class__ is float and 1e-9 < alpha < 1e9 else NotImplemented

        return fast(operator.slope_times, within=within)(entry)

    return register


def affine(own: Tensor, factor: float, offset: float) -> Tensor:
    """``factor * own + offset``, in the memory of ``own``."""
    return torch.add(own.new_full((), offset), own, alpha=factor, out=own)


def affine_of_abs(u: Tensor, factor: float, offset: float) -> Tensor:
    """``factor * abs(u) + offset``."""
    return affine(u.abs(), factor, offset)


def into(own: Tensor, operation: Callable[..., Tensor], v: Tensor) -> Tensor:
    """``operation(v, own)``, in the memory of ``own`` where it fits."""
    return operation(v, own, out=own) if v.shape == own.shape and v.dtype == own.dtype else operation(v, own)


def twice_over(v: Tensor, q: Tensor) -> Tensor:
    """``v / q / q``: a square would overflow."""
    return (v / q).div_(q)


@slope_of(Atan)
def _atan(v: Tensor, u: Tensor, alpha: float) -> Tensor:
    return into(torch.addcmul(u.new_full((), 2 / alpha), u, u, value=math.pi**2 * alpha / 2), torch.div, v)


@slope_of(Circ)
def _circ(v: Tensor, u: Tensor, alpha: float) -> Tensor:
    r = torch.addcmul(u.new_full((), 1.0), u, u, value=alpha * alpha).rsqrt_()
    return into(torch.mul(r, r).mul_(r).mul_(alpha / 2), torch.mul, v)


@slope_of(Erf, within=64)
def _erf(v: Tensor, u: Tensor, alpha: float) -> Tensor:
    # An exponent of 40 with an error in its last place is an error of 40 places.
    height = u.new_full((), math.log(alpha / math.sqrt(math.pi)))
    return into(torch.addcmul(height, u, u, value=-alpha * alpha).exp_(), torch.mul, v)


@slope_of(NonzeroSignLogAbs)
def _nonzero_sign_log_abs(v: Tensor, u: Tensor, alpha: float) -> Tensor:
    return into(affine_of_abs(u, 1.0, 1 / alpha), torch.div, v)


@fast(NonzeroSignLogAbs.shape_terms, within=8)
def _nonzero_sign_log_abs_terms(needed: Any, v: Tensor, u: Tensor, alpha: Any) -> Any:
    # Without a derivative, one quotient serves both terms.
    if not needed[1]:
        return NotImplemented
    b = 1 / alpha
    u = clamp_within(u, torch.finfo(u.dtype).max)
    of_both = v / (u.abs() + b)
    return of_both if needed[0] else None, u * of_both * b


@slope_of(FakeNumericalGradient)
def _fake_numerical_gradient(v: Tensor, u: Tensor, alpha: float) -> Tensor:
    return into(u.abs().reciprocal_().clamp_(max=alpha), torch.mul, v)


@fast(PiecewiseLeakyRelu.slope_times, within=8)
def _piecewise_leaky_relu(v: Tensor, u: Tensor, w: Any, c: Any) -> Any:
    # The two slopes differ by a number from which neither cancels.
    if not (w.__class__ is c.__class__ is float and 1e-9 < w < 1e9 and 0.0 < abs(c) <= 0.5 / w):
        return NotImplemented
    a = u.abs()
    return into(affine(torch.lt(a, w, out=a), 0.5 / w - c, c), torch.mul, v)


@slope_of(PiecewiseExp)
def _piecewise_exp(v: Tensor, u: Tensor, alpha: float) -> Tensor:
    return into(affine_of_abs(u, -alpha, math.log(alpha / 2)).exp_(), torch.mul, v)


@slope_of(PiecewiseQuadratic)
def _piecewise_quadratic(v: Tensor, u: Tensor, alpha: float) -> Tensor:
    return into(affine_of_abs(u, -alpha * alpha, alpha).clamp_(0), torch.mul, v)


@fast(QPseudoSpike.slope, within=64)
def _q_pseudo_spike(u: Tensor, alpha: Any) -> Any:
    if not (alpha.__class__ is float and 1.001 < alpha < 1e3):
        return NotImplemented
    return affine_of_abs(u, 2 / (alpha - 1), 1.0).pow_(-alpha)


@slope_of(Rect, within=0)
def _rect(v: Tensor, u: Tensor, alpha: float) -> Tensor:
    passed = where_inside(v, u, -0.5 / alpha, 0.5 / alpha)
    return passed if alpha == 1.0 else passed.mul_(alpha)


@slope_of(Sigmoid)
def _sigmoid(v: Tensor, u: Tensor, alpha: float) -> Tensor:
    return into(bell(u, alpha), torch.mul, v).mul_(alpha)


@slope_of(SoftSign)
def _soft_sign(v: Tensor, u: Tensor, alpha: float) -> Tensor:
    a = math.sqrt(2 / alpha)
    return twice_over(v, affine_of_abs(u, a * alpha, a))


@slope_of(FastSigmoid)
def _fast_sigmoid(v: Tensor, u: Tensor, slope: float) -> Tensor:
    return twice_over(v, affine_of_abs(u, slope, 1.0))


@fast(clamp_to_finite)
def _clamp_to_finite(u: Tensor, factor: Any, reach: float = math.inf) -> Any:
    if not isinstance(factor, Tensor):
        return NotImplemented
    largest = torch.finfo(u.dtype).max / 4
    reach = min(reach, largest)
    bound = reach / torch.clamp(factor.to(u.dtype), reach / largest, largest)
    return torch.clamp(u, -bound, bound)


@fast(nearness, within=8)
def _nearness(distance: Callable[[Tensor, Tensor], Tensor], u: Tensor, inverse_width: Any, width: float = 1.0) -> Any:
    # Widths are the unit: the product is finite, and no derivative follows that could over- or underflow.
    if not isinstance(inverse_width, Tensor):
        return NotImplemented
    largest = torch.finfo(inverse_width.dtype).max / 4
    per_unit = torch.clamp(inverse_width, max=largest) * (1 / width)
    z = u * per_unit
    return torch.reciprocal(distance(z, z.new_ones(())))


@fast(saturating, within=8)
def _saturating(x: Tensor, k: Any) -> Tensor:
    q = (x * k).abs_().add_(1)
    return torch.div(x, q, out=q)


@fast(bell, within=8)
def _bell(x: Tensor, factor: Any = 1.0) -> Any:
    if isinstance(factor, Tensor):
        return NotImplemented
    p = affine_of_abs(x, -factor, 0.0).sigmoid_()  # at most 1/2: p - p^2 does not cancel
    return torch.addcmul(p, p, p, value=-1, out=p)


@fast(right_or_left)
def _right_or_left(right: Tensor, left: Tensor, u: Tensor, tie: float) -> Any:
    if tie not in (0.0, 1.0) or not (right.shape == left.shape == u.shape and right.dtype == left.dtype == u.dtype):
        return NotImplemented
    # torch writes a comparison as numbers sooner than it converts bools. A lerp is exact for the weights 0 and 1.
    return torch.lerp(left, right, (torch.ge if tie else torch.gt)(u, 0, out=torch.empty_like(u)))
