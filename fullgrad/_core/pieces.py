"""The schedule of elementwise formulas of several steps: a large tensor on the CPU is computed piece by piece.

Each step of a formula reads and writes memory, which takes more time than its arithmetic. The temporaries of a piece stay in the
cache, and so do copies of half precision in float32. A formula says with `pointwise` that it may be computed so; no formula says
how.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from fullgrad._core.checks import can_broadcast
from fullgrad._core.opmath import any_half, result_dtype, to_opmath
from fullgrad._dispatch import is_tracing, is_unrecorded

# Elements of a piece for each thread: its temporaries fit in the cache, and calls cost little beside its arithmetic.
PIECE = 2**16
# Pieces of the smallest tensor that is computed so: the memory of smaller ones is in the cache anyway.
FEWEST = 4

# Numbers of a piece of rows whose formula makes many numbers of each element, on the CPU and on a device.
_NUMBERS, _NUMBERS_ON_DEVICE = 2**18, 2**24

# The classes that behave as a tensor does, whole and in pieces.
_PLAIN = (Tensor, torch.nn.Parameter)

Formula = Callable[..., Sequence[Tensor | None]]
# The shape and dtype of an output, None for the dtype that the formula gives; None for an output that is not wanted.
Output = tuple[torch.Size, torch.dtype | None] | None
Index = tuple[int | slice, ...]


def pointwise(formula: Any = None, *, opmath: bool = False) -> Any:
    """Declare a function that treats every element alike, in several steps: large tensors are computed piece by piece.

    With ``opmath``, half precision is computed in float32 and rounded once, to the dtype that torch gives such a formula: the
    result of a step, if it were rounded, could round to another integer or fall on the other side of a threshold in the next.
    An entry of ``fullgrad._core.fast`` for such a function computes large tensors whole.
    """
    if formula is None:
        return functools.partial(pointwise, opmath=opmath)
    version: Callable[..., Any] | None = None

    @functools.wraps(formula)
    def scheduled(*args: Any) -> Tensor:
        half = opmath and any_half(*args)
        if is_large(args[0], args):
            if version is not None and (found := version(*args)) is not NotImplemented:
                return found
            whole = max([a for a in args if isinstance(a, Tensor)], key=Tensor.numel)
            output = whole.shape, result_dtype(*args) if half else None
            found = computed_in_pieces(lambda *some: (formula(*some),), args, [output], to_opmath if half else None)
            if found is not None:
                return found[0]
        return formula(*to_opmath(*args)).to(result_dtype(*args)) if half else formula(*args)

    def put(new: Callable[..., Any] | None, recorded: bool = False) -> None:
        nonlocal version
        version = new

    scheduled.put = put  # pyright: ignore[reportAttributeAccessIssue]
    return scheduled


def is_large(x: Tensor, args: Sequence[Any]) -> bool:
    """Whether a tensor has several pieces, and nothing records what eager code computes of it and the other arguments."""
    # The first conditions spare small tensors the last one; tracers have tensors of other classes.
    return x.__class__ in _PLAIN and not is_dynamo_compiling() and x.numel() >= FEWEST * PIECE and is_unrecorded((x, *args))


def terms_in_pieces(
    terms: Callable[..., Any], needed: Sequence[bool], g: Tensor, inputs: Sequence[Any], opmath: Any
) -> list[Any] | None:
    """The gradients ``terms(needed, g, *inputs)`` piece by piece, each like its input; None where pieces are not possible, or
    nothing is read but ``g``, which may be a gradient itself.
    """
    if not any([isinstance(v, Tensor) for v in inputs]):  # noqa: C419
        return None
    like = [v if isinstance(v, Tensor) else g for v in inputs]  # an input that is not read is None, and may have a gradient
    outputs = [(v.shape, v.dtype) if n else None for n, v in zip(needed, like, strict=False)]
    return computed_in_pieces(functools.partial(terms, needed), (g, *inputs), outputs, opmath)


def computed_in_pieces(formula: Formula, args: Sequence[Any], outputs: Sequence[Output], opmath: Any = None) -> list[Any] | None:
    """The outputs of an elementwise formula, of pieces of the largest tensor and of what broadcasts to it.

    None where a tensor is not on the CPU, has a class of its own, or does not broadcast to the largest. An output of fewer
    elements is summed to its shape, in float32 at least. ``opmath`` converts the arguments of a piece.
    """
    tensors = [a for a in args if isinstance(a, Tensor)]
    whole = max(tensors, key=Tensor.numel)
    shape, size = whole.shape, PIECE * torch.get_num_threads()
    if whole.numel() <= size or not all(
        [a.__class__ in _PLAIN and a.is_cpu and can_broadcast(a.shape, shape) for a in tensors]  # noqa: C419
    ):
        return None
    if all([a.is_contiguous() and (a.shape == shape or a.ndim == 0) for a in tensors]):  # noqa: C419
        parts_of = functools.partial(_flat_parts, size=size)
    else:
        parts_of = functools.partial(_parts, indices=[*pieces_of(shape, size)], ndim=len(shape))
    found: list[Any] = [None] * len(outputs)
    targets: list[Any] = [None] * len(outputs)
    for count, some in enumerate(zip(*map(parts_of, args), strict=False)):
        for j, value in enumerate(formula(*(some if opmath is None else opmath(*some)))):
            output = outputs[j]
            if value is None or output is None:
                continue
            is_whole = output[0] == shape
            if count == 0:
                found[j] = _new_output(whole, is_whole, output, value)
                targets[j] = parts_of(found[j])
            target = next(targets[j])
            if is_whole:
                target.copy_(value)
            else:
                target.add_(value.to(target.dtype).sum_to_size(target.shape))
    return found


def pieces_of_rows(args: Sequence[Any], factor: int) -> list[list[Any]]:
    """The arguments of a sum over the last dimension of the first one, piece by piece, so that temporaries of ``factor`` numbers
    for each element stay small. Tensors of another size there belong to every piece. A compiler fuses the sum: it gets one.
    """
    x = args[0]
    if is_tracing() or x.numel() * factor <= _NUMBERS:
        return [[*args]]
    n, rows = x.shape[-1], x.numel() // max(x.shape[-1], 1)
    size = max((_NUMBERS if x.is_cpu else _NUMBERS_ON_DEVICE) // (factor * max(rows, 1)), 1)
    columns = [v.split(size, -1) if isinstance(v, Tensor) and v.ndim and v.shape[-1] == n else itertools.repeat(v) for v in args]
    return [[*some] for _, *some in zip(range(0, max(n, 1), size), *columns, strict=False)]


def _flat_parts(value: Any, size: int) -> Iterator[Any]:
    """The pieces of an argument whose memory is that of the whole, or which is one number."""
    return iter(value.view(-1).split(size)) if isinstance(value, Tensor) and value.ndim else itertools.repeat(value)


def _parts(value: Any, indices: Sequence[Index], ndim: int) -> Iterator[Any]:
    """The pieces of an argument that broadcasts."""
    if not isinstance(value, Tensor):
        return itertools.repeat(value)
    tensor = with_ndim(value, ndim)
    return (tensor[part_of(index, tensor)] for index in indices)


def _new_output(whole: Tensor, is_whole: bool, output: tuple[torch.Size, torch.dtype | None], value: Tensor) -> Tensor:
    """Memory for an output, given its first piece."""
    if is_whole:
        return torch.empty_like(whole, dtype=output[1] or value.dtype)
    return torch.zeros(output[0], dtype=torch.promote_types(whole.dtype, torch.float32))


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
