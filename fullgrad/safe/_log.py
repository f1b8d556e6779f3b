"""`log`: the natural logarithm, with derivative 0 at 0."""

import math

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.elementwise import Elementwise
from fullgrad._core.function import pure
from fullgrad.safe._div import Div


def log(x: Tensor) -> Tensor:
    r"""The natural logarithm, with derivative 0 at 0.

    .. math::
        y = \log x, \qquad D(x) = \begin{cases} 1 / x & x > 0 \\ 0 & x = 0 \end{cases}

    The value is that of :func:`torch.log`, bit for bit: minus infinity at 0. Derivatives of every order are 0 at 0 and true where
    ``x`` is positive. They are NaN where ``x`` is negative, as the value is; :func:`torch.log` has :math:`1 / x` there. The
    derivative of half precision is computed in float32. Saved: ``x`` alone.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).

    Returns:
        A tensor of the shape of ``x``.

    Raises:
        TypeError: ``x`` is not a tensor, or is bool or complex.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([0.0, 0.5])
        >>> fullgrad.safe.log(x)
        tensor([   -inf, -0.6931])
        >>> torch.func.grad(lambda x: fullgrad.safe.log(x).sum())(x)
        tensor([0., 2.])

    Source: :func:`torch.log`.
    """
    checks.real_tensor("log", "x", x)
    return Log.apply(x)


class Log(Elementwise):
    """The operator of :func:`log`."""

    in_pieces = True
    opmath = True
    reads = {0: (0,)}

    @staticmethod
    @pure
    def forward(x: Tensor) -> Tensor:
        return torch.log(x)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Tensor) -> Tensor:
        zero, factor = x == 0, torch.where(x < 0, math.nan, torch.ones_like(x))
        return torch.where(zero, 0, Div.apply(v, torch.where(zero, 1, x) * factor))  # a zero stays one in higher derivatives
