"""`power_of_two`: plus and minus powers of two."""

import math
from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.bits import times_power_of_two
from fullgrad._core.elementwise import Elementwise
from fullgrad._core.neighbors import neighbor, rounded
from fullgrad._core.opmath import to_opmath
from fullgrad.quantizers import _arguments

ROUNDINGS = ("nearest", "linear", "floor", "ceil")
GRADIENTS = ("log", "identity")


def power_of_two(
    x: Tensor,
    min_exponent: int | None = None,
    max_exponent: int | None = None,
    *,
    rounding: str = "nearest",
    gradient: str = "log",
) -> Tensor:
    r"""Round to a power of two with the sign of ``x``, such as a scale that is a shift.

    .. math::
        y = \operatorname{sgn}(x)\, 2^k, \qquad k = \operatorname{clamp}(\operatorname{round}(\log_2 |x|),\; l,\; h), \qquad
        D = y / x

    The derivative is that of :math:`2^{\operatorname{round}(\log_2 x)}` with a straight-through rounding, 0 where *k* was clamped
    and at 0; with ``gradient="identity"`` it is 1. With :math:`y' = D` wherever a derivative is differentiated again, higher
    derivatives are 0. Zeros of both signs stay, and NaN. An infinity stays if there is no largest exponent. Half precision is
    computed in float32 and rounded once. Saved: ``x``; nothing for ``gradient="identity"``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        min_exponent: The smallest exponent, an integer; None for any.
        max_exponent: The largest exponent, an integer; None for any.
        rounding: The rounding of the logarithm: ``"nearest"``, ``"floor"`` or ``"ceil"``; or ``"linear"``, the nearest power
            itself, halves up, as a cast to ``float8_e8m0fnu`` does.
        gradient: ``"log"`` or ``"identity"``.

    Returns:
        A tensor of the shape and dtype of ``x``.

    Raises:
        TypeError: ``x`` is not a real tensor, or an exponent is not an integer.
        ValueError: ``rounding`` or ``gradient`` is unknown, or ``min_exponent`` is above ``max_exponent``.

    Example:
        >>> import torch
        >>> from fullgrad import quantizers
        >>> x = torch.tensor([-0.3, 0.0, 1.5, 10.0], requires_grad=True)
        >>> y = quantizers.power_of_two(x, max_exponent=2)
        >>> y.detach()
        tensor([-0.2500,  0.0000,  2.0000,  4.0000])
        >>> torch.autograd.grad(y.sum(), x)
        (tensor([0.8333, 0.0000, 1.3333, 0.0000]),)

    Source: Elhoushi et al., DeepShift, https://arxiv.org/abs/1905.13298; ``brevitas.core.restrict_val.PowerOfTwoRestrictValue``.
    """
    x = _arguments.floating_input("power_of_two", "x", x)
    checks.choice("power_of_two", "rounding", rounding, ROUNDINGS)
    checks.choice("power_of_two", "gradient", gradient, GRADIENTS)
    if min_exponent is not None:
        min_exponent = _arguments.integer("power_of_two", "min_exponent", min_exponent)
    if max_exponent is not None:
        max_exponent = _arguments.integer("power_of_two", "max_exponent", max_exponent)
        if min_exponent is not None and min_exponent > max_exponent:
            raise ValueError(
                f"power_of_two: `min_exponent` must not be above `max_exponent`, got {min_exponent} and {max_exponent}."
            )
    return PowerOfTwo.apply(x, min_exponent, max_exponent, rounding, gradient)


class PowerOfTwo(Elementwise):
    """The operator of :func:`power_of_two`."""

    @staticmethod
    def reads(x: Tensor, min_exponent: int | None, max_exponent: int | None, rounding: str, gradient: str) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return {0: (0,) if gradient == "log" else ()}

    @staticmethod
    def forward(x: Tensor, min_exponent: int | None, max_exponent: int | None, rounding: str, gradient: str) -> Tensor:
        (wide,) = to_opmath(x)
        k = _exponent(wide, rounding)
        if min_exponent is not None or max_exponent is not None:
            k = k.clamp(min_exponent, max_exponent)
        y = torch.copysign(times_power_of_two(torch.ones_like(wide), _reachable(k, wide.dtype)), wide)
        stays = (wide == 0) | wide.isnan()
        if max_exponent is None:
            stays = stays | wide.isinf()
        return torch.where(stays, wide, y).to(x.dtype)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Any, *options: Any) -> Tensor:
        if options[-1] == "identity":
            return v
        (wide,) = to_opmath(x)
        return (v * PowerOfTwoSlope.apply(wide, *options[:-1])).to(v.dtype)


class PowerOfTwoSlope(Elementwise):
    """The slope :math:`y / x`, 0 where *k* is clamped, at 0 and at infinity, without a derivative."""

    reads = {0: ()}

    @staticmethod
    def forward(x: Tensor, min_exponent: int | None, max_exponent: int | None, rounding: str) -> Tensor:
        f, e, up = _fraction(x, rounding)
        clamped = (x == 0) | x.isinf()
        k = e - 1 + up.to(e.dtype)
        if min_exponent is not None:
            clamped = clamped | (k < min_exponent)
        if max_exponent is not None:
            clamped = clamped | (k > max_exponent)
        return torch.where(clamped, 0, (up.to(f.dtype) + 1) / (f * 2))  # y / x, where the power of two cancels

    @staticmethod
    def vjp_term(i: int, v: Tensor, *inputs: Any) -> Tensor:
        return torch.zeros_like(v)


def _exponent(x: Tensor, rounding: str) -> Tensor:
    """The exponent of the power of two next to ``abs(x)``; beyond all others for an infinity."""
    _, e, up = _fraction(x, rounding)
    return torch.where(x.isinf(), 2000, e - 1 + up.to(e.dtype))


def _fraction(x: Tensor, rounding: str) -> tuple[Tensor, Tensor, Tensor]:
    """The fraction and exponent of ``abs(x)``, and whether the next power of two is the one above."""
    f, e = torch.frexp(x.abs())
    if rounding == "nearest":
        up = f >= _root_of_half(x.dtype)
    elif rounding == "linear":
        up = f >= 0.75
    elif rounding == "ceil":
        up = f > 0.5
    else:
        up = torch.zeros_like(f, dtype=torch.bool)
    return f, e, up


def _root_of_half(dtype: torch.dtype) -> float:
    """The first number of a dtype above the square root of 1/2, which is irrational."""
    root = rounded(math.sqrt(0.5), dtype)
    return root if root >= math.sqrt(0.5) else neighbor(root, dtype, True)


def _reachable(k: Tensor, dtype: torch.dtype) -> Tensor:
    """Exponents clamped to those whose powers two factors can make, down to 0 and up to infinity."""
    most = 252 if dtype == torch.float32 else 2044
    return k.clamp(-most, most)
