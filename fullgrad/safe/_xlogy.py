"""`xlogy`: x log(y), with derivatives 0 where y is 0."""

import math
from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.elementwise import Elementwise
from fullgrad._core.function import pure
from fullgrad.safe._div import Div
from fullgrad.safe._numbers import Times, known


def xlogy(x: Tensor, y: Tensor | float) -> Tensor:
    r"""The product of x and the natural logarithm of y, with derivatives 0 where y is 0.

    .. math::
        z = x \log y, \qquad D_x = \begin{cases} \log y & y > 0 \\ 0 & y = 0 \end{cases}, \quad
        D_y = \begin{cases} x / y & y > 0 \\ 0 & y = 0 \end{cases}

    The value is that of :func:`torch.xlogy`, bit for bit: 0 where x is 0, where torch's derivative by x is 0, too. So
    ``-xlogy(p, p).sum(-1)`` is an entropy, also of shares that are 0. Derivatives of every order are 0 where y is 0, and true
    where it is larger. They are NaN where y is smaller, as is the value for an x other than 0. Those of half precision are
    computed in float32. Saved: ``y``, and ``x`` if ``y`` needs a gradient.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        y: A number, or a tensor that broadcasts with ``x``.

    Returns:
        A tensor of the broadcast shape.

    Raises:
        TypeError: ``x`` is not a real tensor, or ``y`` is neither a number nor a real tensor.

    Example:
        >>> import torch, fullgrad
        >>> p = torch.tensor([0.0, 0.5, 1.0])
        >>> fullgrad.safe.xlogy(p, p)
        tensor([ 0.0000, -0.3466,  0.0000])
        >>> torch.func.grad(lambda p: fullgrad.safe.xlogy(p, p).sum())(p)
        tensor([0.0000, 0.3069, 1.0000])

    Source: :func:`torch.xlogy`.
    """
    checks.real_tensor("xlogy", "x", x)
    checks.real_number_or_tensor("xlogy", "y", y)
    return Xlogy.apply(x, y)


class Xlogy(Elementwise):
    """The operator of :func:`xlogy`."""

    in_pieces = True
    opmath = True
    reads = {0: (1,), 1: (0, 1)}

    @staticmethod
    @pure
    def forward(x: Tensor, y: Tensor | float) -> Tensor:
        return torch.xlogy(x, y)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Any, y: Any) -> Tensor:
        y = known(y, v)
        if not isinstance(y, Tensor):
            return v * (math.log(y) if y > 0 else 0.0 if y == 0 else math.nan)
        zero = y == 0
        y = torch.where(zero, 1, torch.where(y < 0, math.nan, y))
        return torch.where(zero, 0, Xlogy.apply(v, y) if i == 0 else Div.apply(Times.apply(v, x), y))
