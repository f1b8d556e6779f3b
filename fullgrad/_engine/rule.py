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
from fullgrad._core.recomputed import pullback
from fullgrad._dispatch import (
    are_differentiated,
    forward_mode_is_on,
    has_shape,
    in_legacy_vmap,
    innermost,
    is_alias_of,
    is_tracing,
    outside_saved_tensor_hooks,
    transforms_active,
)
from fullgrad._engine.call import Call
from fullgrad._engine.surroundings import Surroundings
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
    runs_code = True

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
        grads = self._over(
            lambda *all: self.inner.pull(all[:n], all[n:], needs), [*inputs, *cotangents], [*self.in_dims, *[0] * len(cotangents)]
        )
        return [g if g is None else g.sum(0) if d is None else g.movedim(0, d) for g, d in zip(grads, self.in_dims, strict=True)]

    def push(self, inputs: Sequence[Tensor], tangents: Maybe, like: Sequence[Any]) -> Sequence[Tensor]:
        n, sample = len(inputs), [(shape[1:], dtype, device) for shape, dtype, device in like]
        pushed: Any = self._over(
            lambda *all: self.inner.push(all[:n], all[n:], sample), [*inputs, *tangents], [*self.in_dims, *self.in_dims]
        )
        return pushed

    def _over(self, function: Callable[..., Maybe], tensors: Maybe, dims: Sequence[int | None]) -> list[Tensor | None]:
        where: list[bool] = []

        def without_nones(_: Tensor, *args: Tensor | None) -> tuple[Tensor, ...]:
            results = function(*args)
            where[:] = [r is not None for r in results]
            return tuple([r for r in results if r is not None])

        # torch.vmap wants a batched argument, which a function that draws need not have.
        in_dims = (0, *[None if t is None else d for t, d in zip(tensors, dims, strict=True)])
        mapped = torch.func.vmap(without_nones, in_dims, randomness=self.randomness)
        results = iter(mapped(torch.empty(self.size), *tensors))
        return [next(results) if there else None for there in where]


def by_reference(reference: Callable[..., Sequence[Tensor]]) -> Rule:
    """The derivative of a function of the inputs, which is plain differentiable code."""
    return _rule(reference, lambda function, tensors: function(*tensors))


def recomputed(reference: Callable[..., Sequence[Tensor]]) -> Rule:
    """`by_reference` where each derivative is itself such an operator, which keeps its inputs alone.

    Else a derivative keeps what it computes wherever it might be differentiated again, as torch.func lets any gradient be.
    """
    return _rule(reference, kept_alone)


def _rule(reference: Callable[..., Sequence[Tensor]], run: Callable[..., Sequence[Tensor]]) -> Rule:
    """The derivative of a function of the inputs; ``run(function, tensors)`` calls what computes it."""

    def floating(*inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple([y for y in reference(*inputs) if may_differ(y)])

    def pull(inputs: Sequence[Tensor], cotangents: Sequence[Tensor], needs: Sequence[bool]) -> Maybe:
        where, n = tuple([i for i, needed in enumerate(needs) if needed]), len(inputs)
        back = lambda *all: transpose(floating, all[:n], where)(*all[n:])  # noqa: E731
        return scattered(n, where, run(back, [*inputs, *[g for g in cotangents if may_differ(g)]]))

    def push(inputs: Sequence[Tensor], tangents: Maybe, like: Sequence[Any]) -> Sequence[Tensor]:
        where, n = tuple([i for i, t in enumerate(tangents) if t is not None]), len(inputs)
        back = lambda *all: transpose(floating, all[:n], where)(*all[n:])  # noqa: E731
        pushed = lambda *all: transposed(back, all[:n], like)(*all[n:])  # noqa: E731
        return run(pushed, [*inputs, *[t for t in tangents if t is not None]])

    return Rule(pull, push)


def kept_alone(function: Callable[..., Sequence[Tensor]], tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """``function(*tensors)``, whose graph holds the tensors alone."""
    if in_legacy_vmap():
        return function(*tensors)
    is_last = not is_differentiated(tensors)
    with contextlib.nullcontext() if is_dynamo_compiling() else outside_saved_tensor_hooks():  # nothing that it saves is kept
        values = function(*(tensors if is_last else [t.detach() for t in tensors]))
    return values if is_last else declared(recomputed(function), values, tensors)


def transpose(
    function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor], where: tuple[int, ...]
) -> Callable[..., tuple[Tensor, ...]]:
    """The function that pulls cotangents of the results back to the inputs at ``where``, itself differentiable."""
    pull = pullback(lambda *all: tuple(function(*all)), inputs, where)
    return lambda *cotangents: pull(cotangents)


def transposed(
    linear: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor], like: Sequence[Any]
) -> Callable[..., tuple[Tensor, ...]]:
    """The transpose of ``linear(*inputs, *v)``, which is linear in ``v``, tensors like those that ``like`` describes.

    It is the derivative by ``v``, at a ``v`` that is not special: not at 0, which a function may leave out.
    """
    v = [torch.full(shape, 0.7, dtype=dtype, device=device) for shape, dtype, device in like if is_floating(dtype)]
    return transpose(linear, [*inputs, *v], tuple(range(len(inputs), len(inputs) + len(v))))


def scattered(count: int, where: tuple[int, ...], values: Sequence[Tensor]) -> list[Tensor | None]:
    """A list of ``count`` entries with values at ``where``, and None elsewhere."""
    found: list[Tensor | None] = [None] * count
    for i, v in zip(where, values, strict=True):
        found[i] = v
    return found


def check_like(label: str, of: str, t: Any, shape: Any, dtype: torch.dtype) -> Tensor:
    """The tensor, if it has a shape and a dtype."""
    if not isinstance(t, Tensor):
        raise TypeError(f"{label} must be a tensor, or None for 0, got a value of type {type(t).__name__}.")
    if not has_shape(t.shape, shape):
        raise ValueError(f"{label} must have the shape of its {of}, {tuple(shape)}, got {tuple(t.shape)}.")
    if t.dtype != dtype:
        raise TypeError(f"{label} must have the dtype of its {of}, {dtype}, got {t.dtype}.")
    return t


def gradients_of(rule: str, label: str, call: Call, wanted: Sequence[int], grads: Any) -> list[Any]:
    """The gradients that a rule returned, one or None for each tensor of a call; the tuple has the wanted arguments."""
    if not isinstance(grads, (tuple, list)) or len(grads) != len(wanted):
        raise TypeError(
            f"{rule} must return a tuple with a gradient, or None, for each of the {len(wanted)} arguments, got a value of type "
            f"{type(grads).__name__}" + (f" of {len(grads)}." if isinstance(grads, (tuple, list)) else ".")
        )
    given = dict(zip(wanted, grads, strict=True))
    parts = [part.flattened(given.get(i), f"{label}: the gradient of argument {i}") for i, part in enumerate(call.parts)]
    return [g for part in parts for g in part]


def is_floating(dtype: torch.dtype) -> bool:
    """Whether a dtype has derivatives."""
    return dtype.is_floating_point or dtype.is_complex


def may_differ(tensor: Tensor) -> bool:
    """Whether a tensor may have a derivative."""
    return is_floating(tensor.dtype)


def is_differentiated(tensors: Sequence[Tensor]) -> bool:
    """Whether one of some tensors requires a gradient or has a tangent, at any level."""
    # Compiled autograd lets Dynamo trace a backward, in which torch's state cannot be asked.
    if not is_dynamo_compiling() and (transforms_active() or forward_mode_is_on() or is_tracing()):
        return any(are_differentiated(tensors))
    return torch.is_grad_enabled() and any([t.requires_grad for t in tensors])  # noqa: C419  # on the hot path


def leaves_of(tensors: Sequence[Tensor]) -> set[int]:
    """The identities of the leaf tensors of graphs."""
    found, seen, stack = set(), set(), [t.grad_fn for t in tensors]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        found.add(id(getattr(node, "variable", None)))
        stack += [next_node for next_node, _ in node.next_functions]
    return (found | {id(t) for t in tensors if t.is_leaf and t.requires_grad}) - {id(None)}
