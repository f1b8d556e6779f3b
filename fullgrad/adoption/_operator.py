"""The operator that runs every adopted call, and the two calls that belong to no class: a batch, and a plain function."""

import contextlib
import functools
import itertools
import warnings
import weakref
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from fullgrad import _dispatch
from fullgrad._core.function import Function
from fullgrad._engine.random_states import DrawsOfSamples
from fullgrad.adoption import _tensors
from fullgrad.adoption._draws import DRAWS
from fullgrad.adoption._linearity import TRANSPOSE, find_verdict, materialized, tangents_by
from fullgrad.adoption._scope import scope
from fullgrad.adoption._tensors import NO_ARGUMENT, Maybe, Refused, may_differ, not_differentiable
from fullgrad.adoption._writes import with_writes, writing

IN_PLACE = "{}.forward changes an input in place, which transforms cannot follow; a new tensor, or a copy of the input, works."
_SCRATCH = """{}.backward changes a tensor in place that is not its own, as the gradient or what its forward has kept is not, \
which transforms cannot follow; a copy works."""
_CONSTANT = """{}.backward was differentiated, but its forward saves an intermediate that depends on an input. Second \
derivatives take it for a constant, in eager autograd silently. Save inputs or outputs, or adopt with strict=False."""
_ESCAPED = ("may have escaped", "functorch/Interpreter")  # torch's messages about a tensor whose transform is not active
_looped: Any = weakref.WeakSet()  # code that is known not to run inside vmap
_warned: Any = weakref.WeakSet()


class Adopted(Function):
    """The results of a call: its outputs, and the other tensors it keeps, which are constants, as in eager double backward.

    A call is a `Call` of a class, a `Batched` or a `Plain`. Its ``forward`` runs once, below all transforms. Its ``backward`` and
    ``jvp`` run at each level that is differentiated, on the tensors of that level: inputs, and then all results. `applied` calls
    it under the name of the class, which nodes, profiles and errors show.
    """

    runs_code = True

    @staticmethod
    def forward(call: Any, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
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
    def vmap(info: Any, in_dims: tuple[Any, ...], call: Any, *tensors: Tensor | None) -> tuple[Any, Any]:
        outs = applied(Batched(call, in_dims[1:], info, len(_dispatch.active_transforms()) + 1), *tensors)
        return outs, tuple(None if o is None else 0 for o in outs)


def applied(call: Any, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """The results of a call."""
    return _named(call.name).apply(call, *tensors)


@functools.cache
def _named(name: str) -> Any:
    return type(name, (Adopted,), {"__module__": __name__, "__qualname__": f"<locals>.{name}"})


def _forward(call: Any, tensors: Maybe) -> tuple[Tensor | None, ...]:
    before, strict = _tensors.versions(tensors), call.options.strict
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
        if any(sign in str(error) for sign in _ESCAPED):
            raise Refused(NO_ARGUMENT.format(call.name)) from error
        raise
    if _tensors.versions(tensors) != before:
        raise Refused(call.in_place.format(call.name))
    call.sample.lost = [len(tensors) + i for i, o in enumerate(outs) if i >= call.count and o.requires_grad]
    outs = tuple(o if o is None else _tensors.separate(call.name, o, tensors) for o in outs)
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


def _recordable(call: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function without in-place operations, if a tracer records them: `torch.func.linearize` would repeat them on its
    constants at every call.
    """
    if not _dispatch.records_in_place() or "Functionalize" in _dispatch.active_transforms():
        return function

    def without_memory(*args: Any) -> Any:
        with _tensors.WithoutMemory(call.name):
            return function(*args)

    return torch.func.functionalize(without_memory)


def _guarded(ctx: Any) -> list[Tensor | None]:
    """The saved tensors; in strict mode, a derivative through one that lost its dependence on the inputs raises."""
    flat, call = list(ctx.saved_tensors), ctx.call
    inputs = [t for t in flat[: len(flat) - ctx.results] if may_differ(t)]
    for i in call.used.intersection(call.lost):
        (flat[i],) = applied(Plain(lambda saved, *_: [saved], call, _CONSTANT.format(call.name)), flat[i], *inputs)
    return flat


class Batched:
    """A call under ``vmap``, as one call with the whole batch; all its results have the batch in front.

    The code runs inside ``torch.vmap``, or once for each sample if it looks at numbers.
    """

    def __init__(self, inner: Any, in_dims: Sequence[int | None], info: Any, level: int) -> None:
        self.inner, self.in_dims, self.info, self.level = inner, in_dims, info, level
        self.sample = inner.sample  # the call of one sample, below all batches

    def __getattr__(self, name: str) -> Any:
        """An attribute of the call of one sample."""
        if name == "sample":  # Dynamo asks an object that has no attributes yet
            raise AttributeError(name)
        return getattr(self.sample, name)

    # --- Forward ----------------------------------------------------------------------------------------------------------

    def forward(self, *tensors: Tensor | None) -> Sequence[Tensor | None]:
        """All results. One warning for each class says why it is slow."""
        if self.code not in _looped or not self.options.allow_loop:
            try:
                run = lambda: self.vmap(self.inner.forward, self.in_dims, tensors)  # noqa: E731
                return with_writes(self.cls, run, lambda error: not _is_final(error))
            except Exception as error:
                if _is_final(error):
                    raise
                reason = str(error).partition("\n")[0]
                if not self.options.allow_loop:
                    raise Refused(f"{self.name} cannot be batched, and allow_loop=False forbids a loop: {reason}") from error
            if self.cls not in _warned:
                _warned.add(self.cls)
                warnings.warn(f"{self.name} runs sample by sample under vmap, as it cannot be batched: {reason}", stacklevel=2)
        outs = self._loop(tensors)
        _looped.add(self.code)
        return outs

    def _loop(self, tensors: Maybe) -> list[Tensor | None]:
        self.sample.numbers_are_tensors = True  # they may differ between samples
        draws = DrawsOfSamples("different" if _dispatch.is_tracing() else self.info.randomness)
        samples, records = [], []
        for b in range(self.info.batch_size):
            draws.begin()
            given = [t if d is None or t is None else t.select(d, b) for t, d in zip(tensors, self.in_dims, strict=True)]
            samples.append(self.inner.forward(*given))
            records.append(_tensors.comparable((self.record, [t if t is None else t.shape for t in samples[-1]])))
        if draws.are_refused():
            raise RuntimeError(DRAWS.format(self.name, ""))
        if any(record != records[0] for record in records):
            raise Refused(
                f"{self.name}.forward returns or keeps something else for each sample of a batch; a loop over the samples works."
            )
        return [None if part[0] is None else torch.stack(part) for part in zip(*samples, strict=True)]

    def vmap(self, function: Callable[..., Any], in_dims: Sequence[int | None], args: Maybe) -> list[Tensor | None]:
        """``torch.vmap`` at the level of the user's ``vmap``, so that a batched tensor that the class closes over keeps its
        meaning.

        Levels in which nothing is batched stand in for the transforms below.
        """
        returned: list[bool] = []

        def no_nones(_: Tensor, *args: Tensor | None) -> tuple[Tensor, ...]:
            result = function(*args)
            returned[:] = [r is not None for r in result]
            return tuple(r for r in result if r is not None)

        dims = (0, *[None if a is None else d for a, d in zip(args, in_dims, strict=True)])
        run = functools.partial(torch.vmap(no_nones, dims, 0, self.info.randomness), torch.empty(self.info.batch_size), *args)
        for _ in range(self.level - 1 - len(_dispatch.active_transforms())):
            run = functools.partial(self._stand_in, run)
        outs = iter(run())
        return [next(outs) if r else None for r in returned]

    def _stand_in(self, run: Callable[[], Any]) -> list[Tensor]:
        outs = torch.vmap(lambda _: run(), randomness="same")(torch.empty(1))
        if any(len(o) != 1 for o in outs):
            raise Refused(NO_ARGUMENT.format(self.name))
        return [o[0] for o in outs]

    # --- Derivatives ------------------------------------------------------------------------------------------------------

    def in_front(self, *tensors: Tensor) -> Maybe:
        """The inputs with the batch in front, as in the results."""
        return self.vmap(self.inner.in_front, self.in_dims, tensors)

    def backward(self, flat: Maybe, cotangents: Maybe, needs: Sequence[bool]) -> list[Tensor | None]:
        """A gradient or None for each input; inputs that all samples share get the sum."""
        backward = functools.partial(self.inner.backward, needs=needs)
        grads = self._over(backward, flat, cotangents, [0] * len(cotangents))
        return [g if g is None else g.sum(0) if d is None else g.movedim(0, d) for g, d in zip(grads, self.in_dims, strict=True)]

    def jvp(self, flat: Maybe, tangents: Maybe) -> list[Tensor | None]:
        """A tangent or None for each output."""
        return self._over(self.inner.jvp, flat, tangents, self.in_dims)

    def _over(self, rule: Callable[..., Any], flat: Maybe, more: Maybe, dims: Sequence[int | None]) -> list[Tensor | None]:
        n = len(flat)
        all_dims = [*self.in_dims, *[0] * (n - len(self.in_dims)), *dims]
        return self.vmap(lambda *all: rule(all[:n], all[n:]), all_dims, (*flat, *more))


class Plain:
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


def run_or_descend(call: Any, function: Callable[..., Any], args: Maybe, rule: Any, refusal: str = "") -> Sequence[Tensor | None]:
    """``function(*args)``, which calls a rule of the class, at the present level, or below all transforms if it cannot run there
    or must not be differentiated.
    """
    code = rule if isinstance(rule, FunctionType) else None
    in_vmap = lambda *_: "Vmap" in _dispatch.active_transforms()  # noqa: E731
    if not (refusal or (code in _looped and in_vmap())):
        try:
            return with_writes(call.cls, lambda: function(*args), in_vmap)
        except Exception as error:
            if isinstance(error, Refused) or not _dispatch.active_transforms():
                raise
    return applied(Plain(function, call, refusal, code), *args)


def _is_final(error: Exception) -> bool:
    """Whether a loop would not help where an error has come."""
    return isinstance(error, Refused) or any(sign in str(error) for sign in ("randomness", *_ESCAPED))
