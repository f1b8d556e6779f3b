"""`blocked`: functions of n x n matrices that are never whole, computed, pulled back and differentiated by blocks of rows."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import prod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fullgrad._batching import aligned
from fullgrad._dispatch import has_data, is_tracing, unwrap_legacy_batched
from fullgrad._function import Function
from fullgrad._inputs import sum_to

Tensors = tuple[Tensor, ...]

# How many elements the matrix of a block has. On a CPU its temporaries then stay in the cache, and 1 MiB of float32 is much
# more than the overhead of a loop; an accelerator wants long kernels, and has the memory.
BLOCK = 2**18
BLOCK_ACCELERATOR = 2**25
# Derivatives that a tracer has to see as operations are a loop written out, of at most so many blocks.
TRACED_BLOCKS = 4


class Block(NamedTuple):
    """Rows and columns of an n x n matrix, each from the first to before the last."""

    top: int
    bottom: int
    left: int
    right: int
    n: int


class Formula:
    r"""A function of tensors of which every row of a matrix gives a part.

    ``inputs`` and ``outputs`` have one letter for each tensor. ``R`` is one number per row: of an input a block sees those of its
    rows, and gives those of an output. ``C`` is one number per column: of an input a block sees those of its columns, and an
    output is the sum of what the blocks give. Subclasses are known by their names.
    """

    known: ClassVar[dict[str, type["Formula"]]] = {}
    inputs: ClassVar[str]
    outputs: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Formula.known[cls.__name__] = cls

    @staticmethod
    def value(mode: str, block: Block, *args: Tensor) -> Tensors:
        """The part of a block of whole rows, in code that is differentiable at every order."""
        raise NotImplementedError

    @staticmethod
    def fast(mode: str, block: Block, *args: Tensor) -> Tensors:
        """The numbers alone, of any block."""
        raise NotImplementedError

    @staticmethod
    def pull(mode: str, block: Block, *args: Tensor) -> Sequence[Tensor]:
        """Arguments and cotangents to the gradients of the first arguments that may have one; the numbers alone, of any block."""
        raise NotImplementedError

    @staticmethod
    def blocks(mode: str, size: int, *args: Tensor) -> Iterable[Block]:
        """Blocks of at most so many elements, or one row, that hold everything which is not 0. For ``fast`` and ``pull``."""
        return _whole_rows(size, _shape(args))


def one_block(*args: Tensor) -> bool:
    """Whether the matrix of rows is small enough to be computed as it stands."""
    shape = _shape(args)
    return prod(shape) * shape[-1] <= _size(args[0])


def blocked(formula: type[Formula], mode: str, *args: Tensor) -> Tensors:
    """The outputs of a formula for all rows, with derivatives of every order, each in memory for n numbers and a block."""
    if one_block(*args):
        n = args[0].shape[-1]
        return formula.value(mode, Block(0, n, 0, n, n), *args)
    return Blocked.apply(f"{formula.__name__}|{mode}", *args)


class Blocked(Function):
    r"""A formula, or a derivative of one, by blocks of rows.

    The family is closed: the pullback of a function by blocks of rows is one of its arguments and cotangents. So derivatives of
    every order are operators of this kind, and save their arguments alone. The push-forward of tangents is the transpose of the
    pullback as a function of the cotangents.

    A name lists what is computed: the formula, the mode, and for each pullback 1 for every argument whose gradient is wanted.
    Every output has the batch of all arguments together: a gradient is summed over what was broadcast by who asks for it, as
    under ``vmap`` it is wanted for each sample.
    """

    @staticmethod
    def forward(name: str, *args: Tensor) -> Tensors:
        if any(unwrap_legacy_batched(a, 0)[1] for a in args):
            return _steps(name, args)
        if has_data(args[0]) and not is_tracing():
            return tuple(_numbers(name, args))
        return tuple(torch.ops.fullgrad.by_blocks(name, args)) if _order(name) < 2 else _steps(name, args, TRACED_BLOCKS)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.name = inputs[0]
        ctx.like = [(y.shape, y.dtype, y.device) for y in output]
        ctx.save_for_backward(*inputs[1:])
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def vjp(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        args, wanted = ctx.saved_tensors, ctx.needs_input_grad[1:]
        gradients = iter(Blocked.apply(_pulled(ctx.name, wanted), *args, *cotangents))
        return None, *[sum_to(next(gradients), a.shape) if w else None for a, w in zip(args, wanted, strict=True)]

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> Tensors:
        args, moved = ctx.saved_tensors, [t is not None for t in tangents]
        zeros = [torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.like]
        name = _pulled(_pulled(ctx.name, moved), [False] * len(args) + [True] * len(zeros))
        return Blocked.apply(name, *args, *zeros, *[t for t in tangents if t is not None])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], name: str, *args: Tensor) -> tuple[Tensors, int]:
        return Blocked.apply(name, *aligned(in_dims[1:], args)), 0


def _pulled(name: str, wanted: Iterable[bool]) -> str:
    """The name of a pullback."""
    return f"{name}|{''.join('01'[bool(w)] for w in wanted)}"


def _order(name: str) -> int:
    """How many pullbacks a name has."""
    return name.count("|") - 1


@lru_cache(1024)
def _kinds(name: str) -> tuple[str, str]:
    """The letters of inputs and outputs."""
    name, _, wanted = name.rpartition("|")
    if "|" not in name:
        return Formula.known[name].inputs, Formula.known[name].outputs
    inputs, outputs = _kinds(name)
    return inputs + outputs, "".join([kind for kind, w in zip(inputs, wanted, strict=True) if w == "1"])


def _steps(name: str, args: Sequence[Tensor], most: int | None = None) -> Tensors:
    """All rows, in code that anybody may differentiate, batch or trace."""
    shape = _shape(args)
    # torch's own pullback would sum over what is broadcast.
    args = [a.expand(shape) for a in args]
    inputs, outputs = _kinds(name)
    found: list[list[Tensor]] = [[] for _ in outputs]
    for block in _whole_rows(_size(args[0]), shape, most):
        for parts, kind, y in zip(found, outputs, _part(name, block, _pull, *_cut(block, inputs, args)), strict=True):
            if kind == "C" and parts:
                parts[0] = parts[0] + y
            else:
                parts.append(y)
    return tuple([torch.cat(parts, -1) if kind == "R" else parts[0] for parts, kind in zip(found, outputs, strict=True)])


def _part(name: str, block: Block, pullback: Any, *args: Tensor) -> Sequence[Tensor]:
    """What a block gives; a pullback is that of the name before."""
    before, _, wanted = name.rpartition("|")
    if "|" not in before:
        return Formula.known[before].value(wanted, block, *args)
    moved = [i for i, w in enumerate(wanted) if w == "1"]

    def of_some(*some: Tensor) -> Sequence[Tensor]:
        every = list(args[: len(wanted)])
        for i, v in zip(moved, some, strict=True):
            every[i] = v
        return _part(before, block, pullback, *every)

    return pullback(of_some, [args[i] for i in moved], args[len(wanted) :])


def _pull(function: Any, args: Sequence[Tensor], cotangents: Sequence[Tensor]) -> Sequence[Tensor]:
    """The gradients of a function, which a tracer sees as operations."""
    _, pull = _pair(torch.func.vjp(function, *args))
    return pull(tuple(cotangents))


def _pull_numbers(function: Any, args: Sequence[Tensor], cotangents: Sequence[Tensor]) -> Sequence[Tensor]:
    """The same for plain tensors; in contrast to transforms it works under saved-tensor hooks."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        some = [a.view_as(a) if a.requires_grad else a.detach().requires_grad_() for a in args]
        outputs = [(y, c) for y, c in zip(function(*some), cotangents, strict=True) if y.requires_grad]
        if not outputs:
            return [torch.zeros_like(a) for a in args]
        values, given = zip(*outputs, strict=True)
        return torch.autograd.grad(values, some, given, create_graph=again, materialize_grads=True)


@torch.no_grad()
def _numbers(name: str, args: Sequence[Tensor]) -> list[Tensor]:
    """All rows where nobody looks at the steps."""
    shape, (inputs, outputs) = _shape(args), _kinds(name)
    formula, mode, *wanted = name.split("|")
    rules, size = Formula.known[formula], _size(args[0])
    # Filled in place: small tensors that live on between the large ones of the blocks keep the allocator from using their memory.
    found = [args[0].new_zeros(shape) for _ in outputs]
    if len(wanted) > 1:
        args = [a.expand(shape) for a in args]
    for block in rules.blocks(mode, size, *args) if len(wanted) < 2 else _whole_rows(size, shape):
        some = _cut(block, inputs, args)
        if len(wanted) > 1:
            parts = _part(name, block, _pull_numbers, *some)
        elif wanted:
            parts = [p for p, w in zip(rules.pull(mode, block, *some), wanted[0], strict=False) if w == "1"]
        else:
            parts = rules.fast(mode, block, *some)
        for y, kind, part in zip(found, outputs, parts, strict=True):
            place = y[..., block.top : block.bottom] if kind == "R" else y[..., block.left : block.right]
            place += part
    return found


def _cut(block: Block, kinds: str, args: Sequence[Tensor]) -> list[Tensor]:
    """What a block sees of the arguments."""
    columns, rows = (block.left, block.right - block.left), (block.top, block.bottom - block.top)
    return [a.narrow(-1, *(rows if kind == "R" else columns)) for a, kind in zip(args, kinds, strict=True)]


def _whole_rows(size: int, shape: torch.Size, most: int | None = None) -> Iterable[Block]:
    """Blocks as wide as the matrix; of at most so many elements, or one row, unless there would be too many of them."""
    n = shape[-1]
    step = max(1, size // max(1, prod(shape)), 0 if most is None else -(-n // most))
    return [Block(top, min(top + step, n), 0, n, n) for top in range(0, n, step)]


def _shape(args: Sequence[Tensor]) -> torch.Size:
    return torch.broadcast_shapes(*[a.shape for a in args])


def _size(like: Tensor) -> int:
    return BLOCK if like.device.type == "cpu" else BLOCK_ACCELERATOR


def _pair(result: Any) -> tuple[Any, Any]:
    """What vjp returns without ``has_aux``."""
    return result


def _like_numbers(name: str, args: Sequence[Tensor]) -> list[Tensor]:
    return [args[0].new_empty(_shape(args)) for _ in _kinds(name)[1]]


# A tracer keeps the value and the first gradient as one node each, of which nothing is saved but the arguments: their steps
# are code that no transform has to see. Derivatives beyond are torch's own, which are not computed out of a tracer's sight.
torch.library.custom_op(
    "fullgrad::by_blocks", _numbers, mutates_args=(), schema="(str name, Tensor[] args) -> Tensor[]"
).register_fake(_like_numbers)
