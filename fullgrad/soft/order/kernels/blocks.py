"""`blocked`: functions of n x n matrices that are never stored whole, computed and differentiated by blocks of rows."""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import compress
from math import prod
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fullgrad._core.batching import aligned
from fullgrad._core.function import Function
from fullgrad._core.recomputed import pullback
from fullgrad._dispatch import is_traced, opaque, unwrap_legacy_batched

Tensors = tuple[Tensor, ...]
Axis = Literal["row", "column"]

# The number of elements in the matrix of a block. On a CPU its temporaries stay in the cache, and 1 MiB of float32 hides the
# overhead of a loop; an accelerator needs long kernels, and has the memory.
BLOCK = 2**18
BLOCK_ACCELERATOR = 2**25
# Derivatives that a tracer has to see as operations are an unrolled loop, of at most this many blocks.
TRACED_BLOCKS = 4


class Block(NamedTuple):
    """Rows and columns of an n x n matrix, each from the first to before the last."""

    top: int
    bottom: int
    left: int
    right: int
    n: int


class Formula:
    r"""A function of tensors to which every row of a matrix contributes a part.

    ``inputs`` and ``outputs`` have an axis for each tensor. ``"row"`` means one number per row: a block reads an input, and
    writes an output, at its rows. ``"column"`` means one number per column: a block reads an input at its columns, and an output
    is the sum of the parts of all blocks.
    """

    inputs: ClassVar[tuple[Axis, ...]]
    outputs: ClassVar[tuple[Axis, ...]]
    # Functions of (mode, block, *args). The part of a block of whole rows, in code that is differentiable at every order; and
    # the gradients of the first arguments, which may have one, from arguments and cotangents: the numbers alone.
    value: ClassVar[Callable[..., Tensors]]
    pull: ClassVar[Callable[..., Sequence[Tensor]]]

    def __init_subclass__(cls) -> None:
        _FORMULAS[cls.__name__] = cls

    @classmethod
    def fast(cls, mode: str, block: Block, *args: Tensor) -> Tensors:
        """The numbers alone, for any block."""
        return cls.value(mode, block, *args)

    @classmethod
    def blocks(cls, mode: str, size: int, *args: Tensor) -> Iterable[Block]:
        """Blocks of at most ``size`` elements, or one row, that hold every element which is not 0. For ``fast`` and ``pull``."""
        return _whole_rows(size, _shape(args))


_FORMULAS: dict[str, type[Formula]] = {}


class Spec(NamedTuple):
    """The function to compute: a formula in a mode, or the pullback of the function without the last of ``pullbacks``.

    A pullback takes the arguments and a cotangent for each output, and has a flag for each argument: whether to return its
    gradient. A formula is known by its name, as a graph cannot hold a class.
    """

    formula: str
    mode: str
    pullbacks: tuple[tuple[bool, ...], ...] = ()

    def pulled_back(self, wanted: Iterable[bool]) -> "Spec":
        """The pullback of this function to some arguments."""
        return self._replace(pullbacks=(*self.pullbacks, tuple(wanted)))

    @property
    def inner(self) -> "Spec":
        """The function whose pullback this is."""
        return self._replace(pullbacks=self.pullbacks[:-1])


@lru_cache(1024)
def _axes(spec: Spec) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
    """The axes of inputs and outputs."""
    if not spec.pullbacks:
        formula = _FORMULAS[spec.formula]
        return formula.inputs, formula.outputs
    inputs, outputs = _axes(spec.inner)
    return inputs + outputs, tuple([axis for axis, w in zip(inputs, spec.pullbacks[-1], strict=True) if w])


def one_block(*args: Tensor) -> bool:
    """Whether the matrix of the rows is small enough to be computed as one block."""
    shape = _shape(args)
    return prod(shape) * shape[-1] <= _size(args[0])


def blocked(formula: type[Formula], mode: str, *args: Tensor) -> Tensors:
    """The outputs of a formula for all rows, with derivatives of every order, each in memory for n numbers and a block."""
    if one_block(*args):
        n = args[0].shape[-1]
        return formula.value(mode, Block(0, n, 0, n, n), *args)
    return Blocked.apply(Spec(formula.__name__, mode), *args)


class Blocked(Function):
    r"""A formula, or a derivative of one, by blocks of rows.

    The family is closed: the pullback of a function by blocks of rows is such a function of arguments and cotangents. So
    derivatives of every order are operators of this kind, and save their arguments alone. The push-forward of tangents
    is the transpose of the pullback as a function of the cotangents.

    Every output has the batch of all arguments together: the rules sum a gradient over broadcast dimensions, as ``vmap`` needs
    it for each sample.
    """

    @staticmethod
    def forward(spec: Spec, *args: Tensor) -> Tensors:
        if any(unwrap_legacy_batched(a, 0)[1] for a in args):
            return _steps(spec, args)
        if len(spec.pullbacks) < 2:
            # A tracer keeps the value and the first gradient as one node each, which save only the arguments.
            return tuple(by_blocks(spec.formula, spec.mode, spec.pullbacks[0] if spec.pullbacks else None, args))
        # Higher derivatives are torch's own, which a tracer records.
        return _steps(spec, args, TRACED_BLOCKS) if is_traced(*args) else tuple(_numbers(spec, args))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.spec = inputs[0]
        ctx.like = [(y.shape, y.dtype, y.device) for y in output]
        ctx.save_for_backward(*inputs[1:])
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def vjp(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        args, wanted = ctx.saved_tensors, ctx.needs_input_grad[1:]
        found = iter(Blocked.apply(ctx.spec.pulled_back(wanted), *args, *cotangents))
        return None, *[next(found) if w else None for w in wanted]

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> Tensors:
        args, moved = ctx.saved_tensors, [t is not None for t in tangents]
        zeros = [torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.like]
        transposed = ctx.spec.pulled_back(moved).pulled_back([False] * len(args) + [True] * len(zeros))
        return Blocked.apply(transposed, *args, *zeros, *[t for t in tangents if t is not None])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], spec: Spec, *args: Tensor) -> tuple[Tensors, int]:
        return Blocked.apply(spec, *aligned(in_dims[1:], args)), 0


def _steps(spec: Spec, args: Sequence[Tensor], most: int | None = None) -> Tensors:
    """The outputs for all rows, in code that can be differentiated, batched and traced."""
    shape = _shape(args)
    # torch's own pullback would sum over broadcast dimensions.
    args = [a.expand(shape) for a in args]
    inputs, outputs = _axes(spec)
    found: list[list[Tensor]] = [[] for _ in outputs]
    for block in _whole_rows(_size(args[0]), shape, most):
        for parts, axis, y in zip(found, outputs, _part(spec, block, _cut(block, inputs, args)), strict=True):
            if axis == "column" and parts:
                parts[0] = parts[0] + y
            else:
                parts.append(y)
    return tuple([torch.cat(parts, -1) if axis == "row" else parts[0] for parts, axis in zip(found, outputs, strict=True)])


def _part(spec: Spec, block: Block, args: Sequence[Tensor]) -> Sequence[Tensor]:
    """The parts that a block contributes."""
    if not spec.pullbacks:
        return _FORMULAS[spec.formula].value(spec.mode, block, *args)
    wanted = spec.pullbacks[-1]
    n, where = len(wanted), tuple(compress(range(len(wanted)), wanted))
    return pullback(lambda *inputs: _part(spec.inner, block, inputs), args[:n], where)(tuple(args[n:]))


@torch.no_grad()
def _numbers(spec: Spec, args: Sequence[Tensor]) -> list[Tensor]:
    """The outputs for all rows, the numbers alone."""
    shape, (inputs, outputs) = _shape(args), _axes(spec)
    formula, mode, order, size = _FORMULAS[spec.formula], spec.mode, len(spec.pullbacks), _size(args[0])
    # Filled in place: small tensors that stay between the large ones of blocks keep the allocator from reusing memory.
    found = [args[0].new_zeros(shape) for _ in outputs]
    if order > 1:
        args = [a.expand(shape) for a in args]
    for block in formula.blocks(mode, size, *args) if order < 2 else _whole_rows(size, shape):
        some = _cut(block, inputs, args)
        if order > 1:
            parts = _part(spec, block, some)
        elif order:
            parts = compress(formula.pull(mode, block, *some), spec.pullbacks[0])
        else:
            parts = formula.fast(mode, block, *some)
        for y, axis, part in zip(found, outputs, parts, strict=True):
            place = y[..., block.top : block.bottom] if axis == "row" else y[..., block.left : block.right]
            place += part
    return found


def _like(formula: str, mode: str, wanted: Sequence[bool] | None, args: Sequence[Tensor]) -> list[Tensor]:
    return [args[0].new_empty(_shape(args)) for _ in _axes(_spec(formula, mode, wanted))[1]]


@opaque("by_blocks", fake=_like, schema="(str formula, str mode, bool[]? wanted, Tensor[] args) -> Tensor[]", reads_values=True)
def by_blocks(formula: str, mode: str, wanted: Sequence[bool] | None, args: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of a formula, or of its pullback."""
    return _numbers(_spec(formula, mode, wanted), args)


def _spec(formula: str, mode: str, wanted: Sequence[bool] | None) -> Spec:
    return Spec(formula, mode, () if wanted is None else (tuple(wanted),))


def _cut(block: Block, axes: Sequence[Axis], args: Sequence[Tensor]) -> list[Tensor]:
    """The part of the arguments that a block reads."""
    columns, rows = (block.left, block.right - block.left), (block.top, block.bottom - block.top)
    return [a.narrow(-1, *(rows if axis == "row" else columns)) for a, axis in zip(args, axes, strict=True)]


def _whole_rows(size: int, shape: torch.Size, most: int | None = None) -> Iterable[Block]:
    """Blocks as wide as the matrix, of at most ``size`` elements, or one row; larger if there would be more than ``most``."""
    n = shape[-1]
    step = max(1, size // max(1, prod(shape)), 0 if most is None else -(-n // most))
    return [Block(top, min(top + step, n), 0, n, n) for top in range(0, n, step)]


def _shape(args: Sequence[Tensor]) -> torch.Size:
    return torch.broadcast_shapes(*[a.shape for a in args])


def _size(like: Tensor) -> int:
    return BLOCK if like.device.type == "cpu" else BLOCK_ACCELERATOR
