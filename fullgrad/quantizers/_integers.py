"""The arithmetic of a grid of integers: codes, values, residuals, and where the gradient passes."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullgrad._core.fast import replaceable
from fullgrad._core.opmath import divided
from fullgrad._core.pieces import pointwise
from fullgrad._core.windows import where_between
from fullgrad._dispatch import is_known
from fullgrad.quantizers._arithmetic import reciprocal_number, to_compute
from fullgrad.rounding._modes import round_to_integer


class Grid(NamedTuple):
    """The inputs of an operator after ``x``: the grid, and how numbers get to it."""

    scale: Any
    zero_point: Any
    quant_min: int
    quant_max: int
    inside: str
    rounding: str
    reciprocal: bool
    round_zero_point: bool
    noise: Tensor | None = None


@replaceable
@pointwise(opmath=True)
def pass_in_range(g: Tensor, x: Tensor, *inputs: Any) -> Tensor:
    """``g`` where the code is in the range, else 0."""
    grid = Grid(*inputs)
    v, z, _ = quotient(x, grid)
    compared = v + z if grid.inside == "exact" else code(v, z, grid)
    return where_between(g, compared.detach(), float(grid.quant_min), float(grid.quant_max))


def quotient(x: Tensor, grid: Grid) -> tuple[Tensor, Any, Any]:
    """The quotient, the zero point that is added to it, and the scale, in the dtype of the computation."""
    x, scale, z = to_compute(x, grid.scale, grid.zero_point)
    if grid.round_zero_point and isinstance(z, Tensor):
        z = torch.clamp(torch.round(z), grid.quant_min, grid.quant_max)
    if not grid.reciprocal:
        return divided(x, scale), z, scale
    if is_known(scale):
        return x * reciprocal_number(scale, x.dtype), z, scale
    factor = scale if isinstance(scale, Tensor) else torch.full((), scale, dtype=x.dtype, device=x.device)
    return x * factor.reciprocal(), z, scale


def code(v: Tensor, z: Any, grid: Grid) -> Tensor:
    """The code before the clamp. Adding even a zero point of 0 turns -0.0 into 0.0, as in torch."""
    if grid.round_zero_point:
        return round_to_integer(v, grid.rounding, grid.noise) + z
    return round_to_integer(v + z, grid.rounding, grid.noise)


def code_in_range(r: Tensor, z: Any, grid: Grid) -> Tensor:
    """The code, clamped, without the zero point."""
    q = torch.clamp(r, grid.quant_min, grid.quant_max)
    return q if z.__class__ is int and z == 0 else q - z
