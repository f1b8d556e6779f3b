"""Plain code that also works on distributed tensors."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from fullgrad._dispatch import any_distributed, distributed_module, is_distributed


def extremes(x: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The smallest and the largest element over some dimensions, which are kept with size 1; NaN if an element is NaN.

    Elements that tie share the derivative.
    """
    if any_distributed((x,)):
        return distributed_module().Extremes.apply(x, dims)
    return x.amin(dims, keepdim=True), x.amax(dims, keepdim=True)


def over_ranks(
    x: Tensor, dims: tuple[int, ...], part: Callable[[Tensor], Tensor], whole: Callable[[Tensor], tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    """A reduction of a distributed tensor by one gather: ``whole`` of what ``part`` makes of the shards, behind one another."""
    return distributed_module().over_ranks(x, dims, part, whole)


def greatest(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The largest element over some dimensions, as in `extremes`."""
    return extremes(x, dims)[1] if any_distributed((x,)) else x.amax(dims, keepdim=True)


def without_parts(x: Tensor) -> Tensor:
    """The tensor with partial sums of the ranks reduced, for code that is not linear in it."""
    if x.__class__ is not Tensor and any_distributed((x,)):
        return distributed_module().without_parts(x)
    return x


def with_whole_rows(x: Tensor, dim: int) -> Tensor:
    """The tensor with whole rows along ``dim`` on every rank, gathered once for code that needs them several times."""
    if x.__class__ is not Tensor and any_distributed((x,)):
        return distributed_module().with_whole_rows(x, dim)
    return x


def along_rows(
    name: str,
    function: Callable[..., Tensor],
    x: Tensor,
    dim: int | Sequence[int],
    *vectors: Tensor,
    keeps_dim: bool = True,
    more: int = 0,
) -> Tensor:
    """``function(x, *vectors)``, plain code along dimensions of ``x``; distributed tensors go by shards with whole rows. The
    result has ``more`` dimensions in the end.
    """
    if not any_distributed((x, *vectors)):
        return function(x, *vectors)
    dims = {d % x.ndim for d in ((dim,) if isinstance(dim, int) else dim) if x.ndim}
    labels = tuple([None if d in dims else d for d in range(x.ndim)])
    outputs = (labels if keeps_dim else tuple([d for d in labels if d is not None])) + (None,) * more
    return distributed_module().run_code(name, function, (x, *vectors), ([labels, *[(None,) * v.ndim for v in vectors]], outputs))


def along_parts(name: str, function: Callable[..., Tensor], x: Tensor, dim: int, *others: Any) -> Tensor:
    """``function(x, *others)``, plain code along a dimension that runs on parts of rows; ``others`` broadcast with ``x``."""
    if not any_distributed((x, *others)):
        return function(x, *others)
    module, n = distributed_module(), x.ndim
    labels = tuple([module.ROW if d == dim % n else d for d in range(n)])
    inputs = [labels[n - v.ndim :] if isinstance(v, Tensor) else () for v in (x, *others)]
    return module.run_code(name, function, (x, *others), (inputs, labels))


def elementwise_code(name: str, function: Callable[..., Tensor], *args: Any) -> Tensor:
    """``function(*args)``, plain elementwise code; distributed tensors are computed on their shards."""
    if not any_distributed(args):
        return function(*args)
    return distributed_module().run_code(name, function, args, 0)


def rows_code(name: str, function: Callable[..., Tensor], *args: Any) -> Tensor:
    """``function(*args)``, plain code along the last dimension of its tensors, whose other dimensions broadcast; distributed
    tensors are computed on shards with whole rows.
    """
    return distributed_module().run_code(name, function, args, 1) if any_distributed(args) else function(*args)


def reshaped(x: Tensor, shape: Sequence[int]) -> Tensor:
    """``x.reshape(shape)``, also for uneven shards, for which torch has no rule."""
    return distributed_module().reshaped(x, shape) if any_distributed((x,)) else x.reshape(shape)


def on_every_rank(x: Tensor) -> Tensor:
    """A distributed tensor as a plain one without a derivative, for Python code that reads its numbers."""
    full: Any = x
    return full.detach().full_tensor() if is_distributed(x) else x
