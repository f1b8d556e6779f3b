"""`softrelu` and `relu`: the rectifier, soft."""

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.fast import replaceable
from fullgrad._core.opmath import cast
from fullgrad._core.pieces import pointwise
from fullgrad.soft import _curves as curves
from fullgrad.soft._mode_names import SOFT_MODES, Mode, SoftMode
from fullgrad.soft._relaxation import Relaxation, Softness, check, expand_to_softness_shape
from fullgrad.soft._sigmoidal import sigmoid_times


def softrelu(x: Tensor, softness: Softness = 0.1, mode: SoftMode = "smooth", gated: bool = False) -> Tensor:
    r"""A soft rectifier: the integral of the soft step, or ``x`` times the step.

    .. math::
        R(x) = \int_{-\infty}^x S, \qquad D_x = S(x), \qquad D_s = \frac{R - x S}{s} \\
        \text{gated:}\quad G(x) = x\,S(x), \qquad D_x = S(x) + x S'(x), \qquad D_s = -\frac{x^2}{s} S'(x)

    with :math:`S` of :func:`sigmoidal`: in smooth mode :math:`R = s \log(1 + e^{x/s})`, softplus, and gated the SiLU; in the
    others a polynomial within 5 softnesses of 0, and hard beyond. Saved: ``x``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        softness: The width of the transition, positive: a number, or a tensor that broadcasts and gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"`` or ``"c2"``.
        gated: Whether the value is ``x`` times the soft step, rather than the integral of the step.

    Returns:
        A tensor of the broadcast shape.

    Raises:
        TypeError: ``x`` is not a real tensor, or ``softness`` is not a real number or tensor.
        ValueError: ``softness`` is a number that is not positive, or ``mode`` is unknown.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([-1.0, 0.0, 0.25])
        >>> fullgrad.soft.softrelu(x, 0.1)
        tensor([4.5399e-06, 6.9315e-02, 2.5789e-01])
        >>> fullgrad.soft.softrelu(x, 0.1, "c0", gated=True)
        tensor([-0.0000, 0.0000, 0.1875])

    Source: ``softtorch.softrelu``.
    """
    if gated.__class__ is not bool:
        checks.flag("softrelu", "gated", gated)
    x, softness = check("softrelu", x, softness, mode, SOFT_MODES)
    return relaxed(x, softness, gated, mode)


def relu(x: Tensor, softness: Softness = 0.1, mode: Mode = "smooth", gated: bool = False) -> Tensor:
    r"""A soft rectifier: :func:`softrelu`, with a hard mode.

    .. math::
        y = R(x), \qquad D_x = S(x), \qquad D_s = \frac{R - x S}{s}

    or gated, and with the modes of :func:`softrelu`; ``"hard"``: :func:`torch.relu`. Saved: ``x``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        softness: The width of the transition, positive: a number, or a tensor that broadcasts and gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"`` or ``"hard"``.
        gated: Whether the value is ``x`` times the soft step, rather than the integral of the step.

    Returns:
        A tensor of the broadcast shape.

    Raises:
        TypeError: ``x`` is not a real tensor, or ``softness`` is not a real number or tensor.
        ValueError: ``softness`` is a number that is not positive, or ``mode`` is unknown.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.relu(torch.tensor([-1.0, 0.0, 0.25]), mode="c2")
        tensor([0.0000, 0.0781, 0.2571])

    Source: ``softtorch.relu``.
    """
    if gated.__class__ is not bool:
        checks.flag("relu", "gated", gated)
    x, softness = check("relu", x, softness, mode)
    return torch.relu(x) if mode == "hard" else relaxed(x, softness, gated, mode)


def relu_st(x: Tensor, softness: Softness = 0.1, mode: Mode = "smooth", gated: bool = False) -> Tensor:
    r"""The rectifier with the derivative of its relaxation.

    .. math::
        y = \max(x, 0), \qquad D_x = S(x) \quad\text{(gated: } S(x) + x S'(x)\text{)}

    with :math:`S` of :func:`fullgrad.soft.sigmoidal` and the derivatives of :func:`fullgrad.soft.softrelu`, at every order.
    The value is that of :func:`torch.relu`, bit for bit. Saved: ``x``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        softness: The width of the transition, positive: a number, or a tensor that broadcasts and gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, or ``"hard"`` for the derivative of the hard operator.
        gated: Whether the derivative is that of ``x`` times the soft step, rather than of the integral of the step.

    Returns:
        A tensor of the broadcast shape.

    Raises:
        TypeError: ``x`` is not a real tensor, or ``softness`` is not a real number or tensor.
        ValueError: ``softness`` is a number that is not positive, or ``mode`` is unknown.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([-0.1, 0.0, 2.0])
        >>> fullgrad.relu_st(x)
        tensor([0., 0., 2.])
        >>> torch.func.vmap(torch.func.grad(fullgrad.relu_st))(x)
        tensor([0.2689, 0.5000, 1.0000])

    Source: ``softtorch.relu_st``.
    """
    if gated.__class__ is not bool:
        checks.flag("relu_st", "gated", gated)
    x, softness = check("relu_st", x, softness, mode)
    return torch.relu(x) if mode == "hard" else Softrelu.apply(x, softness, gated, mode, True)


class Softrelu(Relaxation):
    """The operator of :func:`softrelu`, and with ``hard`` of :func:`relu_st`."""

    reads = {0: (0, 1), 1: (0, 1)}

    @staticmethod
    def forward(x: Tensor, softness: Softness, gated: bool, mode: str, hard: bool) -> Tensor:
        if hard:
            return expand_to_softness_shape(torch.relu(x), softness)
        return cast((_gated if gated else _softplus)(x, softness, mode), x.dtype)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Tensor, s: Softness, gated: bool, mode: str, hard: bool) -> Tensor:
        if i == 1:
            return v * (curves.gated_by_softness if gated else curves.softplus_by_softness)(x, s, mode)
        return (curves.gated_slope_times if gated else sigmoid_times)(v, x, s, mode)


@replaceable
def relaxed(x: Tensor, softness: Softness, gated: bool, mode: str) -> Tensor:
    """The soft value."""
    return Softrelu.apply(x, softness, gated, mode, False)


_softplus, _gated = pointwise(curves.softplus, opmath=True), pointwise(curves.gated, opmath=True)
