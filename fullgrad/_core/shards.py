"""Plain code that is right on distributed tensors, too."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from fullgrad._dispatch import any_distributed, is_distributed, on_shards


def extremes(x: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The smallest and the largest element over some dimensions, which are kept with size 1; NaN where there is one.

    Elements that tie share the derivative.
    """
    if any_distributed((x,)):
        return on_shards().Extremes.apply(x, dims)
    return x.amin(dims, keepdim=True), x.amax(dims, keepdim=True)


def greatest(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The second of `extremes` alone."""
    return extremes(x, dims)[1] if any_distributed((x,)) else x.amax(dims, keepdim=True)


def without_parts(x: Tensor) -> Tensor:
    """A distributed tensor of which the ranks hold parts of a sum as that sum, before code that is not linear in it."""
    if x.__class__ is not Tensor and any_distributed((x,)):
        return on_shards().without_parts(x)
    return x


def along_rows(
    name: str, function: Callable[..., Tensor], x: Tensor, dim: int, *vectors: Tensor, keeps_dim: bool = True
) -> Tensor:
    """``function(x, *vectors)``, plain code along a dimension of ``x``; on shards with whole rows of a distributed tensor."""
    if not any_distributed((x, *vectors)):
        return function(x, *vectors)
    labels = tuple([None if d == dim % x.ndim else d for d in range(x.ndim)])
    outputs = labels if keeps_dim else tuple([d for d in labels if d is not None])
    return on_shards().run_code(name, function, (x, *vectors), ([labels, *[(None,) * v.ndim for v in vectors]], outputs))


def elementwise_code(name: str, function: Callable[..., Tensor], *args: Any) -> Tensor:
    """``function(*args)``, plain elementwise code; on the shards of distributed tensors."""
    if not any_distributed(args):
        return function(*args)
    return on_shards().run_code(name, function, args, 0)


def rows_code(name: str, function: Callable[..., Tensor], *args: Any) -> Tensor:
    """``function(*args)``, plain code along the last dimension of its tensors, of which the others broadcast; on shards of
    distributed tensors with whole rows.
    """
    return on_shards().run_code(name, function, args, 1) if any_distributed(args) else function(*args)


def reshaped(x: Tensor, shape: Sequence[int]) -> Tensor:
    """``x.reshape(shape)``, also where torch has no rule for it: of shards that are uneven."""
    return on_shards().reshaped(x, shape) if any_distributed((x,)) else x.reshape(shape)


def on_every_rank(x: Tensor) -> Tensor:
    """A distributed tensor as a plain one, without a derivative: where Python reads its numbers."""
    full: Any = x
    return full.detach().full_tensor() if is_distributed(x) else x
