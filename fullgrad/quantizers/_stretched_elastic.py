"""`stretched_elastic`: a few levels on both sides of zero, none of them zero."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.elementwise import Elementwise
from fullgrad._core.opmath import cast, divided
from fullgrad._core.pieces import pointwise
from fullgrad._core.shards import reshaped
from fullgrad._core.windows import where_between
from fullgrad.gradients._scale import scale_bwd
from fullgrad.quantizers import _arguments
from fullgrad.quantizers._arguments import Parameter, expanded
from fullgrad.quantizers._arithmetic import lsq_factor, to_compute

# The bound at which x / scale is clamped.
END = 0.99


def stretched_elastic(x: Tensor, scale: Parameter, levels: int = 4, *, grad_scale: float | None = None) -> Tensor:
    r"""Stretched elastic quantization: a few levels that are balanced around zero, with a scale that learns.

    .. math::
        v = x / s, \quad y = \frac{s}{n} \bigl(\operatorname{round}(n \operatorname{clamp}(v, -0.99, 0.99) - h) + h\bigr), \qquad
        D_x = m, \quad D_s = f\,(y / s - m v), \qquad m = [\,|v| \le 0.99\,]

    for :math:`n = levels / 2`, :math:`h = 1/2` for an even number of levels, else 0, and :math:`f = 1 / \sqrt{N \max(n - 1, 1)}`
    with *N* elements of ``x``, those of a sample under ``vmap``. Beyond the ends :math:`D_s` is the last level, also for three
    levels, for which ParetoQ has 1. Higher derivatives are 0. Half precision is computed in float32 and rounded once. Saved:
    ``x``, and a tensor ``scale``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        scale: Positive: a number; or a tensor that broadcasts to ``x``, or has one number per block, as in :func:`fake_quantize`.
        levels: The number of levels, an integer from 2.
        grad_scale: *f*, a positive number; None for the formula above.

    Returns:
        A tensor of the shape and dtype of ``x``.

    Raises:
        TypeError: ``x`` or ``scale`` is not real, or ``levels`` is not an integer.
        ValueError: A number is out of its range, ``scale`` has another shape, or it is an integer above 1, which reads as a
            number of levels: 4.0 is a scale.

    Example:
        >>> import torch
        >>> from fullgrad import quantizers
        >>> x = torch.tensor([-2.0, -0.1, 0.1, 0.6])
        >>> quantizers.stretched_elastic(x, 1.0)
        tensor([-0.7500, -0.2500,  0.2500,  0.7500])

    Source: Liu et al., ParetoQ, https://arxiv.org/abs/2502.02631.
    """
    x = _arguments.floating_input("stretched_elastic", "x", x)
    checks.no_count("stretched_elastic", "scale", scale, "levels")
    _arguments.check_scale("stretched_elastic", "scale", scale, x.dtype)
    levels = _arguments.check_levels("stretched_elastic", levels)
    if grad_scale is None:
        grad_scale = lsq_factor(x.numel(), levels / 2 - 1)
    else:
        checks.positive_number("stretched_elastic", "grad_scale", grad_scale)
    scale = scale_bwd(scale, grad_scale) if isinstance(scale, Tensor) else float(scale)
    split, (scale,) = _arguments.in_blocks("stretched_elastic", x, None, {"scale": scale})
    if split is None:
        return StretchedElastic.apply(x, scale, levels)
    return reshaped(StretchedElastic.apply(reshaped(x, split), scale, levels), x.shape)


class StretchedElastic(Elementwise):
    """The operator of :func:`stretched_elastic`."""

    in_pieces = True
    reads = {0: (0, 1), 1: (0, 1)}

    @staticmethod
    def forward(x: Tensor, scale: Parameter, levels: int) -> Tensor:
        return cast(_value(x, scale, levels), x.dtype)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Tensor, scale: Any, levels: int) -> Tensor:
        dtype = v.dtype
        x, v, scale = to_compute(x, v, scale)
        if i == 1:
            return v * StretchedElasticResidual.apply(x, scale, levels)
        quotient = divided(x.detach(), scale.detach() if isinstance(scale, Tensor) else scale)
        return where_between(v, quotient, -END, END).to(dtype)


class StretchedElasticResidual(Elementwise):
    """:math:`D_s`, which has no derivative."""

    reads = {0: (), 1: ()}

    @staticmethod
    def forward(x: Tensor, scale: Parameter, levels: int) -> Tensor:
        v = divided(expanded(x, scale), scale)
        return _code(v, levels) - where_between(v, v, -END, END)

    @staticmethod
    def vjp_term(i: int, v: Tensor, *inputs: Any) -> Tensor | None:
        return None


@pointwise(opmath=True)
def _value(x: Tensor, scale: Any, levels: int) -> Tensor:
    x, scale = to_compute(expanded(x, scale), scale)
    return _code(divided(x, scale), levels) * scale


def _code(v: Tensor, levels: int) -> Tensor:
    n, h = levels / 2, 0.5 if levels % 2 == 0 else 0.0
    return (torch.round(torch.clamp(v, -END, END) * n - h) + h) / n
