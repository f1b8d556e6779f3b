"""`dorefa_activation`: activations between 0 and 1 on an even grid."""

from torch import Tensor

from fullgrad._core import checks
from fullgrad.clamping._clamp import Clamp
from fullgrad.quantizers import _arguments
from fullgrad.rounding._k_bit_quantize import KBitQuantize


def dorefa_activation(x: Tensor, bits: int) -> Tensor:
    r"""The activations of DoReFa-Net: clamped to [0, 1], on an even grid.

    .. math::
        y = q_b(\operatorname{clamp}(x, 0, 1)), \qquad D(x) = [\,0 \le x \le 1\,]

    The operator is :func:`fullgrad.k_bit_quantize` of :func:`fullgrad.clamp`. bitorch passes the gradient outside [0, 1] too.
    Half precision is computed in float32 and rounded once. Saved: ``x``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        bits: A positive integer, up to 53.

    Returns:
        A tensor of the shape and dtype of ``x``.

    Raises:
        TypeError: ``x`` is not a real tensor, or ``bits`` is not an integer.
        ValueError: ``bits`` is out of its range.

    Example:
        >>> import torch
        >>> from fullgrad import quantizers
        >>> quantizers.dorefa_activation(torch.tensor([-1.0, 0.4, 0.8, 2.0]), 2)
        tensor([0.0000, 0.3333, 0.6667, 1.0000])

    Source: Zhou et al., https://arxiv.org/abs/1606.06160.
    """
    x = _arguments.floating_input("dorefa_activation", "x", x)
    return KBitQuantize.apply(Clamp.apply(x, 0.0, 1.0), checks.positive_integer("dorefa_activation", "bits", bits, 53))
