"""`lsq`: learned step sizes."""

from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.opmath import cast
from fullgrad.gradients._scale import Scale
from fullgrad.quantizers import _arguments
from fullgrad.quantizers._arguments import Parameter
from fullgrad.quantizers._arithmetic import lsq_factor, to_compute
from fullgrad.quantizers._fake_quantize import quantized
from fullgrad.quantizers._integers import Grid
from fullgrad.quantizers._quant_range import quant_range


def lsq(
    x: Tensor,
    scale: Parameter,
    quant_min: int | None = None,
    quant_max: int | None = None,
    *,
    offset: Parameter | None = None,
    grad_scale: float | None = None,
    bits: int | None = None,
) -> Tensor:
    r"""Learned step size quantization: a scale whose gradient is scaled, and with ``offset`` LSQ+.

    .. math::
        y = s \operatorname{clamp}(\operatorname{round}((x - b) / s),\, l,\, h) + b, \qquad D_x = m, \quad
        D_s = f\,(q - m v), \quad D_b = f\,(1 - m), \qquad f = \frac{1}{\sqrt{N \max(h, 1)}}

    for the mask *m* of :math:`l \le v \le h`, :math:`v = (x - b) / s`, and *N* elements of ``x``, those of a sample under
    ``vmap``. The operator is :func:`fake_quantize` with ``inside="exact"`` and a division, of a scale whose gradient is
    multiplied by *f*. A usual start is ``2 * x.abs().mean() / math.sqrt(quant_max)``. Half precision is computed in float32 and
    rounded once. Saved: what it saves.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        scale: As in :func:`fake_quantize`: a number or a tensor, of one number per tensor, channel, group or block.
        quant_min: The smallest code, an integer; None for -128, or for that of ``bits``.
        quant_max: The largest, an integer; None for 127, or for that of ``bits``.
        offset: A number or a tensor that broadcasts to ``x``, and gets its own gradient; None for 0.
        grad_scale: *f*, a positive number; None for the formula above.
        bits: The number of bits of signed codes, in place of ``quant_min`` and ``quant_max``; None for these.

    Returns:
        A tensor of the shape and dtype of ``x``.

    Raises:
        TypeError: An argument is not real, or a bound or ``bits`` not an integer.
        ValueError: A number is out of its range, a parameter has another shape, both ``bits`` and codes are given, or ``scale``
            is an integer above 1, which reads as a number of bits: 4.0 is a scale.

    Example:
        >>> import torch
        >>> from fullgrad import quantizers
        >>> x, scale = torch.tensor([-1.0, 0.3, 0.8, 9.0]), torch.tensor(0.5, requires_grad=True)
        >>> y = quantizers.lsq(x, scale, bits=4)
        >>> y.detach()
        tensor([-1.0000,  0.5000,  1.0000,  3.5000])
        >>> torch.autograd.grad(y.sum(), scale)
        (tensor(1.4741),)

    Source: Esser et al., https://arxiv.org/abs/1902.08153; Bhalgat et al., LSQ+, https://arxiv.org/abs/2004.09576.
    """
    x = _arguments.floating_input("lsq", "x", x)
    checks.no_count("lsq", "scale", scale, "bits")
    _arguments.check_scale("lsq", "scale", scale, x.dtype)
    if bits is not None:
        if not quant_min is quant_max is None:
            raise ValueError(
                f"lsq: either `bits` or codes must be given, got bits={bits}, quant_min={quant_min} and quant_max={quant_max}."
            )
        checks.integer_between("lsq", "bits", bits, 1, 53)
        quant_min, quant_max = quant_range(bits)
    quant_min, quant_max = -128 if quant_min is None else quant_min, 127 if quant_max is None else quant_max
    quant_min, quant_max = _arguments.check_range("lsq", quant_min, quant_max, x.dtype)
    if not quant_min <= 0 <= quant_max:
        raise ValueError(f"lsq: `quant_min` and `quant_max` must have 0 between them, got {quant_min} and {quant_max}.")
    if grad_scale is None:
        grad_scale = lsq_factor(x.numel(), quant_max)
    else:
        checks.positive_number("lsq", "grad_scale", grad_scale)
    if isinstance(scale, Tensor):
        scale = Scale.apply(scale, 1.0, grad_scale)
    grid = Grid(scale, 0, quant_min, quant_max, "exact", "half_even", reciprocal=False, round_zero_point=True)
    if offset is None:
        return quantized("lsq", x, grid)
    checks.real_number_or_tensor("lsq", "offset", offset)
    if isinstance(offset, Tensor):
        checks.broadcasts_to("lsq", "offset", offset, "x", x.shape)
        offset = Scale.apply(offset, 1.0, grad_scale)
    wide, b = to_compute(x, offset)
    return cast(quantized("lsq", wide - b, grid) + b, x.dtype)
