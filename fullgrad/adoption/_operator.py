"""The operators that an adopted call is made of."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullgrad._dispatch import is_tracing, transforms_active
from fullgrad._function import Function
from fullgrad.adoption._batched import Batched, check_loop, first_line, warn_of_loop
from fullgrad.adoption._call import IN_PLACE, Call, Maybe, Slot, WithoutNone
from fullgrad.adoption._linearity import IDENTITY, TRANSPOSE, find_verdict, materialized, transposed, verdict
from fullgrad.adoption._randomness import Draws
from fullgrad.adoption._scope import following
from fullgrad.adoption._tensors import Like, is_differentiable, separate, unwrapped_constant, writable


class Adopted(Function):
    """The outputs of a call, and what else its context keeps: constants, as they are to eager double backward."""

    @staticmethod
    def forward(call: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        before = _versions(tensors)
        outs = call.forward(*tensors)
        if _versions(tensors) != before:
            raise NotImplementedError(IN_PLACE.format(call.name))
        outs = separate([unwrapped_constant(call.name, o) for o in outs], tensors)
        find_verdict(call, tensors, outs)
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
        return None, *_backward(ctx.call, _guarded(ctx), given)

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        call, pushed = ctx.call, [writable(t) for t in tangents]
        with following(call.options):
            result = _tangents(call, _guarded(ctx), pushed, ctx.like)
        return *result, *[None] * (ctx.outputs - len(result))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], call: Any, *tensors: Tensor) -> tuple[Any, Any]:
        if not call.levelwise or isinstance(call, Batched):
            outs = Adopted.apply(Batched(call, in_dims[1:], info.batch_size, info.randomness), *tensors)
            return outs, (0,) * len(outs)
        dims = tuple(in_dims[1 + a] if isinstance(a, Slot) else None for a in call.args)
        with following(call.options):
            output, out_dims = call.cls.vmap(info, dims, *call.arguments(tensors))
        outs, _ = call.note(call.context(tensors), tensors, output)
        own = isinstance(out_dims, (tuple, list))
        return tuple(outs), tuple(out_dims[i] for i in call.layout.positions) if own else (out_dims,) * len(outs)


class Below(Function):
    """A function of tensors that runs below all transforms, sample by sample where it cannot be batched."""

    @staticmethod
    def forward(body: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        return separate(body(*tensors), tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.body, *tensors = inputs
        ctx.like = [Like.of(o) for o in output]
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def vjp(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        pull, where = _pullback(ctx.body, ctx.saved_tensors)
        grads = dict(zip(where, Below.apply(pull, *ctx.saved_tensors, *cotangents), strict=True))
        return None, *[grads.get(i) for i in range(len(ctx.saved_tensors))]

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        tensors, like = ctx.saved_tensors, ctx.like
        pull, where = _pullback(ctx.body, tensors)

        def push(*all: Tensor) -> tuple[Tensor, ...]:  # the transpose of the transpose
            transpose = lambda *g: pull(*all[: len(tensors)], *g)  # noqa: E731
            return torch.func.vjp(transpose, *[a.zeros() for a in like])[1](all[len(tensors) :])

        given = [tangents[i] for i in where]
        some = [torch.zeros_like(tensors[i]) if t is None else t for i, t in zip(where, given, strict=True)]
        return tuple(Below.apply(push, *tensors, *some))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], body: Any, *tensors: Tensor) -> tuple[Any, Any]:
        dims = in_dims[1:]

        def batched(*tensors: Tensor) -> tuple[Tensor, ...]:
            try:
                return torch.vmap(body, dims, 0, info.randomness)(*tensors)
            except Exception as error:
                if "randomness" in str(error):
                    raise
            draws = Draws("a class", info.randomness, tensors)
            samples = [
                draws.sample(body, *[t if d is None else t.select(d, b) for t, d in zip(tensors, dims, strict=True)])
                for b in range(info.batch_size)
            ]
            return tuple(torch.stack(parts) for parts in zip(*samples, strict=True))

        outs = Below.apply(Once(batched, body.name) if isinstance(body, Once) else batched, *tensors)
        return outs, (0,) * len(outs)


class Once(NamedTuple):
    """The body of a backward that may not be differentiated."""

    body: Any
    name: str

    def __call__(self, *tensors: Tensor) -> Any:
        with torch.no_grad():
            return self.body(*tensors)


class Intermediate(Function):
    """In strict mode: a saved intermediate, whose derivative with respect to the inputs is lost. To ask for it is an error."""

    @staticmethod
    def forward(name: str, saved: Tensor, *inputs: Tensor) -> Tensor:
        return saved.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.name = inputs[0]

    @staticmethod
    def vjp(ctx: Any, g: Any) -> Any:
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


def _backward(call: Any, flat: Maybe, cotangents: Maybe) -> list[Tensor | None]:
    """The class's backward where it is called, or below all transforms if it cannot run inside them."""
    n = len(flat)
    body = WithoutNone(lambda *all: call.backward(all[:n], all[n:]), [*flat, *cotangents])
    if call.once:
        return body.restore(Below.apply(Once(body, call.name), *body.tensors))
    try:
        return body.restore(body(*body.tensors))
    except Exception as error:
        if not transforms_active():
            raise
        check_loop(call, error)
        result = body.restore(Below.apply(body, *body.tensors))
        warn_of_loop(call, first_line(error))
        return result


def _tangents(call: Any, flat: Maybe, tangents: Maybe, like: list[Like]) -> list[Tensor | None]:
    if call.has_jvp:
        return call.jvp(flat, tangents)
    face = verdict(call)
    if face == TRANSPOSE:
        return transposed(call, flat, tangents, like)
    if face == IDENTITY:
        return [next(t for t in tangents if t is not None).clone()]
    reason = face or "its backward could not be tried with random numbers; call it once in eager forward mode before"
    raise NotImplementedError(f"{call.name} has no forward mode: {reason}, and it declares no jvp.")


def _pullback(body: Any, tensors: tuple[Tensor, ...]) -> tuple[Any, list[int]]:
    """The function of ``(*tensors, *cotangents)`` that pulls back to the differentiable tensors, and which these are."""
    if isinstance(body, Once):
        raise RuntimeError(f"{body.name}.backward is once_differentiable: it has no second derivative.")
    n, where = len(tensors), [i for i, t in enumerate(tensors) if is_differentiable(t)]

    def pull(*all: Tensor) -> tuple[Tensor, ...]:
        def of_some(*some: Tensor) -> Any:
            given = dict(zip(where, some, strict=True))
            return tuple(body(*[given.get(i, t) for i, t in enumerate(all[:n])]))

        return torch.func.vjp(of_some, *[all[i] for i in where])[1](all[n:])

    return pull, where


def _versions(tensors: tuple[Tensor, ...]) -> list[int]:
    """How often each was changed in place. Inference mode does not count."""
    return [] if is_tracing() else [t._version for t in tensors if not t.is_inference()]
