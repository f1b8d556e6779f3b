"""`clamp`: between two bounds, soft."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.opmath import cast
from fullgrad._core.pieces import pointwise
from fullgrad.clamping import Clamp as HardClamp
from fullgrad.soft import _curves as curves
from fullgrad.soft._mode_names import Mode
from fullgrad.soft._relaxation import Relaxation, Softness, check, expand_to_softness_shape
from fullgrad.soft._sigmoidal import sigmoid_times

Bound = Tensor | float


def clamp(
    x: Tensor, min_value: Bound, max_value: Bound, softness: Softness = 0.1, mode: Mode = "smooth", gated: bool = False
) -> Tensor:
    r"""A soft clamp.

    .. math::
        y = l + R(x - l) - R(x - h) \\
        D_x = R'(x - l) - R'(x - h), \qquad D_l = 1 - R'(x - l), \qquad D_h = R'(x - h)

    for the bounds :math:`l, h` and :math:`R` of :func:`softrelu`, without the cancellation of the formula as written;
    ``"hard"``: :func:`torch.clamp`. Saved: ``x``, and bounds that are tensors.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        min_value: Lower bound, a number or a tensor that broadcasts with ``x`` and gets its own gradient.
        max_value: Upper bound, not below ``min_value``; a number or a tensor, too.
        softness: The width of the transition, positive: a number, or a tensor that broadcasts and gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"`` or ``"hard"``.
        gated: Whether :math:`R` is gated, as in :func:`softrelu`.

    Returns:
        A tensor of the broadcast shape.

    Raises:
        TypeError: ``x`` is not a real tensor; a bound or ``softness`` is not a real number or tensor.
        ValueError: ``softness`` is a number that is not positive, or ``mode`` is unknown.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.clamp(torch.tensor([-3.0, 0.0, 1.0]), -1.0, 1.0)
        tensor([-1.0000,  0.0000,  0.9307])

    Source: ``softtorch.clamp``, whose bounds are called a and b.
    """
    return _clamp("clamp", x, min_value, max_value, softness, mode, gated)


def clamp_st(
    x: Tensor, min_value: Bound, max_value: Bound, softness: Softness = 0.1, mode: Mode = "smooth", gated: bool = False
) -> Tensor:
    r"""The clamp with the derivative of its relaxation.

    .. math::
        y = \min(\max(x, l), h) \\
        D_x = R'(x - l) - R'(x - h), \qquad D_l = 1 - R'(x - l), \qquad D_h = R'(x - h)

    for the bounds :math:`l, h` and :math:`R` of :func:`fullgrad.soft.softrelu`, at every order. The value is that of
    :func:`torch.clamp`, bit for bit. Saved: ``x``, and bounds that are tensors.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        min_value: Lower bound, a number or a tensor that broadcasts with ``x`` and gets its own gradient.
        max_value: Upper bound, not below ``min_value``; a number or a tensor, too.
        softness: The width of the transition, positive: a number, or a tensor that broadcasts and gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, or ``"hard"`` for the derivative of the hard operator.
        gated: Whether :math:`R` is gated, as in :func:`fullgrad.soft.softrelu`.

    Returns:
        A tensor of the broadcast shape.

    Raises:
        TypeError: ``x`` is not a real tensor; a bound or ``softness`` is not a real number or tensor.
        ValueError: ``softness`` is a number that is not positive, or ``mode`` is unknown.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([-3.0, 0.0, 1.0])
        >>> fullgrad.clamp_st(x, -1.0, 1.0)
        tensor([-1.,  0.,  1.])
        >>> torch.func.vmap(torch.func.grad(lambda x: fullgrad.clamp_st(x, -1.0, 1.0)))(x)
        tensor([2.0612e-09, 9.9991e-01, 5.0000e-01])

    Source: ``softtorch.clamp_st``.
    """
    return _clamp("clamp_st", x, min_value, max_value, softness, mode, gated)


class Clamp(Relaxation):
    """The operator of :func:`clamp`, and with ``hard`` of :func:`clamp_st`."""

    reads = dict.fromkeys(range(4), (0, 1, 2, 3))

    @staticmethod
    def forward(x: Tensor, low: Bound, high: Bound, softness: Softness, gated: bool, mode: str, hard: bool) -> Tensor:
        if hard:
            return expand_to_softness_shape(HardClamp.forward(x, low, high), softness)
        dtype = torch.promote_types(torch.result_type(x, low), torch.result_type(x, high))
        return cast(_value(x, low, high, softness, gated, mode), dtype)

    @staticmethod
    def vjp_term(
        i: int, v: Tensor, x: Tensor, low: Bound, high: Bound, s: Softness, gated: bool, mode: str, hard: bool
    ) -> Tensor:
        if i == 3:
            by_softness = curves.gated_by_softness if gated else curves.softplus_by_softness
            return v * (by_softness(x - low, s, mode) - by_softness(x - high, s, mode))
        if i:
            return _slope_times(v, low - x if i == 1 else x - high, s, gated, mode)
        # Since 1 - R'(q) = R'(-q), both are taken on the side where they are small.
        above, below = x - low, high - x
        near, far = torch.minimum(above, below), -torch.maximum(above, below)
        return _slope_times(v, near, s, gated, mode) - _slope_times(v, far, s, gated, mode)


@pointwise(opmath=True)
def _value(x: Tensor, low: Bound, high: Bound, s: Softness, gated: bool, mode: str) -> Tensor:
    beyond = curves.relu_minus_gated if gated else curves.relu_minus_softplus
    return HardClamp.forward(x, low, high) - beyond(x - low, s, mode) + beyond(x - high, s, mode)


def _slope_times(v: Tensor, q: Tensor, s: Softness, gated: bool, mode: str) -> Tensor:
    """v times the derivative R' of the rectifier."""
    return (curves.gated_slope_times if gated else sigmoid_times)(v, q, s, mode)


def _clamp(name: str, x: Any, low: Any, high: Any, softness: Any, mode: Any, gated: bool) -> Tensor:
    if gated.__class__ is not bool:
        checks.flag(name, "gated", gated)
    x, softness = check(name, x, softness, mode)
    checks.real_number_or_tensor(name, "min_value", low)
    checks.real_number_or_tensor(name, "max_value", high)
    if mode == "hard":
        return HardClamp.forward(x, low, high)
    return Clamp.apply(x, low, high, softness, gated, mode, name == "clamp_st")
