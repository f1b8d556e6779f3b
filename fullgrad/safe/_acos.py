"""`acos`: the arccosine, with derivative 0 at -1 and 1."""

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.elementwise import Elementwise
from fullgrad._core.function import pure
from fullgrad.safe._asin import slope_times


def acos(x: Tensor) -> Tensor:
    r"""The arccosine, with derivative 0 at -1 and 1.

    .. math::
        y = \arccos x, \qquad D(x) = \begin{cases} -1 / \sqrt{1 - x^2} & |x| < 1 \\ 0 & |x| = 1 \end{cases}

    The value is that of :func:`torch.acos`, bit for bit. Derivatives of every order are 0 at -1 and 1 and true inside. They are
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
        >>> fullgrad.safe.acos(x)
        tensor([1.5708, 0.9273, 0.0000])
        >>> torch.func.grad(lambda x: fullgrad.safe.acos(x).sum())(x)
        tensor([-1.0000, -1.2500,  0.0000])

    Source: :func:`torch.acos`.
    """
    checks.real_tensor("acos", "x", x)
    return Acos.apply(x)


class Acos(Elementwise):
    """The operator of :func:`acos`."""

    in_pieces = True
    opmath = True
    reads = {0: (0,)}

    @staticmethod
    @pure
    def forward(x: Tensor) -> Tensor:
        return torch.acos(x)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Tensor) -> Tensor:
        return slope_times(-v, x)
