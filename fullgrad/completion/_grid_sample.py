"""Values of images between their pixels."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._core.recomputed import pulled_back
from fullgrad._dispatch import has_data
from fullgrad.completion._registry import NO_SECOND, completes, completes_backward, prepares, without_slope

BILINEAR, NEAREST, CUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)


def _padded(x: Tensor, size: int, padding: int, align: bool, lost: float = -2.0) -> Tensor:
    """Positions inside of an image. Those that are clipped have no slope, nor has a bound; what is no number is ``lost``."""
    if padding == REFLECTION:
        low, span = (0.0, float(size - 1)) if align else (-0.5, float(size))
        if span == 0:
            return torch.zeros_like(x)
        distance = torch.where(x < low, low - x, x - low)
        flips, rest = torch.floor(distance.detach() / span), torch.fmod(distance, span)
        x = torch.where(flips % 2 == 0, rest + low, span - rest + low)
    if padding != ZEROS:
        x = torch.where((x > 0) & (x < size - 1), x, x.detach().clamp(0, size - 1))
    return torch.where(x.isfinite(), x, lost)


def _near(t: Tensor) -> Tensor:
    return (1.25 * t - 2.25) * t * t + 1


def _far(t: Tensor) -> Tensor:
    return ((-0.75 * t + 3.75) * t - 6) * t + 3


def _taps(x: Tensor, size: int, mode: int, padding: int, align: bool, is_plane: bool) -> list[tuple[Tensor, Any]]:
    """The pixels in one dimension that make the value at some coordinates from -1 to 1, with their weights. In a plane what
    is no number is the first pixel, as in torch's value, where it is not the padding.
    """
    x = (x + 1) / 2 * (size - 1) if align else ((x + 1) * size - 1) / 2
    if mode != CUBIC:
        x = _padded(x, size, padding, align, 0.0 if is_plane and padding != ZEROS else -2.0)
    if mode == NEAREST:
        return [(torch.round(x.detach()), 1.0)]
    first = torch.floor(x.detach())
    t = x - first
    if mode == BILINEAR:
        return [(first, 1 - t), (first + 1, t)]
    weights = _far(t + 1), _near(t), _near(1 - t), _far(2 - t)
    lost = -2.0 if padding == ZEROS else 0.0
    return [(torch.round(_padded(first + k - 1, size, padding, align, lost)), w) for k, w in enumerate(weights)]


def _sampled(x: Tensor, grid: Tensor, mode: int, padding: int, align: bool) -> Tensor:
    """The values of images ``(N, C, *sizes)`` at points ``(N, *points, dimensions)``."""
    if x.dtype != grid.dtype:
        raise RuntimeError(f"grid_sample: the input and the grid must have one dtype, got {x.dtype} and {grid.dtype}.")
    sizes, n = x.shape[2:], x.shape[0]
    taps = [_taps(grid[..., -1 - d], size, mode, padding, align, len(sizes) == 2) for d, size in enumerate(sizes)]
    total: Any = 0
    for corner in itertools.product(*taps):
        weight, inside = torch.ones_like(grid[..., 0]), torch.ones_like(grid[..., 0], dtype=torch.bool)
        index = torch.zeros_like(grid[..., 0], dtype=torch.long)
        for (place, part), size in zip(corner, sizes, strict=True):
            weight, inside = weight * part, inside & (place >= 0) & (place < size)
            index = index * size + place.clamp(0, size - 1).nan_to_num(0).long()
        values = x.flatten(2).gather(2, index.reshape(n, 1, -1).expand(n, x.shape[1], -1))
        values = values.reshape(*x.shape[:2], *grid.shape[1:-1])
        total = total + values * torch.where(inside, weight, 0).unsqueeze(1)
    if mode == BILINEAR and padding == ZEROS and len(sizes) == 2:
        # As torch has it, which multiplies slopes by the weights of the other dimension.
        lost = [without_slope(grid[..., d], ~grid[..., 1 - d].isfinite()) for d in (0, 1)]
        total = total + (lost[0] + lost[1]).unsqueeze(1)
    return total


@prepares("grid_sampler_2d")
@prepares("grid_sampler_3d")
def _in_front(x: Tensor, grid: Tensor, *options: Any) -> Any:
    """Tensors whose batch is the first dimension of the memory, which torch's rule takes it to be."""
    return x.unsqueeze(0).squeeze(0), grid.unsqueeze(0).squeeze(0), *options


@completes("grid_sampler_2d", NO_SECOND, issue=34704)
def _grid_sampler_2d(x: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Tensor:
    return _sampled(x, grid, interpolation_mode, padding_mode, align_corners)


def _crashes(g: Tensor, x: Tensor, grid: Tensor, mode: int, padding: int, *_: Any) -> bool:
    """torch's kernel of a CPU takes what is no number for a place in memory, where it is not the padding."""
    if mode != BILINEAR or padding == ZEROS or grid.device.type != "cpu" or not has_data(grid):
        return False
    return not math.isfinite(grid.detach().sum().item())


@completes_backward("grid_sampler_2d_backward", crashes=_crashes)
@completes_backward("grid_sampler_3d_backward")
def _backward(g: Tensor, x: Tensor, grid: Tensor, mode: int, padding: int, align: bool, is_needed: Sequence[bool]) -> Any:
    found = pulled_back(lambda x, grid: _sampled(x, grid, mode, padding, align), (x, grid), (0, 1), g)
    return [v if needed else None for v, needed in zip(found, is_needed, strict=True)]


@completes("grid_sampler_3d", NO_SECOND)
def _grid_sampler_3d(x: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Tensor:
    return _sampled(x, grid, interpolation_mode, padding_mode, align_corners)
