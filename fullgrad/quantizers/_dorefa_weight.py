"""`dorefa_weight`: weights on an even grid, by way of tanh."""

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.opmath import to_opmath
from fullgrad._core.shards import elementwise_code, greatest
from fullgrad.quantizers import _arguments
from fullgrad.quantizers._binarize import Binarize
from fullgrad.rounding._k_bit_quantize import KBitQuantize


def dorefa_weight(w: Tensor, bits: int, *, max_gradient: bool = True) -> Tensor:
    r"""The weights of DoReFa-Net: tanh, scaled to [-1, 1], on an even grid.

    .. math::
        t = \tanh w, \quad y = 2\, q_b\Bigl(\frac{t}{2 \max |t|} + \frac12\Bigr) - 1, \qquad
        b = 1: \quad y = \operatorname{sgn}(w) \operatorname{mean} |w|, \quad D_w = 1

    for :func:`fullgrad.k_bit_quantize` :math:`q_b`, whose derivative is 1; other derivatives are true. Under ``vmap`` each
    sample has its own maximum and mean. Half precision is computed in float32. Saved: what these operations save.

    Args:
        w: Any shape, not empty; floating, or integer (which gives the default dtype).
        bits: A positive integer, up to 53.
        max_gradient: Whether the maximum has its derivative; in larq it is a constant.

    Returns:
        A tensor of the shape and dtype of ``w``; 0 where all weights are 0, up to the grid.

    Raises:
        TypeError: ``w`` is not a real tensor, or ``bits`` is not an integer.
        ValueError: ``w`` is empty, or ``bits`` is out of its range.

    Example:
        >>> import torch
        >>> from fullgrad import quantizers
        >>> quantizers.dorefa_weight(torch.tensor([-1.0, 0.1, 0.5, 2.0]), 2)
        tensor([-1.0000,  0.3333,  0.3333,  1.0000])

    Source: Zhou et al., https://arxiv.org/abs/1606.06160; ``larq.quantizers.DoReFa`` with ``max_gradient=False``.
    """
    w = _arguments.floating_input("dorefa_weight", "w", w)
    checks.not_empty("dorefa_weight", "w", w)
    bits = checks.positive_integer("dorefa_weight", "bits", bits, 53)
    (wide,) = to_opmath(w)
    if bits == 1:
        return Binarize.apply(wide, wide.detach().abs().mean(), None, 1.0).to(w.dtype)
    t = torch.tanh(wide)
    largest = greatest(elementwise_code("dorefa_weight", torch.abs, t), tuple(range(t.ndim))).reshape(())
    largest = largest if max_gradient else largest.detach()
    ratio = t / (2 * torch.where(largest == 0, 1, largest))
    return (2 * KBitQuantize.apply(ratio + 0.5, bits) - 1).to(w.dtype)
