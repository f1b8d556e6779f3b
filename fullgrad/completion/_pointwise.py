"""Functions of single elements."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fullgrad.completion._registry import (
    NAN_AT_INFINITIES,
    NO_FORWARD,
    NO_FORWARD_OF_BACKWARD,
    NO_SECOND,
    NO_THIRD,
    WRONG_GRADIENT,
    Slopes,
    accumulated,
    completes,
    completes_backward,
    completes_by_slopes,
    unit_of,
    without_slope,
)


@completes("glu", NO_FORWARD)
def _glu(x: Tensor, dim: int = -1) -> Tensor:
    a, b = accumulated(x).chunk(2, dim)
    return (a * torch.sigmoid(b)).to(x.dtype)


@completes("hardsigmoid", NO_SECOND)
def _hardsigmoid(x: Tensor) -> Tensor:
    ends = torch.nn.functional.hardtanh((x.detach() + 3) / 6, 0, 1)
    return torch.where((x > -3) & (x < 3), (accumulated(x) + 3) / 6, ends).to(x.dtype)


@completes_backward("hardsigmoid_backward")
def _hardsigmoid_backward(g: Tensor, x: Tensor) -> Tensor:
    return torch.where((x > -3) & (x < 3), g / 6, 0)


@completes("_prelu_kernel", "gradients of a batch raise")
def _prelu(x: Tensor, weight: Tensor) -> Tensor:
    return torch.where(x > 0, 1, weight) * x  # a weight that is not a number has no part of a slope where it is not used


@completes("logaddexp", NAN_AT_INFINITIES, is_missing=lambda args: not (args[0].is_complex() or args[1].is_complex()))
def logaddexp(a: Tensor, b: Tensor) -> Tensor:
    if a.is_complex() or b.is_complex():
        return NotImplemented
    dtype, a, b = torch.result_type(a, b), accumulated(a), accumulated(b)
    is_equal = a.isinf() & (a == b)  # whose difference is no number
    high, low = torch.where(a >= b, a, b), torch.where(a >= b, b, a)
    y = high + torch.log1p(torch.exp(torch.where(is_equal, 0, low - high)))
    return torch.where(is_equal, a.detach(), y).to(dtype)


_VERSION = tuple(map(int, torch.__version__.split(".")[:2]))
_SHARES_TIES = _VERSION >= (2, 14)  # bounds of clamp, and fmax, with their arguments, as maximum does

_TERMS = 16  # of a series up to 2, in float64
_WRONG_NEAR_0 = "higher derivatives are wrong next to 0"
_UNLIKE = "forward mode has other slopes than reverse mode at NaN, before torch 2.14 some at ties"


def _completes_ties(name: str) -> Callable[[Any], Any]:
    """A decorator that enters an operator whose equal arguments share tangents as they do gradients since torch 2.14."""
    if _SHARES_TIES:
        return lambda formula: formula
    return completes(name, _UNLIKE, has_first=True)


def _completes_nan(name: str, is_entered: bool = True) -> Callable[[Any], Any]:
    """A decorator that enters an operator which gives the whole slope to each of two numbers if one is NaN, but no tangent."""
    of_nan = completes(name, _UNLIKE, has_first=True)
    return of_nan if is_entered else lambda formula: formula


def _of_two(x: Tensor, other: Tensor, is_left: Tensor, is_right: Tensor) -> Tensor:
    """One of two numbers, of which equal ones share the slope, and each has it where neither is the one."""
    return torch.where(x == other, x / 2 + other / 2, torch.where(is_right, 0, x) + torch.where(is_left, 0, other))


@_completes_nan("clamp_min.Tensor", _SHARES_TIES)
@_completes_nan("fmax", _VERSION == (2, 14))
@_completes_nan("maximum")
def _maximum(x: Tensor, other: Tensor) -> Tensor:
    return _of_two(x, other, x > other, x < other)


@_completes_nan("clamp_max.Tensor", _SHARES_TIES)
@_completes_nan("fmin", _VERSION == (2, 14))
@_completes_nan("minimum")
def _minimum(x: Tensor, other: Tensor) -> Tensor:
    return _of_two(x, other, x < other, x > other)


@_completes_nan("clamp.Tensor", _SHARES_TIES)
def _clamp_sharing_ties(x: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Any:
    """The input, or the bound that it is beyond; bounds that are equal, or cross, share nothing with it."""
    if min is None or max is None:
        return _maximum(x, min) if min is not None else NotImplemented if max is None else _minimum(x, max)
    y = torch.where((x < min) | (x > max), 0, x) + torch.where((x < min) & (min <= max), min, 0)
    y = y + torch.where(((x > max) & (min <= max)) | (min > max), max, 0)
    return torch.where((min < max) & ((x == min) | (x == max)), x / 2 + torch.where(x == min, min, max) / 2, y)


@_completes_ties("clamp.Tensor")
def _clamp(x: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    """The input, or the bound that it is beyond; what is no number has the slope 0."""
    is_inside, is_high = torch.ones_like(x, dtype=torch.bool), torch.zeros_like(x, dtype=torch.bool)
    if max is not None:
        is_inside, is_high = x <= max, x > max if min is None else (x > max) | (min > max)
    y = torch.where(is_inside if min is None else is_inside & (x >= min), x, 0)
    if min is not None:
        y = torch.where(x < min if max is None else (x < min) & (min < max), min, y)
    return y if max is None else torch.where(is_high, max, y)


@_completes_ties("clamp_min.Tensor")
def _clamp_min(x: Tensor, min: Tensor) -> Tensor:
    return _clamp(x, min)


@_completes_ties("clamp_max.Tensor")
def _clamp_max(x: Tensor, max: Tensor) -> Tensor:
    return _clamp(x, None, max)


@_completes_ties("fmax")
def _fmax(x: Tensor, other: Tensor) -> Tensor:
    return torch.where((x >= other) | other.isnan(), x, other)


@completes_by_slopes("atan2", "the tangent where both are 0 is NaN", has_first=True)
def _atan2(value: Tensor | None, y: Tensor, x: Tensor) -> Slopes:
    square = y * y + x * x
    is_0 = square == 0
    size = torch.where(is_0, 1, square)
    return {0: (lambda: torch.where(is_0, 0, x / size), None), 1: (lambda: torch.where(is_0, 0, -y / size), None)}


@completes("sinc", _WRONG_NEAR_0, is_missing=lambda args: True, keeps_first=True)
def _sinc(x: Tensor) -> Tensor:
    """By its series next to 0, where torch's derivatives are differences of numbers that are almost equal."""
    own = accumulated(x if x.is_floating_point() or x.is_complex() else x.to(torch.get_default_dtype())) * math.pi
    is_small = own.abs() <= 2
    square = torch.where(is_small, own, 0).square()
    series = torch.zeros_like(square)
    for k in reversed(range(_TERMS)):
        series = series * square + (-1) ** k / math.factorial(2 * k + 1)
    safe = torch.where(is_small, 1, own)
    return torch.where(is_small, series, safe.sin() / safe)


@completes_by_slopes("pow.Tensor_Tensor", "the gradient of a tangent is NaN at 0", has_first=True)
def _pow(value: Tensor | None, x: Tensor, exponent: Tensor) -> Slopes:
    is_0 = (x == 0) & (exponent >= 0)
    by_exponent = lambda: torch.where(is_0, 0, x.pow(exponent) * torch.where(is_0, 1, x).log())  # noqa: E731
    by_base = lambda: exponent * x.pow(torch.where(exponent == 0, 1, exponent - 1))  # noqa: E731
    return {0: (by_base, None), 1: (by_exponent, None)}


@completes("polar", WRONG_GRADIENT)
def _polar(size: Tensor, angle: Tensor) -> Tensor:
    """torch's gradient by a size of 0 is 0, and that by a negative one has the other sign."""
    return torch.complex(size * angle.cos(), size * angle.sin())


@completes("ldexp.Tensor", WRONG_GRADIENT)
def _ldexp(x: Tensor, exponent: Tensor) -> Tensor:
    """torch's power of an integer below 0 is 0 where a gradient is computed."""
    if exponent.is_floating_point() or exponent.is_complex():
        return x * torch.pow(2.0, exponent)
    real = x.dtype.to_real() if x.is_complex() else x.dtype if x.is_floating_point() else torch.get_default_dtype()
    return x * torch.exp2(exponent.to(real))


def _silu(x: Tensor) -> Tensor:
    own = accumulated(x)
    return (own * torch.sigmoid(own)).to(x.dtype)


def _mish(x: Tensor) -> Tensor:
    own = accumulated(x)
    return (own * torch.tanh(torch.nn.functional.softplus(own, threshold=40))).to(x.dtype)


def _logit(x: Tensor, eps: float | None = None) -> Tensor:
    own = accumulated(x)
    low, high = (0.0, 1.0) if eps is None else (eps, 1 - eps)
    is_inside = (own >= low) & (own <= high)
    inside = torch.where(is_inside, own, 0.5)
    y = torch.log(inside) - torch.log1p(-inside)
    return (y + without_slope(own, own.isnan() if eps is not None else ~is_inside)).to(x.dtype)


# torch's forward mode under no_grad calls their backwards, which have no forward mode.
completes("silu", NO_FORWARD_OF_BACKWARD, lean=_silu)(_silu)
completes("mish", NO_FORWARD_OF_BACKWARD, lean=_mish)(_mish)
completes("logit", NO_FORWARD_OF_BACKWARD, lean=_logit)(_logit)


@completes("native_dropout_backward", NO_FORWARD)
def _dropout_backward(g: Tensor, mask: Tensor, scale: float) -> Tensor:
    return g * mask * scale


@completes("mvlgamma", NO_FORWARD)
def _mvlgamma(x: Tensor, p: int) -> Tensor:
    if p < 1:
        raise RuntimeError(f"mvlgamma: `p` must be at least 1, got {p}.")
    own = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    steps = torch.arange(p, dtype=own.dtype, device=x.device) / 2
    return torch.lgamma(own.unsqueeze(-1) - steps).sum(-1) + p * (p - 1) / 4 * math.log(math.pi)


@completes("sgn", NO_THIRD, has_first=True)
def _sgn(x: Tensor) -> Any:
    """The number divided by its size; 0 has the slope 0, as in torch."""
    if not x.is_complex():
        return NotImplemented
    own = x.to(torch.complex64) if x.dtype == torch.complex32 else x
    is_0 = own.detach() == 0
    own = torch.where(is_0, 1, own)
    own = own / unit_of(own.detach().abs())
    # Without the view `real`, of whose tangents torch checks strides, also of one number.
    y = own / (own * own.conj()).sqrt()
    return torch.where(is_0, 0, y).to(x.dtype)
