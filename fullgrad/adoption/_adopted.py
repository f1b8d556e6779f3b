"""`Adopted`: the operator that runs every call, and `Plain`, the call of a function that belongs to no class."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from fullgrad import _dispatch
from fullgrad._core.function import Function
from fullgrad._engine.changes import versions_of
from fullgrad.adoption._batched import ESCAPED, Batched, looped
from fullgrad.adoption._call import Call
from fullgrad.adoption._linearity import TRANSPOSE, find_verdict, materialized, tangents_by
from fullgrad.adoption._modes import WithoutMemory
from fullgrad.adoption._scope import scope
from fullgrad.adoption._tensors import NO_ARGUMENT, Maybe, Refused, may_differ, not_differentiable, separate
from fullgrad.adoption._writes import with_writes, writing

IN_PLACE = "{}.forward changes an input in place, which transforms cannot follow; a new tensor, or a copy of the input, works."
_SCRATCH = """{}.backward changes a tensor in place that is not its own, as the gradient or what its forward has kept is not, \
which transforms cannot follow; a copy works."""
_CONSTANT = """{}.backward was differentiated, but its forward saves an intermediate that depends on an input. Second \
derivatives take it for a constant, in eager autograd silently. Save inputs or outputs, or adopt with strict=False."""


class Adopted(Function):
    """The results of a call: its outputs, and the other tensors it keeps, which are constants, as in eager double backward.

    The ``forward`` of a `Call` runs once, below all transforms. Its ``backward`` and ``jvp`` run at each level that is
    differentiated, on the tensors of that level: inputs, and then all results. `applied` calls it under the name of the class,
    which nodes, profiles and errors show.
    """

    runs_code = True

    @staticmethod
    def forward(call: Call, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
        with _dispatch.traced_class():
            return _forward(call, tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        call, *tensors = inputs
        ctx.call, ctx.results = call, len(output)
        ctx.zeros = [o if o is None else functools.partial(torch.zeros, o.shape, dtype=o.dtype, device=o.device) for o in output]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*[o for i, o in enumerate(output) if o is not None and i not in call.free])
        # A strict call has to see whether a kept intermediate depends on inputs, which the class may not keep.
        used = call.used.union(range(len(tensors))) if call.used.intersection(call.lost) else call.used
        kept = [t if i in used else None for i, t in enumerate([*tensors, *output])]
        ctx.save_for_backward(*kept)
        ctx.save_for_forward(*kept)

    @staticmethod
    def vjp(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        with _dispatch.traced_class():
            return None, *_dispatch.outside_dynamo(_vjp)(ctx, cotangents)

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        with _dispatch.traced_class():
            return _dispatch.outside_dynamo(_jvp)(ctx, tangents)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], call: Call, *tensors: Tensor | None) -> tuple[Any, Any]:
        outs = applied(Batched(call, in_dims[1:], info, len(_dispatch.active_transforms()) + 1), *tensors)
        return outs, tuple(None if o is None else 0 for o in outs)


def applied(call: Call, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """The results of a call."""
    return _named(call.name).apply(call, *tensors)


@functools.cache
def _named(name: str) -> Any:
    return type(name, (Adopted,), {"__module__": __name__, "__qualname__": f"<locals>.{name}"})


def _forward(call: Call, tensors: Maybe) -> tuple[Tensor | None, ...]:
    before, strict = versions_of([t for t in tensors if t is not None]), call.options.strict
    find_verdict(call, tensors)
    is_rule = isinstance(call.sample, Plain)  # it may call autograd for the parameters of a model
    leaves = [
        t if t is None else t.detach().requires_grad_((strict and needed and may_differ(t)) or (is_rule and t.requires_grad))
        for t, needed in zip(tensors, call.needed, strict=False)
    ]
    try:
        with torch.enable_grad() if strict else contextlib.nullcontext(), writing(None):
            outs = _recordable(call, call.forward)(*leaves)
    except RuntimeError as error:
        if any(sign in str(error) for sign in ESCAPED):
            raise Refused(NO_ARGUMENT.format(call.name)) from error
        raise
    if versions_of([t for t in tensors if t is not None]) != before:
        raise Refused(call.in_place.format(call.name))
    call.sample.lost = [len(tensors) + i for i, o in enumerate(outs) if i >= call.count and o.requires_grad]
    outs = tuple(o if o is None else separate(call.name, o, tensors) for o in outs)
    find_verdict(call, tensors, outs)
    return outs


def _vjp(ctx: Any, cotangents: Maybe) -> Sequence[Tensor | None]:
    given = materialized(ctx.call, map(_dispatch.writable, cotangents[: ctx.call.count]), ctx.zeros)
    backward = functools.partial(ctx.call.backward, needs=ctx.needs_input_grad[1:])
    return _recordable(ctx.call, backward)(_guarded(ctx), given)


def _jvp(ctx: Any, tangents: Maybe) -> tuple[Tensor | None, ...]:
    call, flat = ctx.call, _guarded(ctx)
    push = lambda *all: tangents_by(call, all[: len(flat)], all[len(flat) :], ctx.zeros)  # noqa: E731
    # In a composite operator of torch.library no transform can be entered.
    push = functools.partial(applied, Plain(push, call)) if _dispatch.transforms_are_hidden() else _recordable(call, push)
    with scope(call.options):
        result = push(*flat, *map(_dispatch.writable, tangents))
    # A class may leave out the tangent of an output.
    own = [z() if t is None and i in call.free else t for i, (t, z) in enumerate(zip(result, ctx.zeros, strict=False))]
    return *own, *[None] * (ctx.results - len(own))


def _recordable(call: Call, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function without in-place operations, if a tracer records them: `torch.func.linearize` would repeat them on its
    constants at every call.
    """
    if not _dispatch.records_in_place() or "Functionalize" in _dispatch.active_transforms():
        return function

    def without_memory(*args: Any) -> Any:
        with WithoutMemory(call.name):
            return function(*args)

    return torch.func.functionalize(without_memory)


def _guarded(ctx: Any) -> list[Tensor | None]:
    """The saved tensors; in strict mode, a derivative through one that lost its dependence on the inputs raises."""
    flat, call = list(ctx.saved_tensors), ctx.call
    inputs = [t for t in flat[: len(flat) - ctx.results] if may_differ(t)]
    for i in call.used.intersection(call.lost):
        (flat[i],) = applied(Plain(lambda saved, *_: [saved], call, _CONSTANT.format(call.name)), flat[i], *inputs)
    return flat


class Plain(Call):
    """A function of tensors and Nones as a call below all transforms, where it may look at numbers.

    Its derivative is that of the function, or is refused with a reason.
    """

    has_jvp, in_forward_mode, materialize, lost, verdict = False, False, True, (), TRANSPOSE
    needed, in_place = itertools.repeat(True), _SCRATCH

    def __init__(self, function: Callable[..., Sequence[Tensor | None]], owner: Any, refusal: str = "", code: Any = None) -> None:
        self.function, self.refusal, self.code, self.sample = function, refusal, code or self, self
        self.cls, self.name, self.options = owner.cls, owner.name, owner.options

    def forward(self, *tensors: Tensor | None) -> Sequence[Tensor | None]:
        """The function's value."""
        with torch.no_grad() if self.refusal else contextlib.nullcontext():
            outs = self.function(*tensors)
        self.count, self.used = len(outs), set(range(len(tensors)))
        self.record = self.free = [i for i, o in enumerate(outs) if may_differ(o)]
        return outs

    def backward(self, flat: Maybe, cotangents: Maybe, needs: Sequence[bool]) -> Sequence[Tensor | None]:
        """A gradient or None for each input."""
        if self.refusal:
            raise Refused(self.refusal)
        n, where = len(self.used), [i for i in self.used if needs[i] and may_differ(flat[i])]

        def pull(*all: Any) -> Sequence[Tensor | None]:
            def of_some(*some: Tensor) -> Any:
                given = dict(zip(where, some, strict=True))
                outs = self.function(*[given.get(i, t) for i, t in enumerate(all[:n])])
                return tuple(outs[i] for i in self.free)

            try:
                grads = _dispatch.vjp(of_some, *[all[i] for i in where])[1](tuple(all[n + i] for i in self.free))
            except Exception as error:
                if isinstance(error, Refused) or _dispatch.active_transforms():
                    raise
                raise Refused(not_differentiable(self.name, error)) from error
            given = dict(zip(where, grads, strict=True))
            return [given.get(i) for i in range(n)]

        return applied(Plain(pull, self), *flat[:n], *cotangents)


def run_or_descend(
    call: Call, function: Callable[..., Any], args: Maybe, rule: Any, refusal: str = ""
) -> Sequence[Tensor | None]:
    """``function(*args)``, which calls a rule of the class, at the present level, or below all transforms if it cannot run there
    or must not be differentiated.
    """
    code = rule if isinstance(rule, FunctionType) else None
    in_vmap = lambda *_: "Vmap" in _dispatch.active_transforms()  # noqa: E731
    if not (refusal or (code in looped and in_vmap())):
        try:
            return with_writes(call.cls, lambda: function(*args), in_vmap)
        except Exception as error:
            if isinstance(error, Refused) or not _dispatch.active_transforms():
                raise
    return applied(Plain(function, call, refusal, code), *args)
