"""`sigmoidal` and `heaviside`: a soft step from 0 to 1."""

import torch
from torch import Tensor

from fullgrad._core.opmath import cast
from fullgrad._core.pieces import pointwise
from fullgrad._core.windows import compared, sigmoid_gate
from fullgrad.soft import _curves as curves
from fullgrad.soft._mode_names import ANY_STEP_MODES, STEP_MODES, AnyStepMode, StepMode
from fullgrad.soft._relaxation import (
    Relaxation,
    Softness,
    check,
    expand_to_softness_shape,
    with_zero_derivative,
)


def sigmoidal(x: Tensor, softness: Softness = 0.1, mode: StepMode = "smooth") -> Tensor:
    r"""A step from 0 to 1 around 0.

    .. math::
        S(x) = \frac{1}{1 + e^{-x / s}}, \qquad D_x = S'(x) = \frac{S (1 - S)}{s}, \qquad D_s = -\frac{x}{s} S'(x)

    in smooth mode; in the others, with :math:`t = \operatorname{clamp}((x + 5s) / 10s, 0, 1)`, ``c0``: :math:`t`; ``c1``:
    :math:`3t^2 - 2t^3`; ``c2``: :math:`10t^3 - 15t^4 + 6t^5`; and ``laplace``, :math:`\frac12 e^{x/s}` below 0 and
    :math:`1 - \frac12 e^{-x/s}` above. Derivatives of every order are the true ones, and
    :math:`S(-x) = 1 - S(x)`. Saved: ``x``, and the softness if it is a tensor.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        softness: The width of the step, a positive number, or a tensor that broadcasts with ``x`` and gets its own gradient.
        mode: ``"smooth"`` (infinitely differentiable), or ``"c0"``, ``"c1"``, ``"c2"`` (none, one or two
            times continuously differentiable, and 0 or 1 beyond 5 softnesses), or ``"laplace"`` (once).

    Returns:
        A tensor of the broadcast shape.

    Raises:
        TypeError: ``x`` is not a real tensor, or ``softness`` is not a real number or tensor.
        ValueError: ``softness`` is a number that is not positive, or ``mode`` is unknown.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([-1.0, 0.0, 0.25])
        >>> fullgrad.soft.sigmoidal(x, 0.1, "c1")
        tensor([0.0000, 0.5000, 0.8438])
        >>> torch.func.vmap(torch.func.grad(fullgrad.soft.sigmoidal))(x)
        tensor([4.5396e-04, 2.5000e+00, 7.0104e-01])

    Source: ``softtorch.sigmoidal``; https://arxiv.org/abs/2603.08824.
    """
    x, softness = check("sigmoidal", x, softness, mode, STEP_MODES)
    return Sigmoidal.apply(x, softness, mode, False)


def heaviside(x: Tensor, softness: Softness = 0.1, mode: AnyStepMode = "smooth") -> Tensor:
    r"""A soft Heaviside step: :func:`sigmoidal`, with a hard mode.

    .. math::
        y = S(x), \qquad D_x = S'(x), \qquad D_s = -\frac{x}{s} S'(x)

    with the modes of :func:`sigmoidal`, and ``"hard"``: 0, 1/2, 1 below, at and above 0, with the derivative 0. Saved: the
    same.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        softness: The width of the step, a positive number, or a tensor that broadcasts with ``x`` and gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, ``"laplace"`` or ``"hard"``.

    Returns:
        A tensor of the broadcast shape.

    Raises:
        TypeError: ``x`` is not a real tensor, or ``softness`` is not a real number or tensor.
        ValueError: ``softness`` is a number that is not positive, or ``mode`` is unknown.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.heaviside(torch.tensor([-0.1, 0.0, 0.1]))
        tensor([0.2689, 0.5000, 0.7311])

    Source: ``softtorch.heaviside``.
    """
    x, softness = check("heaviside", x, softness, mode, ANY_STEP_MODES)
    return with_zero_derivative(step(x), x) if mode == "hard" else Sigmoidal.apply(x, softness, mode, False)


def heaviside_st(x: Tensor, softness: Softness = 0.1, mode: AnyStepMode = "smooth") -> Tensor:
    r"""The Heaviside step with the derivative of its relaxation.

    .. math::
        y = [\,x > 0\,] + \tfrac12 [\,x = 0\,], \qquad D_x = S'(x), \qquad D_s = -\frac{x}{s} S'(x)

    with :math:`S` of :func:`fullgrad.soft.sigmoidal`, at every order. The value is that of ``torch.heaviside(x, 0.5)``, bit
    for bit. Saved: ``x``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        softness: The width of the step, a positive number, or a tensor that broadcasts with ``x`` and gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, ``"laplace"``, or ``"hard"`` for the derivative 0.

    Returns:
        A tensor of the broadcast shape.

    Raises:
        TypeError: ``x`` is not a real tensor, or ``softness`` is not a real number or tensor.
        ValueError: ``softness`` is a number that is not positive, or ``mode`` is unknown.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([-0.1, 0.0, 0.1])
        >>> fullgrad.heaviside_st(x)
        tensor([0.0000, 0.5000, 1.0000])
        >>> torch.func.vmap(torch.func.grad(fullgrad.heaviside_st))(x)
        tensor([1.9661, 2.5000, 1.9661])

    Source: ``softtorch.heaviside_st``.
    """
    x, softness = check("heaviside_st", x, softness, mode, ANY_STEP_MODES)
    if mode == "hard":
        return heaviside(x, softness, mode)
    return Sigmoidal.apply(x, softness, mode, True)


class Sigmoidal(Relaxation):
    """The operator of :func:`sigmoidal`, and with ``hard`` of :func:`heaviside_st`."""

    reads = {0: (0, 1), 1: (0, 1)}
    in_pieces = "half"  # the terms are pointwise themselves

    @staticmethod
    def forward(x: Tensor, softness: Softness, mode: str, hard: bool) -> Tensor:
        if hard:
            return expand_to_softness_shape(step(x), softness)
        return cast(value(x, softness, mode), x.dtype)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Tensor, s: Softness, mode: str, hard: bool) -> Tensor:
        return (curves.slope_times if i == 0 else curves.sigmoid_by_softness_times)(v, x, s, mode)


def sigmoid_times(v: Tensor, x: Tensor, s: Softness, mode: str) -> Tensor:
    """v S, where the derivative of S is the declared one on the joins, too."""
    if mode == "smooth" and not isinstance(s, Tensor):  # by which the gate would be NaN at infinity
        return sigmoid_gate(v, x, s)
    return v * Sigmoidal.apply(x, s, mode, False)


value = pointwise(curves.sigmoid, opmath=True)


def step(x: Tensor) -> Tensor:
    """``torch.heaviside(x, 0.5)``, NaN included, faster and under every transform."""
    return torch.lerp(compared(torch.gt, x, 0), compared(torch.ge, x, 0), 0.5)
