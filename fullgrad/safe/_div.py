"""`div`: the quotient, with derivatives 0 where the divisor is 0."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.elementwise import Elementwise
from fullgrad._core.function import pure
from fullgrad.safe._numbers import Times, known


def div(x: Tensor, y: Tensor | float) -> Tensor:
    r"""The quotient, with derivatives 0 where the divisor is 0.

    .. math::
        z = x / y, \qquad D_x = \begin{cases} 1 / y & y \ne 0 \\ 0 & y = 0 \end{cases}, \quad
        D_y = \begin{cases} -x / y^2 & y \ne 0 \\ 0 & y = 0 \end{cases}

    The value is that of :func:`torch.div`, bit for bit: infinite where ``y`` is 0, or NaN if ``x`` is 0, too. Derivatives of
    every order are 0 there and true elsewhere. Those of half precision are computed in float32. Saved: ``y``, and ``x`` if ``y``
    needs a gradient.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        y: The divisor, a number, or a tensor that broadcasts with ``x``.

    Returns:
        A tensor of the broadcast shape.

    Raises:
        TypeError: ``x`` is not a real tensor, or ``y`` is neither a number nor a real tensor.

    Example:
        >>> import torch, fullgrad
        >>> x, y = torch.tensor([1.0, 1.0, 0.0]), torch.tensor([2.0, 0.0, 0.0])
        >>> fullgrad.safe.div(x, y)
        tensor([0.5000,    inf,    nan])
        >>> torch.func.grad(lambda x, y: fullgrad.safe.div(x, y).sum(), (0, 1))(x, y)
        (tensor([0.5000, 0.0000, 0.0000]), tensor([-0.2500,  0.0000,  0.0000]))

    Source: :func:`torch.div`; the gradient at 0, as in https://github.com/pytorch/pytorch/issues/52248.
    """
    checks.real_tensor("div", "x", x)
    checks.real_number_or_tensor("div", "y", y)
    return Div.apply(x, y)


class Div(Elementwise):
    """The operator of :func:`div`."""

    in_pieces = True
    opmath = True
    reads = {0: (1,), 1: (0, 1)}

    @staticmethod
    @pure
    def forward(x: Tensor, y: Tensor | float) -> Tensor:
        return torch.div(x, y)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Any, y: Any) -> Tensor:
        y = known(y, v)
        if not isinstance(y, Tensor):
            return torch.zeros_like(v) if y == 0 else v / y
        zero = y == 0
        y = torch.where(zero, 1, y)
        return torch.where(zero, 0, Div.apply(v, y) if i == 0 else _to_divisor(v, Div.apply(x, y), y))


def _to_divisor(v: Tensor, quotient: Tensor, y: Tensor) -> Tensor:
    # A quotient divided again, of which each derivative is one. Where the slope overflows, a zero stays one.
    slope = Div.apply(quotient, y)
    by_parts = Div.apply(Times.apply(-v, quotient), y)
    return torch.where(slope.detach().isinf(), by_parts, Times.apply(-v, slope))
