"""Values of images between their pixels."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import torch_formula
from fullgrad.completion._registry import NO_SECOND, completes


def _pixels(grid: Tensor, size: int, padding: int, align: bool) -> Tensor:
    """The coordinates of a grid in -1 to 1 as positions in one dimension. Those that are clipped have no slope, nor has a bound;
    what is no number is outside.
    """
    x = (grid + 1) / 2 * (size - 1) if align else ((grid + 1) * size - 1) / 2
    if padding == 2:
        low, span = (0.0, float(size - 1)) if align else (-0.5, float(size))
        if span == 0:
            return torch.zeros_like(x)
        distance = torch.where(x < low, low - x, x - low)
        flips = torch.floor(distance.detach() / span)
        rest = distance - flips * span
        x = torch.where(flips % 2 == 0, rest + low, span - rest + low)
    if padding:
        x = torch.where((x > 0) & (x < size - 1), x, x.detach().clamp(0, size - 1))
    return torch.where(x.isfinite(), x, -2.0)


def _sampled(x: Tensor, grid: Tensor, mode: int, padding: int, align: bool) -> Tensor:
    """The values of images ``(N, C, *sizes)`` at points ``(N, *points, dimensions)``, by lines between pixels or the nearest."""
    if x.dtype != grid.dtype:
        raise RuntimeError(f"grid_sample: the input and the grid must have one dtype, got {x.dtype} and {grid.dtype}.")
    sizes, n = x.shape[2:], x.shape[0]
    positions = [_pixels(grid[..., i], size, padding, align) for i, size in enumerate(reversed(sizes))][::-1]
    corners = [torch.floor(p.detach()) for p in positions] if mode == 0 else [torch.round(p.detach()) for p in positions]
    corners = [c.clamp(-2, size + 1) for c, size in zip(corners, sizes, strict=True)]
    total: Any = 0
    for corner in range(2 ** len(sizes)) if mode == 0 else (0,):
        weight, inside = torch.ones_like(positions[0]), torch.ones_like(positions[0], dtype=torch.bool)
        index = torch.zeros_like(positions[0], dtype=torch.long)
        for d, size in enumerate(sizes):
            is_next = corner >> d & 1
            place = corners[d] + is_next
            if mode == 0:
                part = positions[d] - corners[d]
                weight = weight * (part if is_next else 1 - part)
            inside = inside & (place >= 0) & (place < size)
            index = index * size + place.clamp(0, size - 1).long()
        values = x.flatten(2).gather(2, index.reshape(n, 1, -1).expand(n, x.shape[1], -1))
        values = values.reshape(*x.shape[:2], *grid.shape[1:-1])
        total = total + values * torch.where(inside, weight, 0).unsqueeze(1)
    if mode == 0 and padding == 0:
        total = torch.where(grid.isnan().any(-1).unsqueeze(1), torch.nan, total)
    return total


@completes("grid_sampler_2d", NO_SECOND, batched=True, issue=34704)
def _grid_sampler_2d(x: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Tensor:
    if interpolation_mode == 2:
        return torch_formula(torch.ops.aten.grid_sampler_2d.default)(x, grid, interpolation_mode, padding_mode, align_corners)
    return _sampled(x, grid, interpolation_mode, padding_mode, align_corners)


@completes("grid_sampler_3d", NO_SECOND, batched=True)
def _grid_sampler_3d(x: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Tensor:
    return _sampled(x, grid, interpolation_mode, padding_mode, align_corners)
