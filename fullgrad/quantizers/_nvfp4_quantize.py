"""`nvfp4_quantize`: four bits in blocks of sixteen, with scales of eight bits."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core.elementwise import Elementwise
from fullgrad._core.opmath import HALF
from fullgrad._dispatch import holds
from fullgrad.quantizers import _arguments
from fullgrad.quantizers._arguments import Parameter
from fullgrad.quantizers._blocks import behind_batch, blocks_of, check_blocks
from fullgrad.quantizers._float_rounding import round_to_format
from fullgrad.quantizers._formats import NAMED, spec_of

BLOCK_SIZE = 16


def nvfp4_quantize(x: Tensor, tensor_scale: Parameter | None = None, *, dim: int = -1) -> Tensor:
    r"""Quantize to NVFP4: elements of four bits, in blocks of sixteen with a scale of eight bits.

    .. math::
        A = \max |x| \text{ of the block}, \qquad
        s = \operatorname{e4m3}\bigl(\operatorname{clamp}(A / (6 p),\; 2^{-6},\; 448)\bigr), \qquad
        y = p s\, \operatorname{e2m1}\bigl(x / (p s)\bigr), \qquad D_x = 1

    for ``tensor_scale`` *p*, or 1. A usual value is ``x.abs().amax() / 2688``, which is one per sample under ``vmap``. Elements
    beyond 6 become 6. A NaN makes its block NaN. The arithmetic is that of torchao, bit for bit: products with reciprocals, and
    the floor :math:`2^{-6}`. ``tensor_scale`` has no gradient. Higher derivatives are 0. Nothing is saved.

    Args:
        x: At least one dimension; floating, or integer (which gives the default dtype).
        tensor_scale: Positive: a number, or a tensor with one element; None for 1.
        dim: The dimension of the blocks, of a size that 16 divides.

    Returns:
        A tensor of the shape and dtype of ``x``.

    Raises:
        TypeError: ``x`` or ``tensor_scale`` is not real, or ``dim`` is not an integer.
        ValueError: 16 does not divide the dimension, or ``tensor_scale`` is not positive and finite, or has several elements.
        IndexError: ``x`` has no dimension ``dim``.

    Example:
        >>> import torch
        >>> from fullgrad import quantizers
        >>> x = torch.linspace(-2, 1.75, 16)
        >>> quantizers.nvfp4_quantize(x)[:6]
        tensor([-2.0625, -2.0625, -1.3750, -1.3750, -1.0312, -0.6875])

    Source: ``torchao.prototype.mx_formats.nvfp4_tensor.NVFP4Tensor``.
    """
    x = _arguments.floating_input("nvfp4_quantize", "x", x)
    if tensor_scale is not None:
        _arguments.check_scale("nvfp4_quantize", "tensor_scale", tensor_scale, x.dtype, reciprocal=True)
        if not isinstance(tensor_scale, Tensor):
            tensor_scale = float(tensor_scale)
        elif not holds(tensor_scale.numel() == 1):
            raise ValueError(f"nvfp4_quantize: `tensor_scale` must have one element, got shape {tuple(tensor_scale.shape)}.")
        else:
            tensor_scale = tensor_scale.detach().reshape((1,) * x.ndim)
    _, dim = check_blocks("nvfp4_quantize", x, BLOCK_SIZE, dim)
    return Nvfp4Quantize.apply(x, tensor_scale, dim)


class Nvfp4Quantize(Elementwise):
    """The operator of :func:`nvfp4_quantize`. ``dim`` counts from the back."""

    whole_dims = "dim"

    reads = {0: (), 1: ()}

    @staticmethod
    def forward(x: Tensor, tensor_scale: Parameter | None, dim: int) -> Tensor:
        x = _arguments.expanded(x, tensor_scale)
        p: Any = tensor_scale
        wide = x.float() if x.dtype in HALF else x
        blocks, d = blocks_of(wide, BLOCK_SIZE, dim)
        if p is not None:
            p = p.to(wide.dtype).unsqueeze(-1) if isinstance(p, Tensor) else torch.full((), p, dtype=wide.dtype, device=x.device)
        s = blocks.abs().amax(d, keepdim=True) / 6
        s = torch.clamp(s if p is None else s / p, 2.0**-6, 448.0)
        s = round_to_format(s, spec_of(NAMED["float8_e4m3fn"].code), True, "half_even")
        v = blocks * (1 / s if p is None else (1 / p) / s)
        q = round_to_format(v, spec_of(NAMED["float4_e2m1fn"].code), True, "half_even")
        return (q * (s if p is None else p * s)).reshape(x.shape).to(x.dtype)

    @staticmethod
    def vjp_term(i: int, v: Tensor, *inputs: Any) -> Tensor | None:
        return v if i == 0 else None

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        return behind_batch(cls, in_dims, args)
