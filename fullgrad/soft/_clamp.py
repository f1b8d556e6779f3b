"""`clamp`: between two bounds, soft."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.windows import sigmoid_gate
from fullgrad._dispatch import can_reuse_buffers
from fullgrad.clamping import Clamp as HardClamp
from fullgrad.soft import _curves as curves
from fullgrad.soft._mode_names import Mode
from fullgrad.soft._relaxation import Relaxation, Softness, check, expand_to_softness_shape, only_value_needed, soft_value
from fullgrad.soft._sigmoidal import Sigmoidal

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
    x, softness = _checked("clamp", x, min_value, max_value, softness, mode)
    return (
        HardClamp.forward(x, min_value, max_value)
        if mode == "hard"
        else Clamp.apply(x, min_value, max_value, softness, gated, mode, False)
    )


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
    if min_value.__class__ is float and max_value.__class__ is float and only_value_needed(x, softness, mode):
        return torch.clamp(x, min_value, max_value)  # pyright: ignore[reportArgumentType, reportCallIssue]
    x, softness = _checked("clamp_st", x, min_value, max_value, softness, mode)
    if mode == "hard":
        return HardClamp.forward(x, min_value, max_value)
    return Clamp.apply(x, min_value, max_value, softness, gated, mode, True)


class Clamp(Relaxation):
    """The operator of :func:`clamp`, and with ``hard`` of :func:`clamp_st`."""

    operands = 4

    @staticmethod
    def forward(x: Tensor, low: Bound, high: Bound, softness: Softness, gated: bool, mode: str, hard: bool) -> Tensor:
        if hard:
            return expand_to_softness_shape(HardClamp.forward(x, low, high), softness)
        dtype = torch.promote_types(torch.result_type(x, low), torch.result_type(x, high))
        beyond = curves.relu_minus_gated if gated else curves.relu_minus_softplus

        def formula(x: Tensor, low: Bound, high: Bound, s: Softness) -> Tensor:
            if isinstance(low, Tensor) and isinstance(high, Tensor):
                y = torch.minimum(torch.maximum(x, low), high)  # in a third of the time of torch.clamp
            else:
                y = HardClamp.forward(x, low, high)
            below, above = beyond(x - low, s, mode), beyond(x - high, s, mode)
            if isinstance(s, Tensor):  # it may have more dimensions
                return y - below + above
            return curves.apply_steps(y, (torch.sub, below), (torch.add, above))

        return soft_value(dtype, formula, x, low, high, softness)

    @staticmethod
    def vjp_term(
        i: int, v: Tensor, x: Tensor, low: Bound, high: Bound, s: Softness, gated: bool, mode: str, hard: bool, _: None
    ) -> Tensor:
        if not gated and curves.has_gate(s, mode):
            if i == 0:
                p = sigmoid_gate(v, x - low, s)
                return torch.sub(p, sigmoid_gate(v, x - high, s), out=p if can_reuse_buffers() else None)
            if i == 1:
                return sigmoid_gate(v, x - low, -s)
            if i == 2:
                return sigmoid_gate(v, x - high, s)
        if i == 0:
            return curves.mul_into(v, _slope(x - low, s, gated, mode) - _slope(x - high, s, gated, mode))
        if i == 1:
            return curves.mul_into(v, 1 - _slope(x - low, s, gated, mode))
        if i == 2:
            return curves.mul_into(v, _slope(x - high, s, gated, mode))
        by_softness = curves.gated_by_softness if gated else curves.softplus_by_softness
        return curves.mul_into(v, by_softness(x - low, s, mode) - by_softness(x - high, s, mode))


def _slope(q: Tensor, s: Softness, gated: bool, mode: str) -> Tensor:
    """The derivative R' of the rectifier."""
    return curves.gated_slope(q, s, mode) if gated else Sigmoidal.apply(q, s, mode, False)


def _checked(name: str, x: Any, low: Any, high: Any, softness: Any, mode: Any) -> tuple[Tensor, Softness]:
    x, softness = check(name, x, softness, mode)
    checks.real_number_or_tensor(name, "min_value", low)
    checks.real_number_or_tensor(name, "max_value", high)
    return x, softness
