"""`pow`: the power, with finite derivatives at base 0."""

import math
from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.elementwise import Elementwise
from fullgrad._core.function import pure
from fullgrad._core.opmath import cast, result_dtype
from fullgrad.safe._numbers import Times, known


def pow(x: Tensor, exponent: Tensor | float) -> Tensor:
    r"""The power, with derivative 0 where that of the base is infinite, and where the base is no positive number.

    .. math::
        y = x^e, \qquad D_x = \begin{cases} 0 & e = 0 \text{ or } x = 0, e < 1 \\ e\, x^{e - 1} & \text{otherwise} \end{cases},
        \quad D_e = \begin{cases} x^e \log x & x > 0 \\ 0 & x \le 0 \end{cases}

    The value is that of :func:`torch.pow`, bit for bit. Where ``x`` is 0 or negative, ``exponent`` counts as a constant: of
    :math:`x^e` with negative ``x`` only integer ``e`` have a value, so none changes. Powers in a derivative follow the same rule,
    so that at 0 the derivatives of every order are true if finite, else 0. All are NaN where the value is, at negative ``x`` with
    an exponent that is no integer. Those of half precision are computed in float32. Saved: ``x`` and ``exponent``.

    Args:
        x: The base, of any shape; floating, or integer (which has no gradient).
        exponent: A number, or a tensor that broadcasts with ``x`` and gets its own gradient.

    Returns:
        A tensor of the broadcast shape.

    Raises:
        TypeError: ``x`` is not a real tensor, or ``exponent`` is neither a number nor a real tensor.

    Example:
        >>> import torch, fullgrad
        >>> x, exponent = torch.tensor([0.0, 0.0, 4.0]), torch.tensor([0.5, 1.0, 0.5])
        >>> fullgrad.safe.pow(x, exponent)
        tensor([0., 0., 2.])
        >>> torch.func.grad(lambda x, e: fullgrad.safe.pow(x, e).sum(), (0, 1))(x, exponent)
        (tensor([0.0000, 1.0000, 0.2500]), tensor([0.0000, 0.0000, 2.7726]))

    Source: :func:`torch.pow`.
    """
    checks.real_tensor("pow", "x", x)
    checks.real_number_or_tensor("pow", "exponent", exponent)
    return Pow.apply(x, exponent)


class Pow(Elementwise):
    """The operator of :func:`pow`."""

    in_pieces = True
    opmath = True
    reads = {0: (0, 1), 1: (0, 1)}

    @staticmethod
    @pure
    def forward(x: Tensor, exponent: Tensor | float) -> Tensor:
        return torch.pow(x, exponent)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Any, exponent: Any) -> Tensor:
        exponent = known(exponent, v)
        if isinstance(exponent, Tensor):
            return _to_base(v, x, exponent) if i == 0 else _to_exponent(v, x, exponent)
        if exponent == 0:
            return torch.zeros_like(v)
        if exponent >= 1:
            return v * (exponent * Pow.apply(x, exponent - 1))
        zero = x == 0
        return torch.where(zero, 0, v * (exponent * Pow.apply(torch.where(zero, 1, x), exponent - 1)))


def _to_base(v: Tensor, x: Tensor, e: Tensor) -> Tensor:
    flat, factor = (x == 0) & (e < 1), cast(e, result_dtype(x, e))
    factor = torch.where(x <= 0, factor.detach(), factor)
    return torch.where(flat, 0, Times.apply(v, Times.apply(factor, Pow.apply(torch.where(flat, 1, x), e - 1))))


def _to_exponent(v: Tensor, x: Tensor, e: Tensor) -> Tensor:
    # With NaN as the value, at x < 0 or e, the product is NaN. At infinite x and negative e it tends to 0.
    flat = ((x <= 0) & (e == torch.round(e))) | ((x == 0) & (e == e)) | ((x == math.inf) & (e < 0))
    x = torch.where(flat, 1, cast(x, result_dtype(x, e)))
    power, log = Pow.apply(x, e), torch.log(x)
    slope = Times.apply(power, log)
    by_parts = Times.apply(Times.apply(v, power), log)
    return torch.where(flat, 0, torch.where(slope.detach().isinf(), by_parts, Times.apply(v, slope)))
