"""`atan2`: the angle of a vector, with derivatives 0 at the origin."""

import math
from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.bits import digits, exponent, power_of_two
from fullgrad._core.elementwise import Elementwise
from fullgrad._core.function import pure


def atan2(y: Tensor, x: Tensor) -> Tensor:
    r"""The angle of the vector (x, y) in :math:`[-\pi, \pi]`, with derivatives 0 at the origin.

    .. math::
        z = \operatorname{atan2}(y, x), \qquad D_y = \frac{x}{x^2 + y^2}, \quad D_x = \frac{-y}{x^2 + y^2}, \qquad
        D_y = D_x = 0 \text{ at } x = y = 0

    The value is that of :func:`torch.atan2`, bit for bit. Derivatives of every order are 0 at the origin and true elsewhere, also
    for vectors whose squares overflow or underflow, where torch gives 0, and for infinite ones, where it gives NaN. Those of half
    precision are computed in float32. Saved: ``y`` and ``x``.

    Args:
        y: Any shape; floating, or integer (which gives the default dtype).
        x: A tensor that broadcasts with ``y``, in the same unit.

    Returns:
        A tensor of the broadcast shape, in radians.

    Raises:
        TypeError: ``y`` or ``x`` is not a real tensor.

    Example:
        >>> import torch, fullgrad
        >>> y, x = torch.tensor([0.0, 1.0]), torch.tensor([0.0, 2.0])
        >>> fullgrad.safe.atan2(y, x)
        tensor([0.0000, 0.4636])
        >>> torch.func.grad(lambda y, x: fullgrad.safe.atan2(y, x).sum(), (0, 1))(y, x)
        (tensor([0.0000, 0.4000]), tensor([ 0.0000, -0.2000]))

    Source: :func:`torch.atan2`.
    """
    checks.real_tensor("atan2", "y", y)
    checks.real_tensor("atan2", "x", x)
    return Atan2.apply(y, x)


class Atan2(Elementwise):
    """The operator of :func:`atan2`."""

    in_pieces = True
    opmath = True
    reads = {0: (0, 1), 1: (0, 1)}

    @staticmethod
    @pure
    def forward(y: Tensor, x: Tensor) -> Tensor:
        return torch.atan2(y, x)

    @staticmethod
    def vjp_term(i: int, v: Tensor, y: Any, x: Any) -> Tensor:
        size = torch.maximum(y.detach().abs(), x.detach().abs())
        flat = (size == 0) | (size == math.inf)
        scale = power_of_inverse(size)
        y, x = torch.where(flat, 0, y * scale), torch.where(flat, 1, x * scale)
        return torch.where(flat, 0, v * (x if i == 0 else -y) * torch.reciprocal(y * y + x * x) * scale)


def power_of_inverse(size: Tensor) -> Tensor:
    """The power of two next to the inverse of positive numbers: scaling by it is exact, and squares do not overflow."""
    largest = digits(size.dtype)[1] - 1
    return power_of_two(-exponent(size).clamp(-largest, largest), size.dtype)
