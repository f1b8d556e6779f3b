"""`sign`: -1, 0 or 1, soft."""

import torch
from torch import Tensor

from fullgrad._core.opmath import cast
from fullgrad._core.pieces import pointwise
from fullgrad.soft import _curves as curves
from fullgrad.soft._mode_names import Mode
from fullgrad.soft._relaxation import Relaxation, Softness, check, expand_to_softness_shape


def sign(x: Tensor, softness: Softness = 0.1, mode: Mode = "smooth") -> Tensor:
    r"""A soft sign.

    .. math::
        y = 2 S(x) - 1, \qquad D_x = 2 S'(x), \qquad D_s = -\frac{2x}{s} S'(x)

    with :math:`S` of :func:`sigmoidal`; ``"hard"``: :func:`torch.sign`. Saved: ``x``, and the
    softness if it is a tensor.

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
        >>> fullgrad.soft.sign(torch.tensor([-1.0, 0.0, 0.1]))
        tensor([-0.9999,  0.0000,  0.4621])

    Source: ``softtorch.sign``.
    """
    x, softness = check("sign", x, softness, mode)
    return torch.sign(x) if mode == "hard" else Sign.apply(x, softness, mode, False)


def sign_st(x: Tensor, softness: Softness = 0.1, mode: Mode = "smooth") -> Tensor:
    r"""The sign with the derivative of its relaxation.

    .. math::
        y = \operatorname{sign}(x), \qquad D_x = 2 S'(x), \qquad D_s = -\frac{2x}{s} S'(x)

    with :math:`S` of :func:`fullgrad.soft.sigmoidal`, at every order. The value is that of :func:`torch.sign`, bit for bit.
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
        >>> x = torch.tensor([-0.1, 0.0, 3.0])
        >>> fullgrad.sign_st(x)
        tensor([-1.,  0.,  1.])
        >>> torch.func.vmap(torch.func.grad(fullgrad.sign_st))(x)
        tensor([3.9322e+00, 5.0000e+00, 1.8715e-12])

    Source: ``softtorch.sign_st``.
    """
    x, softness = check("sign_st", x, softness, mode)
    return torch.sign(x) if mode == "hard" else Sign.apply(x, softness, mode, True)


class Sign(Relaxation):
    """The operator of :func:`sign`, and with ``hard`` of :func:`sign_st`."""

    reads = {0: (0, 1), 1: (0, 1)}
    in_pieces = "half"  # the terms are pointwise themselves

    @staticmethod
    def forward(x: Tensor, softness: Softness, mode: str, hard: bool) -> Tensor:
        if hard:
            return expand_to_softness_shape(torch.sign(x), softness)
        return cast(value(x, softness, mode), x.dtype)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Tensor, s: Softness, mode: str, hard: bool) -> Tensor:
        return (curves.slope_times if i == 0 else curves.sigmoid_by_softness_times)(v, x, s, mode, 2)


value = pointwise(curves.soft_sign, opmath=True)
