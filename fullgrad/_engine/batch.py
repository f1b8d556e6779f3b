"""Batches of code: by `torch.vmap`, also of None; and of code that torch cannot batch, sample by sample or all at once."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._engine.random_states import host_states, random_states, restore_host_states, restore_random_states

Tensors = Sequence[Tensor]
DRAWS = "vmap: {} draws random numbers{}, which needs a randomness other than 'error'."


def vmap_with_nones(
    function: Callable[..., Sequence[Tensor | None]],
    args: Sequence[Tensor | None],
    in_dims: Sequence[int | None],
    size: int,
    randomness: str,
) -> list[Tensor | None]:
    """``torch.vmap(function, in_dims)(*args)`` where arguments and results may be None, and no argument needs to be batched."""
    returned: list[bool] = []

    def without_nones(_: Tensor, *args: Tensor | None) -> tuple[Tensor, ...]:
        results = function(*args)
        returned[:] = [r is not None for r in results]
        return tuple([r for r in results if r is not None])

    # torch.vmap wants a batched argument, which a function that draws need not have.
    dims = (0, *[None if t is None else d for t, d in zip(args, in_dims, strict=True)])
    results = iter(torch.vmap(without_nones, dims, randomness=randomness)(torch.empty(size), *args))
    return [next(results) if there else None for there in returned]


def sample_by_sample(
    name: str, run: Callable[..., Sequence[Any]], tensors: Sequence[Any], dims: Sequence[int | None], size: int, randomness: str
) -> list[Any]:
    """The results of ``run`` for each sample, stacked, which draws random numbers by the ``randomness`` of `torch.vmap`; also
    those of the host, which take longer to compare, and are looked at in the end.
    """
    before, on_host = ([], []) if randomness == "different" else (random_states(), host_states())
    samples = []
    for i in range(size):
        if randomness == "same":  # all samples get the numbers of the first one
            restore_random_states(before)
            restore_host_states(on_host)
        samples.append(run(*[t if d is None or t is None else t.select(d, i) for t, d in zip(tensors, dims, strict=True)]))
        if randomness == "error" and not (
            all(map(torch.equal, before, random_states())) and (i < size - 1 or on_host == host_states())
        ):
            raise RuntimeError(DRAWS.format(name, ""))
    return [None if part[0] is None else torch.stack(part) for part in zip(*samples, strict=True)]


class Batch:
    """Code for each sample of a batch, or for all of them at once, the batch of the results in front."""

    def __init__(self, inner: Any, dims: Sequence[int | None], randomness: str) -> None:
        self.inner, self.method, self.dims, self.randomness = inner, inner.method, dims, randomness
        self.sample = inner.sample  # the code of one sample

    def size(self, tensors: Tensors, leading: int = 0) -> int:
        """The size of the batch, which in a graph may change from call to call."""
        return next(t.shape[d + leading if d >= 0 else d] for t, d in zip(tensors, self.dims, strict=True) if d is not None)

    def run(self, tensors: Tensors, leading: int = 0) -> list[Tensor]:
        size = self.size(tensors, leading)
        if self.method == "broadcast":
            pairs = zip(tensors, self.dims, strict=True)
            # The batch comes behind those of outer batches.
            return self.inner.run([in_front(t, d, size, leading) for t, d in pairs], leading + 1)
        if not size:
            return self.like(tensors)
        # Code may return one buffer for each sample.
        run = lambda *sample: [y.clone() for y in self.inner.run(sample)]  # noqa: E731
        return sample_by_sample("a function called sample by sample", run, tensors, self.dims, size, self.randomness)

    def like(self, tensors: Tensors) -> list[Tensor]:
        dims = [None if d is None else d % t.ndim for t, d in zip(tensors, self.dims, strict=True)]
        sample = [t if d is None else t.new_empty([*t.shape[:d], *t.shape[d + 1 :]]) for t, d in zip(tensors, dims, strict=True)]
        return [y.new_empty([self.size(tensors), *y.shape]) for y in self.inner.like(sample)]


def in_front(tensor: Tensor, dim: int | None, size: int, leading: int) -> Tensor:
    """A tensor with its batch behind some leading dimensions, which ``dim`` does not count."""
    if dim is None:
        return tensor.unsqueeze(leading).expand(*tensor.shape[:leading], size, *tensor.shape[leading:])
    return tensor.movedim(dim % (tensor.ndim - leading) + leading, leading)
