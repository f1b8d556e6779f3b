"""`abs`: the absolute value, soft."""

import torch
from torch import Tensor

from fullgrad._core.opmath import cast
from fullgrad._core.pieces import pointwise
from fullgrad.soft import _curves as curves
from fullgrad.soft._mode_names import Mode
from fullgrad.soft._relaxation import Relaxation, Softness, check, expand_to_softness_shape


def abs(x: Tensor, softness: Softness = 0.1, mode: Mode = "smooth") -> Tensor:
    r"""A soft absolute value.

    .. math::
        y = x\,(2 S(x) - 1), \qquad D_x = 2 S(x) - 1 + 2x S'(x), \qquad D_s = -\frac{2x^2}{s} S'(x)

    with :math:`S` of :func:`sigmoidal`; ``"hard"``: :func:`torch.abs`. The value is even, at most ``|x|``, and 0 at 0.
    Saved: ``x``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        softness: The width of the transition, positive: a number, or a tensor that broadcasts and gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"`` or ``"hard"``.

    Returns:
        A tensor of the broadcast shape.

    Raises:
        TypeError: ``x`` is not a real tensor, or ``softness`` is not a real number or tensor.
        ValueError: ``softness`` is a number that is not positive, or ``mode`` is unknown.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.abs(torch.tensor([-1.0, 0.0, 0.1]))
        tensor([0.9999, 0.0000, 0.0462])

    Source: ``softtorch.abs``.
    """
    x, softness = check("abs", x, softness, mode)
    return torch.abs(x) if mode == "hard" else Abs.apply(x, softness, mode, False)


def abs_st(x: Tensor, softness: Softness = 0.1, mode: Mode = "smooth") -> Tensor:
    r"""The absolute value with the derivative of its relaxation.

    .. math::
        y = |x|, \qquad D_x = 2 S(x) - 1 + 2x S'(x), \qquad D_s = -\frac{2x^2}{s} S'(x)

    with :math:`S` of :func:`fullgrad.soft.sigmoidal`, at every order. The value is that of :func:`torch.abs`, bit for bit.
    Saved: ``x``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        softness: The width of the transition, positive: a number, or a tensor that broadcasts and gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, or ``"hard"`` for the derivative of the hard operator.

    Returns:
        A tensor of the broadcast shape.

    Raises:
        TypeError: ``x`` is not a real tensor, or ``softness`` is not a real number or tensor.
        ValueError: ``softness`` is a number that is not positive, or ``mode`` is unknown.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([-2.0, 0.0, 0.1])
        >>> fullgrad.abs_st(x)
        tensor([2.0000, 0.0000, 0.1000])
        >>> torch.func.vmap(torch.func.grad(fullgrad.abs_st))(x)
        tensor([-1.0000,  0.0000,  0.8553])

    Source: ``softtorch.abs_st``.
    """
    x, softness = check("abs_st", x, softness, mode)
    return torch.abs(x) if mode == "hard" else Abs.apply(x, softness, mode, True)


class Abs(Relaxation):
    """The operator of :func:`abs`, and with ``hard`` of :func:`abs_st`."""

    reads = {0: (0, 1), 1: (0, 1)}

    @staticmethod
    def forward(x: Tensor, softness: Softness, mode: str, hard: bool) -> Tensor:
        if hard:
            return expand_to_softness_shape(torch.abs(x), softness)
        return cast(_value(x, softness, mode), x.dtype)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Tensor, s: Softness, mode: str, hard: bool) -> Tensor:
        return v * (curves.absolute_slope if i == 0 else curves.absolute_by_softness)(x, s, mode)


_value = pointwise(curves.absolute, opmath=True)
