"""`eq`, `not_equal`, `isclose`: soft truth values of equality."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.function import recomputed
from fullgrad._core.opmath import cast
from fullgrad._core.pieces import pointwise
from fullgrad._core.windows import as_number, compared, where_positive
from fullgrad._dispatch import is_float
from fullgrad.soft import _curves as curves
from fullgrad.soft._mode_names import Mode
from fullgrad.soft._relaxation import (
    Operand,
    Relaxation,
    Softness,
    check,
    check_other,
    expand_to_softness_shape,
    with_zero_derivative,
)


def eq(x: Tensor, y: Operand, softness: Softness = 0.1, mode: Mode = "smooth", epsilon: float = 1e-10) -> Tensor:
    r"""The soft truth value of ``x == y``, in [0, 1].

    .. math::
        c = 2 S(-\max(q, 0)), \quad q = A(x - y) - \epsilon, \qquad D_x = -2 S'(q) A'(x - y), \qquad D_y = -D_x

    with :math:`S` of :func:`sigmoidal` and :math:`A` of :func:`abs`; ``"hard"``: 0 or 1, with the derivative 0. The maximum,
    which the source lacks, keeps the value in [0, 1]. Saved: ``x`` and ``y``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        y: A tensor that broadcasts with ``x``, or a number.
        softness: The width of the transition, positive: a number, or a tensor that broadcasts and gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"`` or ``"hard"``.
        epsilon: The smallest distance that is not taken for 0.

    Returns:
        A tensor of the broadcast shape, of the dtype of ``x - y``.

    Raises:
        TypeError: ``x`` is not a real tensor, ``y`` or ``softness`` is not a real number or tensor.
        ValueError: ``softness`` is a number that is not positive, or ``mode`` is unknown.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.eq(torch.tensor([0.0, 0.1, 2.0]), 0.0)
        tensor([1.0000e+00, 7.7297e-01, 4.1223e-09])

    Source: ``softtorch.eq``.
    """
    return _closeness("eq", x, y, softness, 0.0, 0.0, mode, epsilon)


def not_equal(x: Tensor, y: Operand, softness: Softness = 0.1, mode: Mode = "smooth", epsilon: float = 1e-10) -> Tensor:
    r"""The soft truth value of ``x != y``, in [0, 1].

    .. math::
        c = 2 S(\max(q, 0)) - 1, \quad q = A(x - y) - \epsilon, \qquad D_x = 2 S'(q) A'(x - y), \qquad D_y = -D_x

    with :math:`S` of :func:`sigmoidal` and :math:`A` of :func:`abs`; ``"hard"``: 0 or 1, with the derivative 0. The value
    is 1 - :func:`eq`. Saved: ``x`` and ``y``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        y: A tensor that broadcasts with ``x``, or a number.
        softness: The width of the transition, positive: a number, or a tensor that broadcasts and gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"`` or ``"hard"``.
        epsilon: The smallest distance that is not taken for 0.

    Returns:
        A tensor of the broadcast shape, of the dtype of ``x - y``.

    Raises:
        TypeError: ``x`` is not a real tensor, ``y`` or ``softness`` is not a real number or tensor.
        ValueError: ``softness`` is a number that is not positive, or ``mode`` is unknown.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.not_equal(torch.tensor([0.0, 0.1, 2.0]), 0.0)
        tensor([0.0000, 0.2270, 1.0000])

    Source: ``softtorch.not_equal``.
    """
    return _closeness("not_equal", x, y, softness, 0.0, 0.0, mode, epsilon)


def isclose(
    x: Tensor,
    y: Operand,
    softness: Softness = 0.1,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    mode: Mode = "smooth",
    epsilon: float = 1e-10,
) -> Tensor:
    r"""The soft truth value of ``|x - y| <= atol + rtol * |y|``, in [0, 1].

    .. math::
        c = 2 S(-\max(q, 0)), \quad q = A(x - y) - \mathrm{atol} - \mathrm{rtol}\, A(y) - \epsilon, \qquad
        D_x = -2 S'(q) A'(x - y), \qquad D_y = 2 S'(q)\,(A'(x - y) + \mathrm{rtol}\, A'(y))

    with :math:`S` of :func:`sigmoidal` and :math:`A` of :func:`abs`; ``"hard"``: 0 or 1, with the derivative 0. Within the
    tolerance the value is 1, with the derivative 0, which jumps there: the maximum, which the source lacks, keeps it in [0, 1].
    Saved: ``x`` and ``y``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        y: A tensor that broadcasts with ``x``, or a number.
        softness: The width of the transition, positive: a number, or a tensor that broadcasts and gets its own gradient.
        rtol: The tolerance relative to ``y``, not negative.
        atol: The absolute tolerance, not negative.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"`` or ``"hard"``.
        epsilon: The smallest distance that is not taken for 0.

    Returns:
        A tensor of the broadcast shape, of the dtype of ``x - y``.

    Raises:
        TypeError: ``x`` is not a real tensor, ``y`` or ``softness`` is not a real number or tensor.
        ValueError: ``softness`` is a number that is not positive, a tolerance is negative, or ``mode`` is unknown.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.isclose(torch.tensor([0.0, 0.1, 2.0]), 0.0, rtol=0.0, atol=0.1)
        tensor([1.0000e+00, 1.0000e+00, 1.1206e-08])

    Source: ``softtorch.isclose``.
    """
    return _closeness("isclose", x, y, softness, rtol, atol, mode, epsilon)


def eq_st(x: Tensor, y: Operand, softness: Softness = 0.1, mode: Mode = "smooth", epsilon: float = 1e-10) -> Tensor:
    r"""Whether ``x == y`` as 0 or 1, with the derivative of its relaxation.

    .. math::
        c = [\,x = y\,], \qquad D_x = -2 S'(q) A'(x - y), \quad q = A(x - y) - \epsilon, \qquad D_y = -D_x

    with :math:`S` of :func:`fullgrad.soft.sigmoidal` and :math:`A` of :func:`fullgrad.soft.abs`, at every order. The value is
    that of :func:`torch.eq`, NaN included. Saved: ``x`` and ``y``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        y: A tensor that broadcasts with ``x``, or a number.
        softness: The width of the transition, positive: a number, or a tensor that broadcasts and gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, or ``"hard"`` for the derivative 0.
        epsilon: The smallest distance that is not taken for 0 in the derivative.

    Returns:
        A tensor of the broadcast shape, of the dtype of ``x - y``.

    Raises:
        TypeError: ``x`` is not a real tensor, ``y`` or ``softness`` is not a real number or tensor.
        ValueError: ``softness`` is a number that is not positive, or ``mode`` is unknown.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([0.0, 0.1])
        >>> fullgrad.eq_st(x, 0.0)
        tensor([1., 0.])
        >>> torch.func.vmap(torch.func.grad(lambda x: fullgrad.eq_st(x, 0.0)))(x)
        tensor([ 0.0000, -4.0563])

    Source: ``softtorch.eq_st``.
    """
    return _closeness("eq_st", x, y, softness, 0.0, 0.0, mode, epsilon)


def not_equal_st(x: Tensor, y: Operand, softness: Softness = 0.1, mode: Mode = "smooth", epsilon: float = 1e-10) -> Tensor:
    r"""Whether ``x != y`` as 0 or 1, with the derivative of its relaxation.

    .. math::
        c = [\,x \ne y\,], \qquad D_x = 2 S'(q) A'(x - y), \quad q = A(x - y) - \epsilon, \qquad D_y = -D_x

    with :math:`S` of :func:`fullgrad.soft.sigmoidal` and :math:`A` of :func:`fullgrad.soft.abs`, at every order. The value is
    that of :func:`torch.not_equal`, NaN included. Saved: ``x`` and ``y``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        y: A tensor that broadcasts with ``x``, or a number.
        softness: The width of the transition, positive: a number, or a tensor that broadcasts and gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, or ``"hard"`` for the derivative 0.
        epsilon: The smallest distance that is not taken for 0 in the derivative.

    Returns:
        A tensor of the broadcast shape, of the dtype of ``x - y``.

    Raises:
        TypeError: ``x`` is not a real tensor, ``y`` or ``softness`` is not a real number or tensor.
        ValueError: ``softness`` is a number that is not positive, or ``mode`` is unknown.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([0.0, 0.1])
        >>> fullgrad.not_equal_st(x, 0.0)
        tensor([0., 1.])
        >>> torch.func.vmap(torch.func.grad(lambda x: fullgrad.not_equal_st(x, 0.0)))(x)
        tensor([0.0000, 4.0563])

    Source: ``softtorch.not_equal_st``.
    """
    return _closeness("not_equal_st", x, y, softness, 0.0, 0.0, mode, epsilon)


def isclose_st(
    x: Tensor,
    y: Operand,
    softness: Softness = 0.1,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    mode: Mode = "smooth",
    epsilon: float = 1e-10,
) -> Tensor:
    r"""Whether ``x`` is close to ``y`` as 0 or 1, with the derivative of its relaxation.

    .. math::
        c = [\,|x - y| \le \mathrm{atol} + \mathrm{rtol}\,|y|\,], \qquad D_x = -2 S'(q) A'(x - y), \qquad
        D_y = 2 S'(q)\,(A'(x - y) + \mathrm{rtol}\, A'(y))

    with :math:`q` of :func:`fullgrad.soft.isclose`, at every order. The value is that of :func:`torch.isclose`, infinities
    and NaN included. Saved: ``x`` and ``y``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        y: A tensor that broadcasts with ``x``, or a number.
        softness: The width of the transition, positive: a number, or a tensor that broadcasts and gets its own gradient.
        rtol: The tolerance relative to ``y``, not negative.
        atol: The absolute tolerance, not negative.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, or ``"hard"`` for the derivative 0.
        epsilon: The smallest distance that is not taken for 0 in the derivative.

    Returns:
        A tensor of the broadcast shape, of the dtype of ``x - y``.

    Raises:
        TypeError: ``x`` is not a real tensor, ``y`` or ``softness`` is not a real number or tensor.
        ValueError: ``softness`` is a number that is not positive, a tolerance is negative, or ``mode`` is unknown.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([0.0, 0.1])
        >>> fullgrad.isclose_st(x, 0.0, atol=0.05)
        tensor([1., 0.])

    Source: ``softtorch.isclose_st``.
    """
    return _closeness("isclose_st", x, y, softness, rtol, atol, mode, epsilon)


class Closeness(Relaxation):
    """The operator of :func:`eq`, :func:`not_equal` and :func:`isclose`, and with ``hard`` of their straight-through versions."""

    reads = dict.fromkeys(range(3), (0, 1, 2))

    @staticmethod
    def forward(
        x: Tensor, y: Any, softness: Softness, name: str, rtol: float, atol: float, epsilon: float, mode: str, hard: bool
    ) -> Tensor:
        if hard:
            return expand_to_softness_shape(_hard(name, x, y, rtol, atol), softness)
        return cast(_value(x, y, softness, name, rtol, atol + epsilon, mode), torch.result_type(x, y))

    @classmethod
    def vjp_terms(cls, needed: Sequence[bool], g: Tensor, x: Tensor, y: Any, s: Softness, *constants: Any) -> list[Tensor | None]:
        name, rtol, atol, epsilon, mode, _ = constants
        d = curves.clamp_to_finite(x - y)
        distance, slope = curves.absolute_and_slope(d, s, mode)
        q, slope_of_y = distance - (atol + epsilon), None
        if name == "isclose":
            of_y, slope_of_y = curves.absolute_and_slope(_finite(y, x), s, mode)
            q = q - of_y * rtol
        # 0 within epsilon, or the tolerance.
        by_q = where_positive(curves.right_slope_times(g, q, s, mode, 2 if name == "not_equal" else -2), q)
        to_x = by_q * slope if needed[0] or needed[1] else None
        to_y = to_s = None
        if needed[1] and to_x is not None:
            to_y = -to_x if name != "isclose" else -to_x - by_q * slope_of_y * rtol  # pyright: ignore[reportOptionalOperand]
        if needed[2]:  # through the distance, and as 2S(-q) directly
            by_softness = curves.absolute_by_softness(d, s, mode) - curves.clamp_to_transition(q, s, mode) / s
            if name == "isclose":
                by_softness = by_softness - rtol * curves.absolute_by_softness(_tensor(y, x), s, mode)
            to_s = by_q * by_softness
        return [to_x if needed[0] else None, to_y, to_s, *_NO_GRADIENTS]


_NO_GRADIENTS = (None,) * 6


@pointwise(opmath=True)
def _value(x: Tensor, y: Any, s: Softness, name: str, rtol: float, tolerance: float, mode: str) -> Tensor:
    q = curves.absolute(x - y, s, mode) - tolerance
    if name == "isclose":
        q = q - curves.absolute(_finite(y, x), s, mode) * rtol
    q = torch.clamp(q, 0)
    return curves.soft_sign(q, s, mode) if name == "not_equal" else curves.sigmoid(-q, s, mode) * 2


def _tensor(y: Any, x: Tensor) -> Tensor:
    return y if isinstance(y, Tensor) else torch.full((), y, dtype=x.dtype, device=x.device)


def _finite(y: Any, x: Tensor) -> Tensor:
    """y without infinities, whose tolerance would be as large as the distance from them."""
    largest = torch.finfo((y if isinstance(y, Tensor) else x).dtype).max
    if is_float(y) and math.isfinite(y):
        return _tensor(max(-largest, min(largest, y)), x)
    return torch.clamp(_tensor(y, x), -largest, largest)


def _hard(name: str, x: Tensor, y: Any, rtol: float, atol: float) -> Tensor:
    if name == "isclose":
        dtype = torch.result_type(x, y)
        return as_number(recomputed(torch.isclose, x.to(dtype), _tensor(y, x).to(dtype), rtol, atol), dtype)
    return compared(getattr(torch, name), x, y)


def _closeness(name: str, x: Any, y: Any, softness: Any, rtol: float, atol: float, mode: str, epsilon: float) -> Tensor:
    x, softness = check(name, x, softness, mode)
    y = check_other(name, "y", y)
    checks.non_negative_number(name, "epsilon", epsilon)
    if name.startswith("isclose"):
        checks.non_negative_number(name, "rtol", rtol)
        checks.non_negative_number(name, "atol", atol)
    hard = name.endswith("_st")
    name = name.removesuffix("_st")
    if mode == "hard":
        return with_zero_derivative(_hard(name, x, y, rtol, atol), x, y)
    return Closeness.apply(x, y, softness, name, rtol, atol, epsilon, mode, hard)
