"""Formulas as torch's own operators in exported graphs: what converters to ONNX and other formats know as quantization."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._core.fast import exported
from fullgrad._core.neighbors import rounded
from fullgrad.quantizers._fake_quantize import FakeQuantize
from fullgrad.quantizers._integers import Grid

# Converters take these two ranges alone; a smaller one is a clamp of the value.
_RANGES = ((0, 255), (-128, 127))


@exported(FakeQuantize.forward)
def _fake_quantize(x: Tensor, *inputs: Any) -> Any:
    """The value with the operators of torch, of float32 and up to 8 bits, per tensor or per channel.

    It differs from the formula for NaN, which torch makes the smallest code, and per channel for quotients of more than
    2^63, which they convert to integers.
    """
    grid = Grid(*inputs)
    bounds = next((r for r in _RANGES if r[0] <= grid.quant_min and grid.quant_max <= r[1]), None)
    if bounds is None or not (
        x.dtype == torch.float32 and grid.rounding == "half_even" and grid.reciprocal and grid.round_zero_point
    ):
        return NotImplemented
    if not all(isinstance(n, int) for n in x.shape):  # torch cannot trace its operators where sizes are unknown
        return NotImplemented
    scale, zero_point = grid.scale, grid.zero_point
    if isinstance(scale, float) and isinstance(zero_point, int):
        y = torch.fake_quantize_per_tensor_affine(x, scale, zero_point, *bounds)
        ends = [rounded((end - zero_point) * rounded(scale, x.dtype), x.dtype) for end in grid[2:4]]
        return y if bounds == grid[2:4] else torch.clamp(y, *ends)
    if not all(isinstance(p, (float, int, Tensor)) for p in (scale, zero_point)):
        return NotImplemented
    z = _integer_zero_point(zero_point, grid)
    axis = _axis(x, [p for p in (scale, z) if isinstance(p, Tensor)])
    if axis is NotImplemented:
        return NotImplemented
    shape = () if axis is None else (x.shape[axis],)
    flat_scale, flat_z = _flat(scale, shape, x, x.dtype), _flat(z, shape, x, torch.int32)
    if axis is None:
        y = torch.fake_quantize_per_tensor_affine(x, flat_scale, flat_z, *bounds)
    else:
        y = torch.fake_quantize_per_channel_affine(x, flat_scale, flat_z, axis, *bounds)
    if bounds == grid[2:4]:
        return y
    low, high = ((end - flat_z) * flat_scale for end in grid[2:4])
    if axis is not None:
        shape = [-1 if d == axis else 1 for d in range(x.ndim)]
        low, high = low.reshape(shape), high.reshape(shape)
    return torch.clamp(y, low, high)


def _integer_zero_point(z: Any, grid: Grid) -> Any:
    if not isinstance(z, Tensor):
        return z
    return torch.clamp(torch.round(z) if z.is_floating_point() else z, grid.quant_min, grid.quant_max).to(torch.int32)


def _axis(x: Tensor, parameters: Sequence[Tensor]) -> Any:
    """The one dimension of ``x`` in which parameters differ, None if there is none, NotImplemented if there are several."""
    found: Any = None
    for p in parameters:
        if p.ndim > x.ndim:
            return NotImplemented
        for d, n in enumerate(p.shape, x.ndim - p.ndim):
            if isinstance(n, int) and n == 1:
                continue
            if found not in (None, d) or not isinstance(n, int) or n != x.shape[d]:
                return NotImplemented
            found = d
    return found


def _flat(p: Any, shape: tuple[int, ...], x: Tensor, dtype: torch.dtype) -> Tensor:
    """A parameter as a tensor of no dimension, or of one number per channel."""
    if not isinstance(p, Tensor):
        return torch.full(shape, p, dtype=dtype, device=x.device)
    p = p.detach()  # torch's operators refuse a scale that requires a gradient
    p = p if p.dtype == dtype else p.to(dtype)
    if p.ndim != len(shape):
        p = p.reshape(shape if p.numel() == 1 and not shape else (-1,))
    return p if p.shape == shape else p.expand(shape)
