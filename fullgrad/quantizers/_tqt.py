"""`tqt`: trained quantization thresholds."""

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad.quantizers import _arguments
from fullgrad.quantizers._arguments import Parameter
from fullgrad.quantizers._fake_quantize import quantized
from fullgrad.quantizers._integers import Grid
from fullgrad.quantizers._quant_range import quant_range
from fullgrad.rounding._ceil import Ceil


def tqt(x: Tensor, log2_threshold: Parameter, bits: int = 8, signed: bool = True) -> Tensor:
    r"""Integers with a power of two as scale, whose threshold learns by its logarithm.

    .. math::
        s = 2^{\lceil t \rceil} / 2^{b - 1} \;\text{(signed)}, \quad 2^{\lceil t \rceil} / 2^b, \qquad
        y = s \operatorname{clamp}(\operatorname{round}(x / s),\, l,\, h), \qquad D_x = m, \quad D_t = s \ln 2\,(q - m v)

    The operator is :func:`fake_quantize` with that scale. Saved: what it and a power save.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        log2_threshold: *t*: a number; or a tensor that broadcasts to ``x``, or has one number per block, as in
            :func:`fake_quantize`.
        bits: An integer, from 1 to 24.
        signed: Whether there are negative codes.

    Returns:
        A tensor of the shape and dtype of ``x``.

    Raises:
        TypeError: ``x`` or ``log2_threshold`` is not real, or ``bits`` is not an integer.
        ValueError: ``bits`` is out of its range, or ``log2_threshold`` has another shape.

    Example:
        >>> import torch
        >>> from fullgrad import quantizers
        >>> x, t = torch.tensor([-0.3, 0.8, 5.0]), torch.tensor(0.7, requires_grad=True)
        >>> y = quantizers.tqt(x, t, 4)
        >>> y.detach()
        tensor([-0.2500,  0.7500,  1.7500])
        >>> torch.autograd.grad(y.sum(), t)
        (tensor(1.2130),)

    Source: Jain et al., https://arxiv.org/abs/1903.08066.
    """
    x = _arguments.floating_input("tqt", "x", x)
    checks.real_number_or_tensor("tqt", "log2_threshold", log2_threshold)
    _arguments.is_per_block("tqt", "log2_threshold", log2_threshold, x.shape)
    bits = checks.positive_integer("tqt", "bits", bits, 24)
    if isinstance(log2_threshold, Tensor):
        t = log2_threshold.to(_arguments.compute_dtype(x.dtype))
    else:
        t = torch.full((), float(log2_threshold), dtype=_arguments.compute_dtype(x.dtype), device=x.device)
    scale = torch.exp2(Ceil.apply(t)) / 2.0 ** (bits - 1 if signed else bits)
    grid = Grid(scale, 0, *quant_range(bits, signed), "rounded", "half_even", reciprocal=True, round_zero_point=True)
    return quantized("tqt", x, grid)
