"""`greater`, `greater_equal`, `less`, `less_equal`: soft truth values of inequalities."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._dispatch import surely
from fullgrad.soft import _curves as curves
from fullgrad.soft._mode_names import ANY_STEP_MODES, AnyStepMode
from fullgrad.soft._relaxation import (
    Operand,
    Relaxation,
    Softness,
    can_use_torch_ops,
    check,
    check_other,
    compared,
    expand_to_softness_shape,
    is_constant,
    only_value_needed,
    soft_value,
    with_zero_derivative,
)


def greater(x: Tensor, y: Operand, softness: Softness = 0.1, mode: AnyStepMode = "smooth", epsilon: float = 1e-10) -> Tensor:
    r"""The soft truth value of ``x > y``, in [0, 1].

    .. math::
        c = S(x - y - \epsilon), \qquad D_x = S', \qquad D_y = -S'

    with :math:`S` of :func:`sigmoidal`; ``"hard"``: 0 or 1, with the derivative 0. Saved: in smooth mode the
    value, else ``x`` and ``y``; all where the softness is a tensor, and in half precision.

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

    with :math:`S` of :func:`sigmoidal`; ``"hard"``: 0 or 1, with the derivative 0. Saved: in smooth mode the
    value, else ``x`` and ``y``; all where the softness is a tensor, and in half precision.

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

    with :math:`S` of :func:`sigmoidal`; ``"hard"``: 0 or 1, with the derivative 0. Saved: in smooth mode the
    value, else ``x`` and ``y``; all where the softness is a tensor, and in half precision.

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

    with :math:`S` of :func:`sigmoidal`; ``"hard"``: 0 or 1, with the derivative 0. Saved: in smooth mode the
    value, else ``x`` and ``y``; all where the softness is a tensor, and in half precision.

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

    operands, reads_output = 3, True

    @staticmethod
    def forward(x: Tensor, y: Operand, softness: Softness, name: str, sign: int, shift: float, mode: str, hard: bool) -> Tensor:
        if hard:
            return expand_to_softness_shape(compared(getattr(torch, name), x, y), softness)

        def formula(x: Tensor, y: Any, s: Softness) -> Tensor:
            return curves.sigmoid(_argument(x, y, s, sign, shift), s, mode)

        return soft_value(torch.result_type(x, y), formula, x, y, softness)

    @staticmethod
    def vjp_term(
        i: int, v: Tensor, x: Tensor, y: Any, s: Softness, name: str, sign: int, shift: float, mode: str, hard: bool, output: Any
    ) -> Tensor:
        if i == 2:
            return curves.mul_into(v, curves.sigmoid_by_softness(_argument(x, y, s, sign, shift), s, mode))
        factor = sign if i == 0 else -sign
        if output is None:
            return curves.slope_times(v, _argument(x, y, s, sign, shift), s, mode, factor)
        return curves.slope_of(v, output, s / factor)

    @classmethod
    def vjp_terms(cls, needed: Sequence[bool], g: Tensor, *args: Any) -> list[Tensor | None]:
        to_x = cls.vjp_term(0, g, *args) if needed[0] or needed[1] else None
        to_y = None if to_x is None or not needed[1] else -to_x
        return [to_x if needed[0] else None, to_y, cls.vjp_term(2, g, *args) if needed[2] else None]


# The signs of x - y and of epsilon in the argument of S.
_SIGNS = {"greater": (1, -1), "greater_equal": (1, 1), "less": (-1, -1), "less_equal": (-1, 1)}


# A shift below this share of the softness changes S and its derivatives by less than their rounding.
_NEGLIGIBLE = {torch.float32: torch.finfo(torch.float32).eps / 16}


def _argument(x: Tensor, y: Any, s: Softness, sign: int, shift: float) -> Tensor:
    d = x - y if sign == 1 else y - x
    if s.__class__ is float and surely(abs(shift) < s * _NEGLIGIBLE.get(d.dtype, 0.0)):
        return d
    return curves.apply_steps(d, (torch.add, shift))


def _comparison(name: str, x: Any, y: Any, softness: Any, mode: Any, epsilon: Any) -> Tensor:
    x, softness = check(name, x, softness, mode, ANY_STEP_MODES)
    y = check_other(name, "y", y)
    checks.real_number(name, "epsilon", epsilon)
    hard = name.endswith("_st")
    name = name.removesuffix("_st")
    if mode == "hard":
        return with_zero_derivative(compared(getattr(torch, name), x, y), x, y)
    if hard and is_constant(y) and only_value_needed(x, softness, mode):
        return compared(getattr(torch, name), x, y, value_only=True)
    sign, shift_sign = _SIGNS[name]
    if not hard and can_use_torch_ops(x, softness, mode):
        return curves.recorded_sigmoid(_argument(x, y, softness, sign, shift_sign * epsilon), softness, is_temporary=True)
    return Comparison.apply(x, y, softness, name, sign, shift_sign * epsilon, mode, hard)
