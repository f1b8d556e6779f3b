"""Formulas as torch's own operators in exported graphs: what converters to ONNX and other formats know as quantization."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._core.fast import exported
from fullgrad._core.neighbors import rounded
from fullgrad._dispatch import onnx_opset
from fullgrad.quantizers._fake_quantize import FakeQuantize
from fullgrad.quantizers._integers import Grid

# Converters take these two ranges alone; a smaller one is a clamp of the value.
_RANGES = ((0, 255), (-128, 127))
# The types of ONNX, by the first version of its operators that has them, and their ranges.
_ONNX_TYPES = (
    (21, 22, (-8, 7)),
    (21, 21, (0, 15)),
    (10, 3, (-128, 127)),
    (10, 2, (0, 255)),
    (21, 5, (-(2**15), 2**15 - 1)),
    (21, 4, (0, 2**16 - 1)),
)
_FLOAT = 1


@exported(FakeQuantize.forward)
def _fake_quantize(x: Tensor, *inputs: Any) -> Any:
    """The value with the operators of torch, of float32 and up to 8 bits, per tensor or per channel; in `torch.onnx.export` with
    those of ONNX, which know other integers, groups, and sizes that are unknown.

    It differs from the formula for NaN, which torch makes the smallest code, and per channel for quotients of more than
    2^63, which they convert to integers.
    """
    grid = Grid(*inputs)
    if not (x.dtype == torch.float32 and grid.rounding == "half_even" and grid.round_zero_point):
        return NotImplemented
    opset = onnx_opset()
    return _by_torch(x, grid) if opset < 18 else _by_onnx(x, grid, opset)


def _by_torch(x: Tensor, grid: Grid) -> Any:
    bounds = next((r for r in _RANGES if r[0] <= grid.quant_min and grid.quant_max <= r[1]), None)
    # torch cannot trace its operators where sizes are unknown.
    if bounds is None or not grid.reciprocal or not all(isinstance(n, int) for n in x.shape):
        return NotImplemented
    scale, zero_point = grid.scale, grid.zero_point
    if isinstance(scale, float) and isinstance(zero_point, int):
        y = torch.fake_quantize_per_tensor_affine(x, scale, zero_point, *bounds)
        ends = [rounded((end - zero_point) * rounded(scale, x.dtype), x.dtype) for end in grid[2:4]]
        return y if bounds == grid[2:4] else torch.clamp(y, *ends)
    flat = _flat_parameters(x, grid)
    if flat is NotImplemented:
        return NotImplemented
    scale, zero_point, axis = flat
    if axis is None:
        y = torch.fake_quantize_per_tensor_affine(x, scale, zero_point, *bounds)
    else:
        y = torch.fake_quantize_per_channel_affine(x, scale, zero_point, axis, *bounds)
    return y if bounds == grid[2:4] else _clamped(y, scale, zero_point, axis, grid)


def _by_onnx(x: Tensor, grid: Grid, opset: int) -> Any:
    """`QuantizeLinear` and `DequantizeLinear` of the smallest integers, which divide by the scale."""
    fitting = (t for t in _ONNX_TYPES if opset >= t[0] and t[2][0] <= grid.quant_min and grid.quant_max <= t[2][1])
    _, kind, bounds = next(fitting, (0, 0, None))
    if bounds is None:
        return NotImplemented
    flat, attributes = _flat_parameters(x, grid), {}
    if flat is NotImplemented:
        flat = _of_groups(x, grid) if opset >= 21 else NotImplemented
        if flat is NotImplemented:
            return NotImplemented
        attributes["block_size"] = x.shape[flat[2]]
    scale, zero_point, axis = flat
    if axis is not None:
        attributes["axis"] = axis
    code = torch.onnx.ops.symbolic("Cast", (zero_point,), {"to": kind}, dtype=kind, shape=zero_point.shape)
    q = torch.onnx.ops.symbolic("QuantizeLinear", (x, scale, code), attributes, dtype=kind, shape=x.shape)
    y = torch.onnx.ops.symbolic("DequantizeLinear", (q, scale, code), attributes, dtype=_FLOAT, shape=x.shape)
    return y if bounds == grid[2:4] else _clamped(y, scale, zero_point, None if scale.ndim == x.ndim else axis, grid)


def _flat_parameters(x: Tensor, grid: Grid) -> Any:
    """The scale and the zero point as tensors of no dimension, or of one along an axis of ``x``, and the axis or None."""
    if not all(isinstance(p, (float, int, Tensor)) for p in (grid.scale, grid.zero_point)):
        return NotImplemented
    z = _integer_zero_point(grid.zero_point, grid)
    axis = _axis(x, [p for p in (grid.scale, z) if isinstance(p, Tensor)])
    if axis is NotImplemented:
        return NotImplemented
    shape = () if axis is None else (x.shape[axis],)
    return _flat(grid.scale, shape, x, x.dtype), _flat(z, shape, x, torch.int32), axis


def _of_groups(x: Tensor, grid: Grid) -> Any:
    """The scale and the zero point of groups along one dimension, and that dimension."""
    scale, z = grid.scale, _integer_zero_point(grid.zero_point, grid)
    parameters = [p for p in (scale, z) if isinstance(p, Tensor)]
    if not isinstance(scale, Tensor) or any(p.ndim != x.ndim for p in parameters):
        return NotImplemented
    if not all(isinstance(n, int) for tensor in (x, *parameters) for n in tensor.shape):
        return NotImplemented
    axes = [d for d, (n, m) in enumerate(zip(scale.shape, x.shape, strict=True)) if n == 1 != m]
    others = [d for d in range(x.ndim) if d not in axes]
    if len(axes) != 1 or any(scale.shape[d] != x.shape[d] for d in others) or any(p.shape != scale.shape for p in parameters):
        return NotImplemented
    z = _flat(z, tuple(scale.shape), x, torch.int32) if not isinstance(z, Tensor) else z
    return scale.detach().to(x.dtype), z, axes[0]


def _clamped(y: Tensor, scale: Tensor, zero_point: Tensor, axis: int | None, grid: Grid) -> Tensor:
    """The value within the range."""
    low, high = ((end - zero_point) * scale for end in grid[2:4])
    if axis is not None:
        shape = [-1 if d == axis else 1 for d in range(y.ndim)]
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
            if found not in (None, d) or not isinstance(n, int) or not isinstance(x.shape[d], int) or n != x.shape[d]:
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
