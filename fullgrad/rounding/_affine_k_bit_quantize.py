"""`affine_k_bit_quantize`: k-bit quantization with a learnable scale and offset."""

from typing import Any

from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.elementwise import Elementwise
from fullgrad._core.opmath import to_opmath
from fullgrad._core.pieces import pointwise
from fullgrad.rounding._k_bit_quantize import MOST_BITS, KBitQuantize, on_grid


def affine_k_bit_quantize(x: Tensor, k: int, w: Tensor | float, b: Tensor | float) -> Tensor:
    r"""Quantize to ``k`` bits, scale by ``w`` and shift by ``b``.

    .. math::
        y = w\, q(x) + b, \quad q(x) = \frac{\operatorname{round}((2^k - 1)\, x)}{2^k - 1}, \qquad
        D_x = w, \quad D_w = q(x), \quad D_b = 1

    with :math:`q' = 1` wherever a derivative is differentiated again. ``x``, ``w`` and ``b`` broadcast, and each receives its
    gradient. Half precision is computed in float32 and rounded once. Saved: ``x`` if ``w`` needs a gradient, ``w`` if ``x`` needs
    one; nothing beyond inputs.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        k: Number of bits, an integer from 1 to 1023.
        w: Scale, a number or a tensor that broadcasts with ``x``.
        b: Offset, a number or a tensor that broadcasts with ``x``.

    Returns:
        A tensor of the broadcast shape.

    Raises:
        TypeError: ``x``, ``w`` or ``b`` is not real, or ``k`` is not an integer.
        ValueError: ``k`` is less than 1 or more than 1023.

    Example:
        >>> import torch, fullgrad
        >>> x, w = torch.tensor([0.1, 0.4, 0.8]), torch.tensor(3.0, requires_grad=True)
        >>> y = fullgrad.affine_k_bit_quantize(x, 2, w, 1.0)
        >>> y.detach()
        tensor([1., 2., 3.])
        >>> torch.autograd.grad(y.sum(), w)
        (tensor(1.),)

    Source: ``spikingjelly.activation_based.quantize.affine_k_bit_quantize``.
    """
    checks.real_tensor("affine_k_bit_quantize", "x", x)
    k = checks.positive_integer("affine_k_bit_quantize", "k", k, MOST_BITS)
    checks.real_number_or_tensor("affine_k_bit_quantize", "w", w)
    checks.real_number_or_tensor("affine_k_bit_quantize", "b", b)
    return AffineKBitQuantize.apply(x, k, w, b)


class AffineKBitQuantize(Elementwise):
    """The operator of :func:`affine_k_bit_quantize`."""

    in_pieces = True
    reads = {0: (2,), 2: (0, 1), 3: ()}

    @staticmethod
    @pointwise(opmath=True)
    def forward(x: Tensor, k: int, w: Tensor | float, b: Tensor | float) -> Tensor:
        return w * on_grid(x, k) + b

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Any, k: int, w: Any, b: Any) -> Tensor:
        if i == 2:
            v, x = to_opmath(v, x)
            return v * KBitQuantize.apply(x, k)
        return v * w if i == 0 else v
