"""Numbers that compiled code does not know, and products in which 0 is certain."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core.elementwise import Elementwise


def known(value: Any, v: Tensor) -> Any:
    """A number that Python may compare, or else a tensor, whose formula compares element by element.

    One that meets a tensor without dimensions is a tensor, too: such a sample in forward mode under `vmap` would be multiplied by
    the tangent 0 of the number, and 0 times infinity is NaN.
    """
    is_symbol = isinstance(value, (torch.SymFloat, torch.SymInt))
    if is_symbol or (v.ndim == 0 and not isinstance(value, Tensor)):
        symbol: Any = value
        return torch.full((), symbol, dtype=v.dtype, device=v.device)
    return value


class Times(Elementwise):
    """The product, and 0 where one factor is 0 and the other infinite; so are its derivatives.

    A coefficient of a derivative, such as e (e - 1) of a power, is 0 for certain; the other factor is a number that overflowed.
    """

    in_pieces = True
    reads = {0: (1,), 1: (0,)}

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        product = a * b
        return torch.where(product.isnan() & (a == a) & (b == b), 0, product)

    @staticmethod
    def vjp_term(i: int, v: Tensor, a: Any, b: Any) -> Tensor:
        return Times.apply(v, b if i == 0 else a)
