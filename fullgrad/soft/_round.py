"""`round`: to the nearest integer, soft."""

import functools
import math
import operator
from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.fast import replaceable
from fullgrad._core.function import recomputed
from fullgrad._core.opmath import cast
from fullgrad._core.pieces import pointwise
from fullgrad.soft import _curves as curves
from fullgrad.soft._mode_names import Mode
from fullgrad.soft._relaxation import Relaxation, Softness, check, expand_to_softness_shape

_MAX_RADIUS = 1000


def round(x: Tensor, softness: Softness = 0.1, mode: Mode = "smooth", neighbor_radius: int = 5) -> Tensor:
    r"""A soft rounding: a staircase of soft steps.

    .. math::
        y = c + \sum_{n=-r}^{r} n \left[ S(d - n + \tfrac12) - S(d - n - \tfrac12) \right], \qquad
        D_x = \sum_{n=-r}^{r} n \left[ S'(d - n + \tfrac12) - S'(d - n - \tfrac12) \right]

    with :math:`c = \lfloor x \rfloor`, :math:`d = x - c`, :math:`S` of :func:`sigmoidal` and :math:`r` = ``neighbor_radius``;
    ``"hard"``: :func:`torch.round`. The value is translation equivariant, ``round(x + 1) = round(x) + 1``; in the source, which
    has :math:`c + n` before the brackets, it is not where the outermost steps are wider than their distance (softness 1: 991.78
    for 1000.3). Steps that are 0 or 1 to the last bit are left out. Saved: ``x``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        softness: The width of a step, a positive number, or a tensor that broadcasts with ``x`` and gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"`` or ``"hard"``.
        neighbor_radius: How many steps on each side are summed, from 1 to 1000.

    Returns:
        A tensor of the broadcast shape.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``neighbor_radius`` is not an
            integer.
        ValueError: ``softness`` is a number that is not positive, ``mode`` is unknown, or ``neighbor_radius`` is out of range.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.round(torch.tensor([-0.6, 0.2, 2.3]))
        tensor([-0.7312,  0.0465,  2.1189])

    Source: ``softtorch.round``; Semenov, https://arxiv.org/abs/2504.19026.
    """
    x, softness, neighbor_radius = _checked("round", x, softness, mode, neighbor_radius)
    return torch.round(x) if mode == "hard" else Round.apply(x, softness, neighbor_radius, mode, False)


def round_st(x: Tensor, softness: Softness = 0.1, mode: Mode = "smooth", neighbor_radius: int = 5) -> Tensor:
    r"""The nearest integer with the derivative of a soft staircase. For the derivative 1 see :func:`fullgrad.round`.

    .. math::
        y = \operatorname{round}(x), \qquad
        D_x = \sum_{n=-r}^{r} n \left[ S'(d - n + \tfrac12) - S'(d - n - \tfrac12) \right]

    as in :func:`fullgrad.soft.round`, at every order. The value is that of :func:`torch.round`, bit for bit. Saved: ``x``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        softness: The width of a step, a positive number, or a tensor that broadcasts with ``x`` and gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, or ``"hard"`` for the derivative 0.
        neighbor_radius: How many steps on each side are summed, from 1 to 1000.

    Returns:
        A tensor of the broadcast shape.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``neighbor_radius`` is not an
            integer.
        ValueError: ``softness`` is a number that is not positive, ``mode`` is unknown, or ``neighbor_radius`` is out of range.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([0.0, 0.5, 2.4])
        >>> fullgrad.round_st(x)
        tensor([0., 0., 2.])
        >>> torch.func.vmap(torch.func.grad(fullgrad.round_st))(x)
        tensor([0.1330, 2.5009, 1.9675])

    Source: ``softtorch.round_st``.
    """
    x, softness, neighbor_radius = _checked("round_st", x, softness, mode, neighbor_radius)
    return torch.round(x) if mode == "hard" else Round.apply(x, softness, neighbor_radius, mode, True)


class Round(Relaxation):
    """The operator of :func:`round`, and with ``hard`` of :func:`round_st`."""

    reads = {0: (0, 1), 1: (0, 1)}

    @staticmethod
    def forward(x: Tensor, softness: Softness, neighbor_radius: int, mode: str, hard: bool) -> Tensor:
        if hard:
            return expand_to_softness_shape(torch.round(x), softness)
        steps, below = _steps(softness, neighbor_radius, mode, x.dtype)
        return cast(_value(x, softness, mode, steps, below), x.dtype)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Tensor, s: Softness, neighbor_radius: int, mode: str, hard: bool) -> Tensor:
        curve = curves.slope if i == 0 else curves.sigmoid_by_softness
        return v * weighted_sum(curve, fraction(x), s, mode, _steps(s, neighbor_radius, mode, x.dtype)[0])


@pointwise(opmath=True)
def _value(x: Tensor, s: Softness, mode: str, steps: tuple[tuple[float, float], ...], below: float) -> Tensor:
    return torch.floor(x) + (weighted_sum(curves.sigmoid, fraction(x), s, mode, steps) + below)


@replaceable
def weighted_sum(curve: Any, d: Tensor, s: Softness, mode: str, steps: tuple[tuple[float, float], ...]) -> Tensor:
    """The sum of a curve around each step, times the weight of the step."""
    total: Any = 0.0
    for weight, at in steps:
        part = curve(d - at, s, mode)
        total = (part if weight == 1 else part * weight) + total
    return total


def fraction(x: Tensor) -> Tensor:
    """x - floor(x), and 0 at infinity, so that the value there is infinite."""
    d = x - torch.floor(x)
    return torch.where(recomputed(torch.eq, d, d), d, 0)


def _steps(s: Softness, radius: int, mode: str, dtype: torch.dtype) -> tuple[tuple[tuple[float, float], ...], float]:
    """The steps as weights and positions, and the sum of the weights of the steps that are 1 everywhere.

    Summed by parts, the steps between neighbors have the weight 1 and the two ends -r. A step so far from [0, 1) that it is 0
    or 1 there is left out, if the softness is a number.
    """
    digits = 38.0 if dtype == torch.float64 else 19.0  # exp(-digits) is below half a unit in the last place of 1
    reach = math.inf if not isinstance(s, (int, float)) else 0.5 + digits * s if mode == "smooth" else 5 * s
    return _steps_within(reach, radius, mode == "c0")


@functools.lru_cache(maxsize=256)
def _steps_within(reach: float, radius: int, include_join: bool) -> tuple[tuple[tuple[float, float], ...], float]:
    steps, below = [], 0.0
    for k in range(-radius - 1, radius + 1):
        at, weight = k + 0.5, -float(radius) if k in (-radius - 1, radius) else 1.0
        distance = max(-at, at - 1, 0)
        # A step of c0 that ends at 0 has half its slope there.
        if distance < reach or (include_join and distance == reach and at < 0):
            steps.append((weight, at))
        elif at < 0:
            below += weight
    return tuple(steps), below


def _checked(name: str, x: Any, softness: Any, mode: Any, radius: Any) -> tuple[Tensor, Softness, int]:
    radius = checks.positive_integer(name, "neighbor_radius", radius, _MAX_RADIUS)
    return *check(name, x, softness, mode), operator.index(radius)  # compiled code has one graph for each
