"""`asin`: the arcsine, with derivative 0 at -1 and 1."""

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.elementwise import Elementwise
from fullgrad._core.function import pure


def asin(x: Tensor) -> Tensor:
    r"""The arcsine, with derivative 0 at -1 and 1.

    .. math::
        y = \arcsin x, \qquad D(x) = \begin{cases} 1 / \sqrt{1 - x^2} & |x| < 1 \\ 0 & |x| = 1 \end{cases}

    The value is that of :func:`torch.asin`, bit for bit. Derivatives of every order are 0 at -1 and 1 and true inside. They are
    NaN outside, as the value is. The derivative of half precision is computed in float32. Saved: ``x`` alone.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).

    Returns:
        A tensor of the shape of ``x``, in radians.

    Raises:
        TypeError: ``x`` is not a tensor, or is bool or complex.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([0.0, 0.6, 1.0])
        >>> fullgrad.safe.asin(x)
        tensor([0.0000, 0.6435, 1.5708])
        >>> torch.func.grad(lambda x: fullgrad.safe.asin(x).sum())(x)
        tensor([1.0000, 1.2500, 0.0000])

    Source: :func:`torch.asin`.
    """
    checks.real_tensor("asin", "x", x)
    return Asin.apply(x)


class Asin(Elementwise):
    """The operator of :func:`asin`."""

    in_pieces = True
    opmath = True
    reads = {0: (0,)}

    @staticmethod
    @pure
    def forward(x: Tensor) -> Tensor:
        return torch.asin(x)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Tensor) -> Tensor:
        return slope_times(v, x)


def slope_times(v: Tensor, x: Tensor) -> Tensor:
    """``v / sqrt(1 - x^2)``, and 0 where that is infinite."""
    end = x.abs() == 1
    x = torch.where(end, 0, x)
    # Next to 1 the square would lose half of the digits; next to 0 the product loses those of its derivative, -2 x.
    square = torch.where(x.abs() < 0.5, 1 - x * x, (1 - x) * (1 + x))
    return torch.where(end, 0, v * torch.rsqrt(square))
