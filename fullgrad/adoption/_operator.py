"""The operators that an adopted call is made of."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import active_transforms, ignored_unknown_sizes, is_tracing, records_in_place, transforms_are_hidden
from fullgrad._function import Function
from fullgrad.adoption._batched import Batched
from fullgrad.adoption._below import Below, Maybe, WithoutNone, check_escape
from fullgrad.adoption._call import IN_PLACE, Call, Slot
from fullgrad.adoption._linearity import IDENTITY, TRANSPOSE, find_verdict, materialized, transposed, verdict
from fullgrad.adoption._scope import following
from fullgrad.adoption._tensors import Like, is_differentiable, separate, unwrapped_constant, writable


class Adopted(Function):
    """The outputs of a call, and what else its context keeps: constants, as they are to eager double backward."""

    @staticmethod
    def forward(call: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        before = _versions(tensors)
        try:
            outs = (torch.func.functionalize(call.forward) if records_in_place() else call.forward)(*tensors)
        except RuntimeError as error:
            check_escape(call, error)
            raise
        if _versions(tensors) != before:
            raise NotImplementedError(IN_PLACE.format(call.name))
        outs = separate([unwrapped_constant(call.name, o) for o in outs], tensors)
        find_verdict(call, tensors, None if call.levelwise else outs)
        return outs

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        call, *tensors = inputs
        ctx.call, ctx.outputs = call, len(output)
        if call.levelwise:
            own, plain = call.context(tensors), call.output(output)
            call.cls.setup_context(own, tuple(call.arguments(tensors)), plain)
            outs, rest = call.note(own, tensors, plain)
            output = *outs, *rest
        layout = call.layout
        ctx.like = [Like.of(o) for o in output[: layout.count]]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*[o for i, o in enumerate(output) if i >= layout.count or i in layout.constant])
        kept = [t if i in layout.used else None for i, t in enumerate([*tensors, *output])]
        ctx.save_for_backward(*kept)
        ctx.save_for_forward(*kept)

    @staticmethod
    def vjp(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        given = materialized(ctx.call, [writable(g) for g in cotangents[: ctx.call.layout.count]], ctx.like)
        with ignored_unknown_sizes():
            return None, *_recorded(ctx.call.backward, _guarded(ctx), given)

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        call, pushed = ctx.call, [writable(t) for t in tangents]
        with following(call.options), ignored_unknown_sizes():
            result = _recorded(lambda flat, tangents: _tangents(call, flat, tangents, ctx.like), _guarded(ctx), pushed)
        return *result, *[None] * (ctx.outputs - len(result))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], call: Any, *tensors: Tensor) -> tuple[Any, Any]:
        if not call.levelwise or isinstance(call, Batched):
            level = len(active_transforms()) + 1
            outs = Adopted.apply(Batched(call, in_dims[1:], info.batch_size, info.randomness, level), *tensors)
            return outs, (0,) * len(outs)
        find_verdict(call, tuple(t if d is None else t.select(d, 0) for t, d in zip(tensors, in_dims[1:], strict=True)))
        dims = tuple(in_dims[1 + a] if isinstance(a, Slot) else None for a in call.args)
        with following(call.options):
            output, out_dims = call.cls.vmap(info, dims, *call.arguments(tensors))
        outs, _ = call.note(call.context(tensors), tensors, output)
        own = isinstance(out_dims, (tuple, list))
        return tuple(outs), tuple(out_dims[i] for i in call.layout.positions) if own else (out_dims,) * len(outs)


class Intermediate(Function):
    """In strict mode: a saved intermediate, whose derivative with respect to the inputs is lost. To ask for it is an error."""

    @staticmethod
    def forward(name: str, saved: Tensor, *inputs: Tensor) -> Tensor:
        return saved.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.name = inputs[0]

    @staticmethod
    def vjp(ctx: Any, *_: Any) -> Any:
        raise RuntimeError(
            f"{ctx.name}.backward was differentiated, but its forward saves an intermediate that depends on an input. Second "
            "derivatives take it for a constant, in eager autograd silently. Save inputs or outputs, or adopt with strict=False."
        )

    jvp = vjp  # pyright: ignore

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], name: str, saved: Tensor, *inputs: Tensor) -> tuple[Any, Any]:
        return Intermediate.apply(name, saved, *inputs), in_dims[1]


def adopted(cls: Any, args: tuple[Any, ...], options: Any, forward_mode: bool) -> Any:
    """A call of the class with positional arguments."""
    call = Call(cls, args, options, forward_mode)
    tensors, call.tensors = call.tensors, []
    return call.output(Adopted.apply(call, *tensors))


# --- Rules ----------------------------------------------------------------------------------------------------------------


def _guarded(ctx: Any) -> list[Any]:
    """The saved tensors; in strict mode, those that depend on an input may not be differentiated."""
    flat, layout = list(ctx.saved_tensors), ctx.call.layout
    if layout.hidden:
        inputs = [t for t in flat[: len(layout.inputs)] if t is not None and is_differentiable(t)]
        for i in layout.hidden & layout.used:
            flat[i] = Intermediate.apply(ctx.call.name, flat[i], *inputs)
    return flat


def _recorded(rule: Callable[..., Any], flat: Maybe, more: Maybe) -> Any:
    """``rule(flat, more)``. For a tracer that records in-place operations they become others: `torch.func.linearize` would
    repeat them at every call on what it takes for constants.
    """
    if not records_in_place():
        return rule(flat, more)
    n = len(flat)
    body = WithoutNone(lambda *all: rule(all[:n], all[n:]), [*flat, *more])
    return body.restore(torch.func.functionalize(body)(*body.tensors))


def _tangents(call: Any, flat: Maybe, tangents: Maybe, like: list[Like]) -> list[Tensor | None]:
    if call.has_jvp:
        return call.jvp(flat, tangents)
    face = verdict(call)
    if face == TRANSPOSE and transforms_are_hidden():  # in a composite operator of torch.library no transform can be entered
        n = len(flat)
        body = WithoutNone(lambda *all: transposed(call, all[:n], all[n:], like), [*flat, *tangents])
        return body.restore(Below.apply(body, *body.tensors))
    if face == TRANSPOSE:
        return transposed(call, flat, tangents, like)
    if face == IDENTITY:
        return [next(t for t in tangents if t is not None).clone()]
    reason = face or "its backward could not be tried with random numbers; call it once in eager forward mode before"
    raise NotImplementedError(f"{call.name} has no forward mode: {reason}, and it declares no jvp.")


def _versions(tensors: tuple[Tensor, ...]) -> list[int]:
    """How often each was changed in place. Inference mode does not count."""
    return [] if is_tracing() else [t._version for t in tensors if not t.is_inference()]
