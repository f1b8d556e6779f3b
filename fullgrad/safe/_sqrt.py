"""`sqrt`: the square root, with derivative 0 at 0."""

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.elementwise import Elementwise
from fullgrad._core.function import pure


def sqrt(x: Tensor) -> Tensor:
    r"""The square root, with derivative 0 at 0.

    .. math::
        y = \sqrt{x}, \qquad D(x) = \begin{cases} 1 / (2 \sqrt{x}) & x > 0 \\ 0 & x = 0 \end{cases}

    The value is that of :func:`torch.sqrt`, bit for bit, and ``D`` is the true derivative, which is infinite at 0. Derivatives of
    every order are 0 at 0 and true elsewhere. They are NaN where ``x`` is negative, as the value is. The derivative of half
    precision is computed in float32. Saved: ``x`` alone.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).

    Returns:
        A tensor of the shape of ``x``.

    Raises:
        TypeError: ``x`` is not a tensor, or is bool or complex.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([0.0, 4.0])
        >>> fullgrad.safe.sqrt(x)
        tensor([0., 2.])
        >>> torch.func.grad(lambda x: fullgrad.safe.sqrt(x).sum())(x)
        tensor([0.0000, 0.2500])

    Source: :func:`torch.sqrt`; the gradient at 0, as in https://github.com/pytorch/pytorch/issues/6394.
    """
    checks.real_tensor("sqrt", "x", x)
    return Sqrt.apply(x)


class Sqrt(Elementwise):
    """The operator of :func:`sqrt`."""

    in_pieces = True
    opmath = True
    reads = {0: (0,)}

    @staticmethod
    @pure
    def forward(x: Tensor) -> Tensor:
        return torch.sqrt(x)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Tensor) -> Tensor:
        zero = x == 0
        return torch.where(zero, 0, v / (2 * torch.sqrt(torch.where(zero, 1, x))))
