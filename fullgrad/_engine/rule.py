"""`declared`: given values with a derivative of their own. All operators made of functions stand on it.

A function of the user runs where it is called, on tensors without a derivative, so that torch's own rules batch it (`values`).
What it returned is then an input of `Declared`, next to the tensors by which it is differentiated, and a `Rule` says how.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from fullgrad._core.function import Function, alias
from fullgrad._dispatch import innermost, is_alias_of, is_tracing
from fullgrad._engine.batch import vmap_with_nones
from fullgrad._engine.changes import Surroundings
from fullgrad._engine.differentiated import is_floating, may_differ
from fullgrad._engine.watching import shown

Maybe = Sequence[Tensor | None]


class Rule:
    """The derivative of some values by some inputs, as plain differentiable code.

    ``pull(inputs, cotangents, needs)`` returns a gradient or None for each input, ``push(inputs, tangents, like)`` a tangent for
    each value that is differentiable; ``like`` has the shape, dtype and device of each value. ``saves`` says whether they use the
    numbers in the inputs; otherwise they get None in their places.
    """

    __slots__ = ("pull", "push", "saves")

    def __init__(self, pull: Callable[..., Maybe], push: Callable[..., Sequence[Tensor]], saves: bool = True) -> None:
        self.pull, self.push, self.saves = pull, push, saves

    def within(self, surroundings: Surroundings) -> "Rule":
        """The rule, which is refused after a change of what stood around the call."""
        return Rule(surroundings.guarded(self.pull), surroundings.guarded(self.push), self.saves)


def declared(rule: Rule, values: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The values, with the derivative that a rule gives them by the inputs."""
    if CONTEXTS and not is_tracing():  # a context changes what is being traced
        rule = _as_now(rule)
    return shown(Declared.apply(rule, len(values), *apart(values, inputs), *inputs)) if values else []


# Contexts of the package that change what torch's operators compute: whether one is open, and it.
CONTEXTS: list[tuple[Callable[[], bool], Callable[[], contextlib.AbstractContextManager[Any]]]] = []


def _as_now(rule: Rule) -> Rule:
    """The rule inside of the contexts that are open now: code that is called again has the draws and derivatives of the call."""
    contexts = [context for is_open, context in CONTEXTS if is_open()]

    def inside(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            if is_tracing():
                return function(*args)
            with contextlib.ExitStack() as stack:
                for context in contexts:
                    stack.enter_context(context())
                return function(*args)

        return run

    return Rule(inside(rule.pull), inside(rule.push), rule.saves) if contexts else rule


def apart(values: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Values that share no memory with inputs or each other, as is true for any operator."""
    if is_dynamo_compiling():  # where nobody can tell
        return [*values]
    own: list[Tensor] = []
    others = [innermost(t) for t in inputs]
    for y in values:
        y, below = y.detach() if y.requires_grad else y, innermost(y)
        own.append(y.clone() if any(t is not below and is_alias_of(t, below) for t in others) else y)
        others.append(below)
    return own


class Declared(Function):
    """The operator of `declared`. Saved: the inputs, if the rule uses them."""

    constant_types: ClassVar[tuple[type, ...]] = (Rule,)
    runs_code, is_watched = True, False

    @staticmethod
    def forward(rule: Rule, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple([alias(y) for y in tensors[:count]])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.rule, ctx.count = inputs[:2]
        ctx.like = [(y.shape, y.dtype, y.device) for y in output]
        constant = [y for y in output if not may_differ(y)]
        if constant:
            ctx.mark_non_differentiable(*constant)
        kept = inputs[2 + ctx.count :] if ctx.rule.saves else [None] * (len(inputs) - 2 - ctx.count)
        ctx.save_for_backward(*kept)
        ctx.save_for_forward(*kept)
        ctx.set_materialize_grads(False)  # zeros as the tangents of buffers, which torch's operators may refuse

    @staticmethod
    def vjp(ctx: Any, *given: Tensor | None) -> tuple[Any, ...]:
        needs = ctx.needs_input_grad[2 + ctx.count :]
        like = zip(given, ctx.like, strict=True)
        cotangents = [torch.zeros(shape, dtype=dtype, device=device) if g is None else g for g, (shape, dtype, device) in like]
        return *[None] * (2 + ctx.count), *ctx.rule.pull(ctx.saved_tensors, cotangents, needs)

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        pushed = iter(ctx.rule.push(ctx.saved_tensors, tangents[ctx.count :], ctx.like))
        return tuple([next(pushed) if is_floating(dtype) else None for _, dtype, _ in ctx.like])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], rule: Rule, count: int, *tensors: Tensor) -> tuple[Any, int]:
        n, dims = info.batch_size, in_dims[2:]
        values = [
            y.expand(n, *y.shape) if d is None else y.movedim(d, 0) for y, d in zip(tensors[:count], dims[:count], strict=True)
        ]
        batched = _Batched(rule, dims[count:], n, info.randomness)
        return Declared.apply(Rule(batched.pull, batched.push, rule.saves), count, *values, *tensors[count:]), 0


class _Batched:
    """A rule of one sample, for a batch. Inputs that all samples share get the sum of their gradients."""

    def __init__(self, inner: Rule, in_dims: Sequence[int | None], size: int, randomness: str) -> None:
        self.inner, self.in_dims, self.size, self.randomness = inner, in_dims, size, randomness

    def pull(self, inputs: Sequence[Tensor], cotangents: Sequence[Tensor], needs: Sequence[bool]) -> Maybe:
        n = len(inputs)
        pull, dims = lambda *all: self.inner.pull(all[:n], all[n:], needs), [*self.in_dims, *[0] * len(cotangents)]
        grads = vmap_with_nones(pull, [*inputs, *cotangents], dims, self.size, self.randomness)
        return [g if g is None else g.sum(0) if d is None else g.movedim(0, d) for g, d in zip(grads, self.in_dims, strict=True)]

    def push(self, inputs: Sequence[Tensor], tangents: Maybe, like: Sequence[Any]) -> Sequence[Tensor]:
        n, sample = len(inputs), [(shape[1:], dtype, device) for shape, dtype, device in like]
        push, dims = lambda *all: self.inner.push(all[:n], all[n:], sample), [*self.in_dims, *self.in_dims]
        return vmap_with_nones(push, [*inputs, *tangents], dims, self.size, self.randomness)  # pyright: ignore[reportReturnType]
