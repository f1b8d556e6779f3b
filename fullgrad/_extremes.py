"""The smallest and the largest element, of distributed tensors too."""

from torch import Tensor

from fullgrad._dispatch import any_distributed


def extremes(x: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Over some dimensions, which are kept with size 1; NaN where there is one. Elements that tie share the derivative."""
    if any_distributed((x,)):
        from fullgrad._dispatch.distributed import Extremes

        return Extremes.apply(x, dims)
    return x.amin(dims, keepdim=True), x.amax(dims, keepdim=True)
