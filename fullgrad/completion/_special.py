"""Special functions: Bessel's, zeta's and gamma's by their slopes, orthogonal polynomials by their recurrences."""

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from fullgrad._dispatch import has_tangent, innermost
from fullgrad.completion._registry import (
    NO_FORWARD,
    REFUSED,
    WRONG_GRADIENT,
    Slopes,
    accumulated,
    completes,
    completes_by_slopes,
)

_TERMS = 16  # of a series up to 2, in float64
_NODES = 24  # of an integral, in float64


def _over(x: Tensor, y: Tensor, sign: int) -> Tensor:
    r"""Bessel's function :math:`J_1(x) / x`, or for ``sign=1`` :math:`I_1(x) / x`, by its series next to 0."""
    is_small, square = x.abs() <= 2, torch.where(x.abs() <= 2, x * x / 4, 0)
    series = torch.zeros_like(square)
    for k in reversed(range(_TERMS)):
        series = series * square + sign**k / (2 * math.factorial(k) * math.factorial(k + 1))
    return torch.where(is_small, series, y / torch.where(is_small, 1, x))


def _unlimited(x: Tensor, y: Callable[[Tensor], Tensor], other: Callable[[Tensor], Tensor], sign: int) -> Tensor:
    """The slope of a function of the second kind and order 1, which has none at 0."""
    safe = torch.where(x == 0, 1, x)
    return torch.where(x == 0, sign * torch.inf, sign * other(safe) - y(safe) / safe)


_j0, _j1, _y0, _y1 = [getattr(torch.special, f"bessel_{name}") for name in ("j0", "j1", "y0", "y1")]
_i0, _i1, _k0, _k1 = [getattr(torch.special, f"modified_bessel_{name}") for name in ("i0", "i1", "k0", "k1")]
_k0e, _k1e = [getattr(torch.special, f"scaled_modified_bessel_{name}") for name in ("k0", "k1")]


def _falling(x: Tensor, order: int, near: Callable[[Tensor], Tensor]) -> Tensor:
    r"""The slope of the scaled :math:`e^x K_\nu(x) = \int_0^\infty e^{-x (\cosh t - 1)} \cosh(\nu t) \, dt`, \(\nu \le 1\).

    By the trapezoid rule, of which every derivative has the digits of the slope, where a difference of the two functions loses
    them: they are almost equal. Next to 0, where they are not, it is ``near``. The last node is where the exponent is -60.
    """
    is_far = x >= 2
    own = torch.where(is_far & ~x.isinf(), x, 2).unsqueeze(-1)
    step = 2 * torch.asinh((30 / own.detach()).sqrt()) / _NODES
    rise = 2 * torch.sinh(step * torch.arange(1, _NODES + 1, dtype=x.dtype, device=x.device) / 2).square()
    total = (step * rise * (1 + rise) ** order * torch.exp(-own * rise)).sum(-1)
    return torch.where(is_far, torch.where(x.isinf(), 0, -total), near(torch.where(is_far, 1, x)))


def _spherical(x: Tensor) -> Tensor:
    """The slope of sin(x) / x, by its series next to 0."""
    is_small, square = x.abs() <= 2, torch.where(x.abs() <= 2, x * x, 0)
    series = torch.zeros_like(square)
    for k in reversed(range(1, _TERMS)):
        series = series * square + (-1) ** k * 2 * k / math.factorial(2 * k + 1)
    safe = torch.where(is_small | x.isinf(), 1, x)
    return torch.where(
        is_small, series * torch.where(is_small, x, 0), torch.where(x.isinf(), 0, (safe.cos() - safe.sin() / safe) / safe)
    )


_BESSEL: dict[str, Callable[[Tensor], Tensor]] = {
    "bessel_j0": lambda x: -_j1(x),
    "bessel_j1": lambda x: _j0(x) - _over(x, _j1(x), -1),
    "bessel_y0": lambda x: -_y1(x),
    "bessel_y1": lambda x: _unlimited(x, _y1, _y0, 1),
    "modified_bessel_i0": lambda x: _i1(x),
    "modified_bessel_i1": lambda x: _i0(x) - _over(x, _i1(x), 1),
    "modified_bessel_k0": lambda x: -_k1(x),
    "modified_bessel_k1": lambda x: _unlimited(x, _k1, _k0, -1),
    "scaled_modified_bessel_k0": lambda x: _falling(x, 0, lambda x: torch.where(x == 0, -torch.inf, _k0e(x) - _k1e(x))),
    "scaled_modified_bessel_k1": lambda x: _falling(
        x, 1, lambda x: _k1e(torch.where(x == 0, 1, x)) + _unlimited(x, _k1e, _k0e, -1)
    ),
    "spherical_bessel_j0": _spherical,
}


def _floating(x: Tensor) -> Tensor:
    return x if x.is_floating_point() else x.to(torch.get_default_dtype())


def _completes_bessel(name: str, slope: Callable[[Tensor], Tensor]) -> None:
    completes_by_slopes(f"special_{name}", WRONG_GRADIENT)(lambda y, x: {0: (lambda: slope(x), None)})


for _name, _derivative in _BESSEL.items():
    _completes_bessel(_name, _derivative)


@completes("special_i1", "higher derivatives are wrong next to 0", is_missing=lambda args: True, keeps_first=True)
def _of_order_1(x: Tensor) -> Tensor:
    own = accumulated(_floating(x))
    return own * _over(own, _i1(own), 1)


@completes_by_slopes("special_airy_ai", REFUSED)
def _airy(y: Tensor, x: Tensor) -> Slopes:
    """torch lacks the derivative of Airy's function, which is not 0."""
    return {}


# --- Gamma and zeta -----------------------------------------------------------------------------------------------------------


@completes_by_slopes("igamma", NO_FORWARD)
def _igamma(y: Tensor, a: Tensor, x: Tensor) -> Slopes:
    return {1: (lambda: torch.exp(torch.xlogy(a - 1, x) - x - torch.lgamma(a)), None)}


@completes_by_slopes("igammac", NO_FORWARD)
def _igammac(y: Tensor, a: Tensor, x: Tensor) -> Slopes:
    return {1: (lambda: -torch.exp(torch.xlogy(a - 1, x) - x - torch.lgamma(a)), None)}


def _zeta(y: Tensor, s: Tensor | float, q: Tensor | float) -> Slopes:
    return {1: (lambda: -s * torch.special.zeta(s + 1, q), None)}


for _name in ("special_zeta", "special_zeta.self_scalar", "special_zeta.other_scalar"):
    completes_by_slopes(_name, NO_FORWARD)(_zeta)


@completes_by_slopes("_standard_gamma", NO_FORWARD)
def _standard_gamma(y: Tensor, a: Tensor, generator: torch.Generator | None = None) -> Slopes:
    """A sample as a function of the shape, at the quantile that was drawn."""
    return {0: (lambda: torch._standard_gamma_grad(a, y), None)}


# --- Orthogonal polynomials ---------------------------------------------------------------------------------------------------

# A polynomial of degree 1, and the next one by the last two.
_First = Callable[[Tensor], Tensor]
_Next = Callable[[Tensor, int, Tensor, Tensor], Tensor]


def _chebyshev(x: Tensor, k: int, p: Tensor, before: Tensor) -> Tensor:
    return 2 * x * p - before


_POLYNOMIALS: dict[str, tuple[_First, _Next]] = {
    "chebyshev_polynomial_t": (lambda x: x, _chebyshev),
    "chebyshev_polynomial_u": (lambda x: 2 * x, _chebyshev),
    "chebyshev_polynomial_v": (lambda x: 2 * x - 1, _chebyshev),
    "chebyshev_polynomial_w": (lambda x: 2 * x + 1, _chebyshev),
    "hermite_polynomial_h": (lambda x: 2 * x, lambda x, k, p, before: 2 * (x * p - k * before)),
    "hermite_polynomial_he": (lambda x: x, lambda x, k, p, before: x * p - k * before),
    "laguerre_polynomial_l": (lambda x: 1 - x, lambda x, k, p, before: ((2 * k + 1 - x) * p - k * before) / (k + 1)),
    "legendre_polynomial_p": (lambda x: x, lambda x, k, p, before: ((2 * k + 1) * x * p - k * before) / (k + 1)),
}


def _polynomial(name: str, first: _First, following: _Next, is_shifted: bool, x: Tensor | float, n: Tensor | float) -> Tensor:
    if isinstance(n, Tensor) and (n.requires_grad or has_tangent(n)):
        raise NotImplementedError(f"{name} has no derivative with respect to its degree; detach that.")
    if not isinstance(x, Tensor):
        return NotImplemented
    y = _floating(x)
    if isinstance(n, Tensor):
        all_ = innermost(n)
        most = int(all_.max()) if all_.numel() else 0
        y, degree = torch.broadcast_tensors(y, n.to(y.dtype).trunc())
    else:
        most, degree = int(n), torch.full_like(y, int(n))
    y = 2 * y - 1 if is_shifted else y
    before, p = torch.ones_like(y), torch.where(degree < 1, torch.where(degree < 0, 0.0, 1.0), first(y))
    for k in range(1, most):  # what has its degree stays, so that nothing overflows unseen
        before, p = torch.where(k < degree, p, before), torch.where(k < degree, following(y, k, p, before), p)
    return p


def _completes_polynomial(name: str, first: _First, following: _Next, is_shifted: bool) -> None:
    formula = functools.partial(_polynomial, name, first, following, is_shifted)
    for overload in ("", ".n_scalar", ".x_scalar"):
        completes(f"special_{name}{overload}", WRONG_GRADIENT)(formula)


for _name, (_first, _following) in _POLYNOMIALS.items():
    _completes_polynomial(_name, _first, _following, is_shifted=False)
    if _following is _chebyshev:
        _completes_polynomial(f"shifted_{_name}", _first, _following, is_shifted=True)
