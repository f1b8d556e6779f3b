"""`k_bit_quantize`: quantization to k bits on [0, 1], with derivative 1."""

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.fast import replaceable
from fullgrad._core.pieces import pointwise
from fullgrad.rounding._straight_through import StraightThrough

# 2^1024 is beyond the largest float64.
MOST_BITS = 1023


def k_bit_quantize(x: Tensor, k: int) -> Tensor:
    r"""Quantize :math:`[0, 1]` to :math:`2^k` evenly spaced levels, with the straight-through derivative.

    .. math::
        y = \frac{\operatorname{round}((2^k - 1)\, x)}{2^k - 1}, \qquad D(x) = 1

    Values outside :math:`[0, 1]` are not clamped; the grid continues. Higher derivatives are 0. Half precision is computed in
    float32 and rounded once. In float32 ``2^k - 1`` overflows from ``k = 128`` on, which gives NaN. Nothing is saved.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        k: Number of bits, an integer from 1 to 1023.

    Returns:
        A tensor of the shape of ``x``.

    Raises:
        TypeError: ``x`` is not a real tensor, or ``k`` is not an integer.
        ValueError: ``k`` is less than 1 or more than 1023.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([0.1, 0.4, 0.8], requires_grad=True)
        >>> y = fullgrad.k_bit_quantize(x, 2)
        >>> y.detach()
        tensor([0.0000, 0.3333, 0.6667])
        >>> torch.autograd.grad(y.sum(), x)
        (tensor([1., 1., 1.]),)

    Source: ``spikingjelly.activation_based.quantize.k_bit_quantize``; Zhou et al., DoReFa-Net, https://arxiv.org/abs/1606.06160.
    """
    checks.real_tensor("k_bit_quantize", "x", x)
    return KBitQuantize.apply(x, checks.positive_integer("k_bit_quantize", "k", k, MOST_BITS))


def k_bit_quantize_forward(x: Tensor, k: int) -> Tensor:
    r"""The value of :func:`k_bit_quantize` alone: plain torch code, whose derivative is 0.

    .. math::
        y = \frac{\operatorname{round}((2^k - 1)\, x)}{2^k - 1}

    Half precision is computed in float32 and rounded once.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        k: Number of bits, an integer from 1 to 1023.

    Returns:
        A tensor of the shape of ``x``.

    Raises:
        TypeError: ``x`` is not a real tensor, or ``k`` is not an integer.
        ValueError: ``k`` is less than 1 or more than 1023.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.k_bit_quantize_forward(torch.tensor([0.1, 0.4, 0.8]), 2)
        tensor([0.0000, 0.3333, 0.6667])

    Source: ``spikingjelly.activation_based.quantize.k_bit_quantize_forward``.
    """
    checks.real_tensor("k_bit_quantize_forward", "x", x)
    return on_grid(x, checks.positive_integer("k_bit_quantize_forward", "k", k, MOST_BITS))


class KBitQuantize(StraightThrough):
    """The operator of :func:`k_bit_quantize`."""

    @staticmethod
    def forward(x: Tensor, k: int) -> Tensor:
        return on_grid(x, k)


@replaceable
@pointwise(opmath=True)
def on_grid(x: Tensor, k: int) -> Tensor:
    levels = 2.0 ** int(k) - 1.0
    return torch.round(x * levels) / levels
