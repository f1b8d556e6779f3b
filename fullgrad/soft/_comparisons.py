"""`greater`, `greater_equal`, `less`, `less_equal`: soft truth values of inequalities."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.opmath import cast
from fullgrad._core.pieces import pointwise
from fullgrad._core.windows import compared
from fullgrad._dispatch import surely
from fullgrad.soft import _curves as curves
from fullgrad.soft._mode_names import ANY_STEP_MODES, AnyStepMode
from fullgrad.soft._relaxation import (
    Operand,
    Relaxation,
    Softness,
    check,
    check_other,
    expand_to_softness_shape,
    with_zero_derivative,
)


def greater(x: Tensor, y: Operand, softness: Softness = 0.1, mode: AnyStepMode = "smooth", epsilon: float = 1e-10) -> Tensor:
    r"""The soft truth value of ``x > y``, in [0, 1].

    .. math::
        c = S(x - y - \epsilon), \qquad D_x = S', \qquad D_y = -S'

    with :math:`S` of :func:`sigmoidal`; ``"hard"``: 0 or 1, with the derivative 0. Saved: those of
    ``x``, ``y`` and the softness that are tensors.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        y: A tensor that broadcasts with ``x``, or a number.
        softness: The width of the transition, positive: a number, or a tensor that broadcasts and gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, ``"laplace"`` or ``"hard"``.
        epsilon: A small shift, which makes the value at ``x = y`` less than 1/2.

    Returns:
        A tensor of the broadcast shape, of the dtype of ``x - y``.

    Raises:
        TypeError: ``x`` is not a real tensor, ``y`` or ``softness`` is not a real number or tensor.
        ValueError: ``softness`` is a number that is not positive, or ``mode`` is unknown.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.greater(torch.tensor([0.0, 0.1, 2.0]), 0.0)
        tensor([0.5000, 0.7311, 1.0000])

    Source: ``softtorch.greater``.
    """
    return _comparison("greater", x, y, softness, mode, epsilon)


def greater_equal(
    x: Tensor, y: Operand, softness: Softness = 0.1, mode: AnyStepMode = "smooth", epsilon: float = 1e-10
) -> Tensor:
    r"""The soft truth value of ``x >= y``, in [0, 1].

    .. math::
        c = S(x - y + \epsilon), \qquad D_x = S', \qquad D_y = -S'

    with :math:`S` of :func:`sigmoidal`; ``"hard"``: 0 or 1, with the derivative 0. Saved: those of
    ``x``, ``y`` and the softness that are tensors.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        y: A tensor that broadcasts with ``x``, or a number.
        softness: The width of the transition, positive: a number, or a tensor that broadcasts and gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, ``"laplace"`` or ``"hard"``.
        epsilon: A small shift, which makes the value at ``x = y`` greater than 1/2.

    Returns:
        A tensor of the broadcast shape, of the dtype of ``x - y``.

    Raises:
        TypeError: ``x`` is not a real tensor, ``y`` or ``softness`` is not a real number or tensor.
        ValueError: ``softness`` is a number that is not positive, or ``mode`` is unknown.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.greater_equal(torch.tensor([0.0, 0.1, 2.0]), 0.0)
        tensor([0.5000, 0.7311, 1.0000])

    Source: ``softtorch.greater_equal``.
    """
    return _comparison("greater_equal", x, y, softness, mode, epsilon)


def less(x: Tensor, y: Operand, softness: Softness = 0.1, mode: AnyStepMode = "smooth", epsilon: float = 1e-10) -> Tensor:
    r"""The soft truth value of ``x < y``, in [0, 1].

    .. math::
        c = S(y - x - \epsilon), \qquad D_x = -S', \qquad D_y = S'

    with :math:`S` of :func:`sigmoidal`; ``"hard"``: 0 or 1, with the derivative 0. Saved: those of
    ``x``, ``y`` and the softness that are tensors.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        y: A tensor that broadcasts with ``x``, or a number.
        softness: The width of the transition, positive: a number, or a tensor that broadcasts and gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, ``"laplace"`` or ``"hard"``.
        epsilon: A small shift, which makes the value at ``x = y`` less than 1/2.

    Returns:
        A tensor of the broadcast shape, of the dtype of ``x - y``.

    Raises:
        TypeError: ``x`` is not a real tensor, ``y`` or ``softness`` is not a real number or tensor.
        ValueError: ``softness`` is a number that is not positive, or ``mode`` is unknown.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.less(torch.tensor([0.0, 0.1, 2.0]), 0.0)
        tensor([5.0000e-01, 2.6894e-01, 2.0612e-09])

    Source: ``softtorch.less``.
    """
    return _comparison("less", x, y, softness, mode, epsilon)


def less_equal(x: Tensor, y: Operand, softness: Softness = 0.1, mode: AnyStepMode = "smooth", epsilon: float = 1e-10) -> Tensor:
    r"""The soft truth value of ``x <= y``, in [0, 1].

    .. math::
        c = S(y - x + \epsilon), \qquad D_x = -S', \qquad D_y = S'

    with :math:`S` of :func:`sigmoidal`; ``"hard"``: 0 or 1, with the derivative 0. Saved: those of
    ``x``, ``y`` and the softness that are tensors.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        y: A tensor that broadcasts with ``x``, or a number.
        softness: The width of the transition, positive: a number, or a tensor that broadcasts and gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, ``"laplace"`` or ``"hard"``.
        epsilon: A small shift, which makes the value at ``x = y`` greater than 1/2.

    Returns:
        A tensor of the broadcast shape, of the dtype of ``x - y``.

    Raises:
        TypeError: ``x`` is not a real tensor, ``y`` or ``softness`` is not a real number or tensor.
        ValueError: ``softness`` is a number that is not positive, or ``mode`` is unknown.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.less_equal(torch.tensor([0.0, 0.1, 2.0]), 0.0)
        tensor([5.0000e-01, 2.6894e-01, 2.0612e-09])

    Source: ``softtorch.less_equal``.
    """
    return _comparison("less_equal", x, y, softness, mode, epsilon)


def greater_st(x: Tensor, y: Operand, softness: Softness = 0.1, mode: AnyStepMode = "smooth", epsilon: float = 1e-10) -> Tensor:
    r"""Whether ``x > y`` as 0 or 1, with the derivative of its relaxation.

    .. math::
        c = [\,x > y\,], \qquad D_x = S'(x - y - \epsilon), \qquad D_y = -D_x

    with :math:`S` of :func:`fullgrad.soft.sigmoidal`, at every order. The value is that of :func:`torch.greater`, NaN
    included. Saved: ``x`` and ``y``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        y: A tensor that broadcasts with ``x``, or a number.
        softness: The width of the transition, positive: a number, or a tensor that broadcasts and gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, ``"laplace"``, or ``"hard"`` for the derivative 0.
        epsilon: The small shift of the relaxation.

    Returns:
        A tensor of the broadcast shape, of the dtype of ``x - y``.

    Raises:
        TypeError: ``x`` is not a real tensor, ``y`` or ``softness`` is not a real number or tensor.
        ValueError: ``softness`` is a number that is not positive, or ``mode`` is unknown.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([0.0, 0.1, 2.0])
        >>> fullgrad.greater_st(x, 0.0)
        tensor([0., 1., 1.])
        >>> torch.func.vmap(torch.func.grad(lambda x: fullgrad.greater_st(x, 0.0)))(x[:2])
        tensor([2.5000, 1.9661])

    Source: ``softtorch.greater_st``.
    """
    return _comparison("greater_st", x, y, softness, mode, epsilon)


def greater_equal_st(
    x: Tensor, y: Operand, softness: Softness = 0.1, mode: AnyStepMode = "smooth", epsilon: float = 1e-10
) -> Tensor:
    r"""Whether ``x >= y`` as 0 or 1, with the derivative of its relaxation.

    .. math::
        c = [\,x \ge y\,], \qquad D_x = S'(x - y + \epsilon), \qquad D_y = -D_x

    with :math:`S` of :func:`fullgrad.soft.sigmoidal`, at every order. The value is that of :func:`torch.greater_equal`, NaN
    included. Saved: ``x`` and ``y``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        y: A tensor that broadcasts with ``x``, or a number.
        softness: The width of the transition, positive: a number, or a tensor that broadcasts and gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, ``"laplace"``, or ``"hard"`` for the derivative 0.
        epsilon: The small shift of the relaxation.

    Returns:
        A tensor of the broadcast shape, of the dtype of ``x - y``.

    Raises:
        TypeError: ``x`` is not a real tensor, ``y`` or ``softness`` is not a real number or tensor.
        ValueError: ``softness`` is a number that is not positive, or ``mode`` is unknown.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([0.0, 0.1, 2.0])
        >>> fullgrad.greater_equal_st(x, 0.0)
        tensor([1., 1., 1.])
        >>> torch.func.vmap(torch.func.grad(lambda x: fullgrad.greater_equal_st(x, 0.0)))(x[:2])
        tensor([2.5000, 1.9661])

    Source: ``softtorch.greater_equal_st``.
    """
    return _comparison("greater_equal_st", x, y, softness, mode, epsilon)


def less_st(x: Tensor, y: Operand, softness: Softness = 0.1, mode: AnyStepMode = "smooth", epsilon: float = 1e-10) -> Tensor:
    r"""Whether ``x < y`` as 0 or 1, with the derivative of its relaxation.

    .. math::
        c = [\,x < y\,], \qquad D_x = -S'(y - x - \epsilon), \qquad D_y = -D_x

    with :math:`S` of :func:`fullgrad.soft.sigmoidal`, at every order. The value is that of :func:`torch.less`, NaN included.
    Saved: ``x`` and ``y``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        y: A tensor that broadcasts with ``x``, or a number.
        softness: The width of the transition, positive: a number, or a tensor that broadcasts and gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, ``"laplace"``, or ``"hard"`` for the derivative 0.
        epsilon: The small shift of the relaxation.

    Returns:
        A tensor of the broadcast shape, of the dtype of ``x - y``.

    Raises:
        TypeError: ``x`` is not a real tensor, ``y`` or ``softness`` is not a real number or tensor.
        ValueError: ``softness`` is a number that is not positive, or ``mode`` is unknown.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([0.0, 0.1, 2.0])
        >>> fullgrad.less_st(x, 0.0)
        tensor([0., 0., 0.])
        >>> torch.func.vmap(torch.func.grad(lambda x: fullgrad.less_st(x, 0.0)))(x[:2])
        tensor([-2.5000, -1.9661])

    Source: ``softtorch.less_st``.
    """
    return _comparison("less_st", x, y, softness, mode, epsilon)


def less_equal_st(
    x: Tensor, y: Operand, softness: Softness = 0.1, mode: AnyStepMode = "smooth", epsilon: float = 1e-10
) -> Tensor:
    r"""Whether ``x <= y`` as 0 or 1, with the derivative of its relaxation.

    .. math::
        c = [\,x \le y\,], \qquad D_x = -S'(y - x + \epsilon), \qquad D_y = -D_x

    with :math:`S` of :func:`fullgrad.soft.sigmoidal`, at every order. The value is that of :func:`torch.less_equal`, NaN
    included. Saved: ``x`` and ``y``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        y: A tensor that broadcasts with ``x``, or a number.
        softness: The width of the transition, positive: a number, or a tensor that broadcasts and gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, ``"laplace"``, or ``"hard"`` for the derivative 0.
        epsilon: The small shift of the relaxation.

    Returns:
        A tensor of the broadcast shape, of the dtype of ``x - y``.

    Raises:
        TypeError: ``x`` is not a real tensor, ``y`` or ``softness`` is not a real number or tensor.
        ValueError: ``softness`` is a number that is not positive, or ``mode`` is unknown.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([0.0, 0.1, 2.0])
        >>> fullgrad.less_equal_st(x, 0.0)
        tensor([1., 0., 0.])
        >>> torch.func.vmap(torch.func.grad(lambda x: fullgrad.less_equal_st(x, 0.0)))(x[:2])
        tensor([-2.5000, -1.9661])

    Source: ``softtorch.less_equal_st``.
    """
    return _comparison("less_equal_st", x, y, softness, mode, epsilon)


class Comparison(Relaxation):
    """The operator of the four comparisons, and with ``hard`` of their straight-through versions. The soft value is
    ``S(sign * (x - y) + shift)``.
    """

    reads = dict.fromkeys(range(3), (0, 1, 2))
    in_pieces = "half"  # the terms are pointwise themselves

    @staticmethod
    def forward(x: Tensor, y: Operand, softness: Softness, name: str, sign: int, shift: float, mode: str, hard: bool) -> Tensor:
        if hard:
            return expand_to_softness_shape(compared(getattr(torch, name), x, y), softness)
        return cast(value(x, y, softness, sign, shift, mode), torch.result_type(x, y))

    @classmethod
    def vjp_terms(cls, needed: Sequence[bool], v: Tensor, x: Tensor, y: Any, s: Softness, *constants: Any) -> list[Tensor | None]:
        _, sign, shift, mode, _ = constants
        to_x = slope_times(v, x, y, s, sign, shift, mode) if needed[0] or needed[1] else None
        to_y = -to_x if needed[1] and to_x is not None else None
        to_s = _by_softness_times(v, x, y, s, sign, shift, mode) if needed[2] else None
        return [to_x if needed[0] else None, to_y, to_s, *_NO_GRADIENTS]


@pointwise(opmath=True)
def value(x: Tensor, y: Any, s: Softness, sign: int, shift: float, mode: str) -> Tensor:
    return curves.sigmoid(argument(x, y, s, sign, shift), s, mode)


@pointwise
def slope_times(v: Tensor, x: Tensor, y: Any, s: Softness, sign: int, shift: float, mode: str) -> Tensor:
    """v times the derivative with respect to x."""
    return curves.slope_times(v, argument(x, y, s, sign, shift), s, mode, sign)


@pointwise
def _by_softness_times(v: Tensor, x: Tensor, y: Any, s: Softness, sign: int, shift: float, mode: str) -> Tensor:
    return curves.sigmoid_by_softness_times(v, argument(x, y, s, sign, shift), s, mode)


_NO_GRADIENTS = (None,) * 5
# The signs of x - y and of epsilon in the argument of S.
_SIGNS = {"greater": (1, -1), "greater_equal": (1, 1), "less": (-1, -1), "less_equal": (-1, 1)}


# A shift below this share of the softness changes S and its derivatives by less than their rounding.
_NEGLIGIBLE = {torch.float32: torch.finfo(torch.float32).eps / 16}


def argument(x: Tensor, y: Any, s: Softness, sign: int, shift: float) -> Tensor:
    d = x - y if sign == 1 else y - x
    if s.__class__ is float and surely(abs(shift) < s * _NEGLIGIBLE.get(d.dtype, 0.0)):
        return d
    return d + shift


def _comparison(name: str, x: Any, y: Any, softness: Any, mode: Any, epsilon: Any) -> Tensor:
    x, softness = check(name, x, softness, mode, ANY_STEP_MODES)
    y = check_other(name, "y", y)
    checks.real_number(name, "epsilon", epsilon)
    hard = name.endswith("_st")
    name = name.removesuffix("_st")
    if mode == "hard":
        return with_zero_derivative(compared(getattr(torch, name), x, y), x, y)
    sign, shift_sign = _SIGNS[name]
    return Comparison.apply(x, y, softness, name, sign, shift_sign * epsilon, mode, hard)
