"""`log1p`: the natural logarithm of 1 + x, with derivative 0 at -1."""

import math

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.elementwise import Elementwise
from fullgrad._core.function import pure
from fullgrad.safe._div import Div


def log1p(x: Tensor) -> Tensor:
    r"""The natural logarithm of 1 + x, with derivative 0 at -1.

    .. math::
        y = \log(1 + x), \qquad D(x) = \begin{cases} 1 / (1 + x) & x > -1 \\ 0 & x = -1 \end{cases}

    The value is that of :func:`torch.log1p`, bit for bit: minus infinity at -1. Derivatives of every order are 0 at -1 and true
    where ``x`` is larger. They are NaN where ``x`` is smaller, as the value is; :func:`torch.log1p` has the formula's there. The
    derivative of half precision is computed in float32. Saved: ``x`` alone.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).

    Returns:
        A tensor of the shape of ``x``.

    Raises:
        TypeError: ``x`` is not a tensor, or is bool or complex.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([-1.0, 1.0])
        >>> fullgrad.safe.log1p(x)
        tensor([  -inf, 0.6931])
        >>> torch.func.grad(lambda x: fullgrad.safe.log1p(x).sum())(x)
        tensor([0.0000, 0.5000])

    Source: :func:`torch.log1p`.
    """
    checks.real_tensor("log1p", "x", x)
    return Log1p.apply(x)


class Log1p(Elementwise):
    """The operator of :func:`log1p`."""

    in_pieces = True
    opmath = True
    reads = {0: (0,)}

    @staticmethod
    @pure
    def forward(x: Tensor) -> Tensor:
        return torch.log1p(x)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Tensor) -> Tensor:
        end, factor = x == -1, torch.where(x < -1, math.nan, torch.ones_like(x))
        return torch.where(end, 0, Div.apply(v, torch.where(end, 1, 1 + x) * factor))  # -1 stays a zero in higher derivatives
