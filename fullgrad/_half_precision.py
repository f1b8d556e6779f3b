"""Half precision on the CPU, and formulas of several steps: computed piece by piece, so that no temporary is written to memory.

The cost of an elementwise operation on a large tensor is memory traffic, and a copy in float32 has twice the bytes. A piece stays
in the cache.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._checks import can_broadcast
from fullgrad._dispatch import can_reuse_buffers, surely

HALF = frozenset({torch.float16, torch.bfloat16})

# What behaves as a tensor does, whole and in pieces.
_PLAIN = (Tensor, torch.nn.Parameter)

# Elements of a piece: temporaries of it stay in the cache, and the cost of a call is small beside theirs.
PIECE = 2**18

Formula = Callable[..., Sequence[Tensor | None]]
# The shape and dtype of an output; None where there is none.
Output = tuple[torch.Size, torch.dtype] | None
Index = tuple[int | slice, ...]


def to_opmath(*args: Any) -> list[Any]:
    """Half precision in float32, where slopes do not overflow and are rounded once."""
    return [a.float() if a.__class__ is not float and isinstance(a, Tensor) and a.dtype in HALF else a for a in args]


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x.to(dtype)``, which even where there is nothing to do takes the time of an operation."""
    return x if x.dtype == dtype else x.to(dtype)


def chunked(formula: Formula, outputs: Sequence[Output], *args: Any, widen: bool = True) -> list[Any] | None:
    """The outputs of an elementwise formula of pieces of the arguments, in float32 at least if ``widen``.

    None where pieces are no gain: the first tensor is small, on another device or of less than the shape to which all broadcast,
    or steps are recorded.
    An output of fewer elements is summed to its shape, in float32 at least.
    """
    first = args[0]
    if not surely(first.numel() > PIECE) or first.device.type != "cpu" or not can_reuse_buffers():
        return None
    shape = first.shape
    tensors = {i: a for i, a in enumerate(args) if isinstance(a, Tensor)}
    if not all(a.__class__ in _PLAIN and can_broadcast(a.shape, shape) for a in tensors.values()):
        return None
    tensors = {i: with_ndim(a, len(shape)) for i, a in tensors.items()}
    wide, buffers, wide_dtype = list(args), {}, torch.promote_types(first.dtype, torch.float32)
    found: list[Any] = [None] * len(outputs)
    for index in pieces_of(shape, PIECE):
        for i, a in tensors.items():
            piece = a[part_of(index, a)]
            wide[i] = buffers[i] = _in_float32(piece, buffers.get(i)) if widen else piece
        for j, value in enumerate(formula(*wide)):
            output = outputs[j]
            if value is None or output is None:
                continue
            whole = output[0] == shape
            if found[j] is None:
                found[j] = torch.empty_like(first, dtype=output[1]) if whole else torch.zeros(output[0], dtype=wide_dtype)
            target = found[j] if whole else with_ndim(found[j], len(shape))
            target = target[part_of(index, target)]
            if whole:
                target.copy_(value)
            else:
                target.add_(value.to(wide_dtype).sum_to_size(target.shape))
    return found


def chunked_terms(terms: Any, needed: Sequence[bool], g: Tensor, inputs: Sequence[Any], widen: bool) -> list[Any] | None:
    """The gradients ``terms(needed, g, *inputs)`` piece by piece, each like its input; None as of `chunked`."""
    like = [v if isinstance(v, Tensor) else g for v in inputs]  # what is not read is None, and may have a gradient all the same
    outputs = [(v.shape, v.dtype) if n else None for n, v in zip(needed, like, strict=False)]
    return chunked(functools.partial(terms, needed), outputs, g, *inputs, widen=widen)


def in_pieces(formula: Callable[..., Tensor], *args: Any) -> Tensor:
    """An elementwise formula of several steps, which gives a tensor of the shape and dtype of the first argument: piece by piece
    where that is large, so that the steps are in the cache.
    """
    first = args[0]
    if not surely(first.numel() >= PIECE) or not first.is_cpu or not can_reuse_buffers():
        return formula(*args)
    size = PIECE // 2 * torch.get_num_threads()
    tensors = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
    if not all(args[i].__class__ in _PLAIN and can_broadcast(args[i].shape, first.shape) for i in tensors):
        return formula(*args)
    wide, some, out = (
        [with_ndim(a, first.ndim) if isinstance(a, Tensor) else a for a in args],
        list(args),
        torch.empty_like(first),
    )
    for index in pieces_of(first.shape, size):
        for i in tensors:
            some[i] = wide[i][part_of(index, wide[i])]
        out[part_of(index, out)].copy_(formula(*some))
    return out


def rounded_once(formula: Callable[..., Tensor], *args: Any) -> Tensor:
    """An elementwise formula; where some arguments are in half precision, in float32, and rounded once to the dtype that torch
    gives such a formula. An intermediate result that is rounded may be rounded to another integer, or fall on the other side of a
    threshold.
    """
    if not any_half(*args):
        return formula(*args)
    floating = [a for a in args if isinstance(a, Tensor) and a.is_floating_point()]
    some = [a for a in floating if a.ndim] or floating
    dtype = functools.reduce(torch.promote_types, [a.dtype for a in some])

    def in_float32(*args: Any) -> Tensor:
        return formula(*to_opmath(*args)).to(dtype)

    return in_pieces(in_float32, *args) if args[0].dtype == dtype else in_float32(*args)


def any_half(*args: Any) -> bool:
    """Whether some arguments are tensors in half precision."""
    for a in args:  # noqa: SIM110
        if a.__class__ is not float and isinstance(a, Tensor) and a.dtype in HALF:
            return True
    return False


def _in_float32(piece: Tensor, buffer: Tensor | None) -> Tensor:
    """In a buffer, where there is one of its shape: memory that was just in use is in the cache."""
    if piece.dtype not in HALF:
        return piece
    return piece.float() if buffer is None or buffer.shape != piece.shape else buffer.copy_(piece)


def pieces_of(shape: torch.Size, size: int) -> Iterator[Index]:
    """Positions in the leading dimensions and a slice of the next, of pieces of about equal size."""
    row, dim = shape.numel(), -1
    while row > size:
        dim += 1
        row //= shape[dim]
    count = -(-shape[dim] * row // size)
    length = -(-shape[dim] // count)
    for leading in itertools.product(*map(range, shape[:dim])):
        for start in range(0, shape[dim], length):
            yield (*leading, slice(start, start + length))


def part_of(index: Index, tensor: Tensor) -> Index:
    """The index into a tensor that broadcasts: its dimensions of size 1 are whole."""
    return tuple([i if n > 1 else 0 if isinstance(i, int) else slice(None) for i, n in zip(index, tensor.shape, strict=False)])


def with_ndim(tensor: Tensor, ndim: int) -> Tensor:
    return tensor.view((1,) * (ndim - tensor.ndim) + tensor.shape) if tensor.ndim < ndim else tensor
