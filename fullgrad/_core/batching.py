"""Helpers for ``vmap`` rules."""

from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from fullgrad._core.checks import broadcast_shape, can_broadcast
from fullgrad._dispatch import innermost, same_shape


def elementwise(operator: Any, in_dims: tuple[int | None, ...], args: tuple[Any, ...]) -> tuple[Tensor, int | None]:
    """The ``vmap`` rule of an operator that treats every element alike and broadcasts its arguments."""
    tensors = [a for a in args if isinstance(a, Tensor)]
    if len(tensors) == 1:
        y = operator.apply(*args)
        check_elementwise(operator, tensors[0].shape, y.shape)
        return y, max(d for d in in_dims if d is not None)
    args = tuple(aligned(in_dims, args))
    y = operator.apply(*args)
    shapes = [a.shape for a in args if isinstance(a, Tensor)]
    if not all([_fits(shape, y.shape) for shape in shapes]):  # noqa: C419
        # The value does not depend on the batched argument, the derivative may.
        shape = broadcast_shape(*shapes)
        y = operator.apply(*[a.expand(shape) if isinstance(a, Tensor) else a for a in args])
        check_elementwise(operator, shape, y.shape)
    return y, 0


def check_elementwise(operator: Any, shape: torch.Size, output: torch.Size) -> None:
    """Refuse a value that lacks the shape of an input: it is no elementwise function, and a batch would be mixed."""
    if not _fits(shape, output):
        raise ValueError(
            f"{operator.__name__}.forward must return a tensor of the shape to which its inputs broadcast, got shape "
            f"{tuple(output)} from an input of shape {tuple(shape)}: an operator that reduces derives from fullgrad.Function."
        )


def _fits(shape: torch.Size, output: torch.Size) -> bool:
    return same_shape(shape, output) or can_broadcast(shape, output)


def aligned(in_dims: tuple[int | None, ...], args: tuple[Any, ...], core: tuple[int, ...] | None = None) -> list[Any]:
    """Arguments of an elementwise operator with the batch in dim 0, broadcasting as one sample of them would.

    A sample of shape (3,) next to one of shape (2, 3) becomes (B, 1, 3) next to (B, 2, 3). A per-sample scalar takes part in type
    promotion as a scalar, as it does outside ``vmap``: it takes the floating dtype of the others. ``core`` is the number of the
    last dimensions of each argument that do not broadcast: 2 for matrices, 1 for vectors.
    """
    samples = [a.ndim - (d is not None) if isinstance(a, Tensor) else 0 for a, d in zip(args, in_dims, strict=True)]
    ranks = samples if core is None else [n - k for n, k in zip(samples, core, strict=True)]
    most = max(ranks)
    dtype = next((a.dtype for a, n in zip(args, samples, strict=True) if n and a.is_floating_point()), None)
    result: list[Any] = []
    for a, dim, n, rank in zip(args, in_dims, samples, ranks, strict=True):
        if dim is not None:
            a = a.movedim(dim, 0)
            if n == 0 and dtype is not None and a.is_floating_point():
                a = a.to(dtype)
            a = a.reshape(a.shape[0], *(1,) * (most - rank), *a.shape[1:])
        result.append(a)
    return result


def in_front(info: Any, in_dims: tuple[int | None, ...], args: tuple[Any, ...], count: int = 1) -> list[Any]:
    """`aligned`, where the tensors among the first ``count`` arguments have the batch, also those that are not batched."""
    return [
        a.expand(info.batch_size, *a.shape) if i < count and in_dims[i] is None and isinstance(a, Tensor) else a
        for i, a in enumerate(aligned(in_dims, args))
    ]


def numel_with_batches(x: Tensor) -> int:
    """The number of elements of all samples together. In compiled code, which may not know it, of one sample."""
    return x.numel() if is_dynamo_compiling() else innermost(x).numel()
