"""Reductions that are right on distributed tensors, too."""

from typing import Any

from torch import Tensor

from fullgrad._dispatch import any_distributed, is_distributed


def extremes(x: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The smallest and the largest element over some dimensions, which are kept with size 1; NaN where there is one.

    Elements that tie share the derivative.
    """
    if any_distributed((x,)):
        from fullgrad._dispatch.distributed import Extremes

        return Extremes.apply(x, dims)
    return x.amin(dims, keepdim=True), x.amax(dims, keepdim=True)


def without_parts(x: Tensor) -> Tensor:
    """A distributed tensor of which the ranks hold parts of a sum as that sum, before code that is not linear in it."""
    if x.__class__ is not Tensor and any_distributed((x,)):
        from fullgrad._dispatch.distributed import without_parts

        return without_parts(x)
    return x


def on_every_rank(x: Tensor) -> Tensor:
    """A distributed tensor as a plain one, without a derivative: where Python reads its numbers."""
    full: Any = x
    return full.detach().full_tensor() if is_distributed(x) else x
