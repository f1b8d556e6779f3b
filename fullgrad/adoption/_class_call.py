"""`ClassCall`: one call of a `torch.autograd.Function` as pure functions of tensors."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function as TorchFunction
from torch.autograd.function import FunctionCtx, once_differentiable

from fullgrad import _dispatch
from fullgrad._engine.call import hidden_tensors
from fullgrad._engine.held import calls_compiled_code, held
from fullgrad._engine.modules import run_with_states, state_of
from fullgrad.adoption._adopted import IN_PLACE, run_or_descend
from fullgrad.adoption._call import Call
from fullgrad.adoption._host_draws import not_drawing
from fullgrad.adoption._leaves import with_leaves
from fullgrad.adoption._modes import OfRule, Unusable
from fullgrad.adoption._scope import Options, scope
from fullgrad.adoption._slots import ArraySlot, NumberSlot, Slot, filled, is_array, number_as_tensor, replaced
from fullgrad.adoption._tensors import Maybe, Refused, attributes, may_differ
from fullgrad.adoption._writes import Writes, writes_of, writing

_ONCE = "it has no second derivative and no forward mode; grad, vjp and jacrev work once, and all with adopt(cls, reference=...)"
_FLAGS = ("needs_input_grad", "materialize_grads")


class ClassCall(Call):
    """One call of a class.

    `forward` runs the class once, with a context that records. It returns the outputs, and then each tensor that the context
    keeps and that is neither input nor output. A tensor is recognized by its identity. `backward` and `jvp` run the rules of
    the class with the recorded context, in which inputs and outputs are those of the level that is differentiated, and the rest
    is constant, as in eager double backward.
    """

    numbers_are_tensors, verdict, in_place = False, None, IN_PLACE
    sample = property(lambda self: self)

    def __init__(self, cls: Any, args: Sequence[Any], options: Options) -> None:
        self.cls, self.code, self.name, self.options = cls, cls, cls.__name__, options
        self.new_style, self.has_jvp = is_new_style(cls), cls.jvp is not TorchFunction.jvp
        self.rule = cls.vjp if cls.vjp is not TorchFunction.vjp else cls.backward
        once = getattr(self.rule, "__code__", None) is once_differentiable(len).__code__
        self.refusal = f"{self.name}.backward is once_differentiable: {_ONCE}." if once else ""
        self._take(args)

    def _take(self, args: Sequence[Any]) -> None:
        self.in_forward_mode = _dispatch.forward_mode_is_on() or "Jvp" in _dispatch.active_transforms()
        self.tensors: list[Tensor] = []  # taken by `adopted` before the first level
        self.unusable: list[tuple[Tensor, str]] = []
        # A tensor in a container is a constant to autograd, but transforms have to see it.
        self.holders: list[Any] = []  # modules and functions among the arguments
        self.args = [replaced(a, self._slot) for a in args]
        # A module may hold tensors that are arguments, too, as by `torch.func.functional_call`: its code uses the arguments.
        places = {id(t): Slot(i) for i, t in enumerate(self.tensors)} if self.holders else {}
        self.modules = [
            (m, {n: places[id(t)] for n, t in state_of(m).items() if id(t) in places}) for m in _modules(self.holders)
        ]
        self.reached = {id(self.tensors[i]) for _, names in self.modules for i in names.values()}
        if self.reached:
            self.unusable = [(t, message) for t, message in self.unusable if id(t) not in self.reached]
        differentiated = _dispatch.are_differentiated(self.tensors)
        self.needed = [may_differ(t) and asked for t, asked in zip(self.tensors, differentiated, strict=True)]
        self.attributes = [attributes(t) for t in self.tensors]

    def _slot(self, leaf: Any) -> Any:
        inner = _dispatch.innermost(leaf) if isinstance(leaf, Tensor) else leaf
        # Transforms do not see through a tensor that is a subclass in Python, and need not if it is a constant.
        if isinstance(leaf, Tensor) and (not _dispatch.is_wrapper_subclass(inner) or type(inner).__name__ == "DTensor"):
            self.tensors.append(leaf)
            return Slot(len(self.tensors) - 1)
        if isinstance(leaf, (torch.nn.Module, FunctionType, MethodType, functools.partial)):
            self.holders.append(leaf)
        message = (
            f"{self.name} got a {type(inner).__name__} that holds a batched or differentiated tensor; pass the tensor itself."
        )
        if isinstance(leaf, Tensor) and (leaf.requires_grad or any(map(_dispatch.is_wrapped, hidden_tensors(leaf)))):
            raise Refused(message)
        # An object may hold what the class does not use: the module whose method is passed has its parameters in it.
        self.unusable += [(t, message) for t in hidden_tensors(leaf) if _dispatch.is_wrapped(t)]
        return leaf

    # --- Forward ----------------------------------------------------------------------------------------------------------

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        """The outputs, and then the other tensors that the context keeps."""
        # New objects, since kept tensors are recognized by identity; one of inference mode cannot require a gradient outside.
        inputs = [t.clone() if t.is_inference() else t.view_as(t) for t in tensors]
        for t, needed, own in zip(inputs, self.needed, self.attributes, strict=True):
            if needed and not t.requires_grad:
                _dispatch.require_grad(t)  # a class may save only for inputs that require a gradient
            vars(t).update(own)
        args, ctx = [filled(a, inputs) for a in self.args], FunctionCtx()
        ctx.needs_input_grad = self._asked(self.needed)  # pyright: ignore
        with self._code("forward", inputs):
            output = self._with_modules(inputs, lambda: self._called(ctx, args))
        return self._noted(vars(ctx), inputs, output)

    def _called(self, ctx: Any, args: Sequence[Any]) -> Any:
        if not self.new_style:
            return self.cls.forward(ctx, *args)
        output = self.cls.forward(*args)
        self.cls.setup_context(ctx, tuple(args), output)
        return output

    def _noted(self, state: dict[str, Any], inputs: list[Tensor], output: Any) -> list[Tensor]:
        """Keep the context, with slots for tensors; return the outputs, and the tensors that are neither input nor output."""
        if state.get("dirty_tensors"):
            raise Refused(IN_PLACE.format(self.name))
        items = output if isinstance(output, tuple) else (output,)
        outs = [o for o in items if isinstance(o, Tensor)]
        others = [None if isinstance(o, Tensor) else o for o in items]
        if any(isinstance(leaf, Tensor) for leaf in _dispatch.pytree.tree_leaves(others)):
            raise Refused(f"{self.name}.forward returns tensors in a container, where autograd does not see them; a tuple works.")
        known = [*inputs, *outs]
        slots = {id(t): Slot(i) for i, t in reversed([*enumerate(known)])}
        inputs_and_outputs = set(slots)

        def number_or_slot(leaf: Any) -> Any:
            number = number_as_tensor(leaf) if self.numbers_are_tensors else None
            if number is None:
                return slot(leaf)
            known.append(number)
            return (ArraySlot if is_array(leaf) else NumberSlot)(len(known) - 1)

        def slot(leaf: Any) -> Any:
            if id(leaf) in slots:
                return slots[id(leaf)]
            if isinstance(leaf, Tensor) and not _dispatch.is_wrapper_subclass(leaf):
                if leaf.grad_fn is not None and not self.options.strict:
                    raise Refused(f"{self.name}.forward keeps a graph of its own in ctx, which transforms cannot see; detach it.")
                known.append(leaf)
                return slots.setdefault(id(leaf), Slot(len(known) - 1))
            if not isinstance(leaf, Tensor) and any(
                id(t) in inputs_and_outputs or _dispatch.is_wrapped(t) for t in hidden_tensors(leaf) if id(t) not in self.reached
            ):
                kind = f"a tensor inside a {type(leaf).__name__}"
                raise Refused(f"{self.name}.forward keeps {kind} in ctx, where transforms cannot see it; keep it in ctx itself.")
            return leaf

        for name in ("to_save", "saved_for_forward"):
            if any(not (v is None or isinstance(v, Tensor)) for v in state.get(name, ())):
                kinds = ", ".join(type(v).__name__ for v in state[name])
                raise TypeError(
                    f"{self.name} saves values of the types {kinds}; save_for_backward and save_for_forward take tensors or None."
                )
        constant = {id(t) for t in state.pop("non_differentiable", ())}
        if not any(self.needed):
            state = {}  # no rule will run
        self.state = {name: value if name in _FLAGS else replaced(value, number_or_slot) for name, value in state.items()}
        self.used = {leaf for leaf in _dispatch.pytree.tree_leaves(self.state) if isinstance(leaf, Slot)}
        self.used |= {i for _, names in self.modules for i in names.values()} if self.state else set()
        # Attributes that the class sets on its inputs and outputs, as `tensor.name = value`.
        before = [*self.attributes, *[{} for _ in outs]]
        new = [
            {n: v for n, v in attributes(t).items() if n not in b or b[n] is not v}
            for t, b in zip((*inputs, *outs), before, strict=True)
        ]
        self.written = [(i, {n: replaced(v, slot) for n, v in own.items()}) for i, own in enumerate(new) if own]
        self.record = self.state, others, isinstance(output, tuple), self.written
        self.places, self.count = [i for i, o in enumerate(items) if isinstance(o, Tensor)], len(outs)
        self.free = [i for i, o in enumerate(outs) if id(o) not in constant and may_differ(o)]
        self.materialize = state.get("materialize_grads", True)
        self.inputs, self.shapes = [(t.shape, t.dtype, t.device) for t in inputs], [o.shape for o in outs]
        return known[len(inputs) :]

    def output(self, tensors: Sequence[Tensor], results: Maybe) -> Any:
        """The output for the caller of the class."""
        _, others, is_tuple, _ = self.record
        both, self.attributes = [*tensors, *results], []
        for i, new in self.written:
            if _dispatch.is_compiling():
                raise Refused(
                    f"{self.name}.forward sets {', '.join(map(repr, new))} on a tensor, which compiled code would lose."
                )
            vars(both[i]).update({name: filled(value, both) for name, value in new.items()})
        items = self._items(results, others)
        return tuple(items) if is_tuple else items[0]

    def _asked(self, needs: Sequence[bool]) -> tuple[bool, ...]:
        """``ctx.needs_input_grad``: whether each argument is a tensor that needs a gradient."""
        return tuple(isinstance(a, Slot) and needs[a] for a in self.args)

    def _items(self, tensors: Maybe, others: Sequence[Any]) -> list[Any]:
        given = dict(zip(self.places, tensors, strict=False))
        return [given.get(i, other) for i, other in enumerate(others)]

    # --- Derivatives ------------------------------------------------------------------------------------------------------

    def backward(self, flat: Maybe, cotangents: Maybe, needs: Sequence[bool]) -> Sequence[Tensor | None]:
        """A gradient or None for each input that needs one, by the class's own rule."""
        if any(needs[i] and not was_needed for i, was_needed in enumerate(self.needed)):
            raise RuntimeError(f"{self.name}: an input is differentiated that was a constant when its forward ran.")
        n, asked = len(flat), self._asked(needs)
        known = [a for a, needed in zip(self.args, asked, strict=True) if needed] + [len(self.inputs) + i for i in self.free]

        def run(*all: Tensor | None) -> list[Tensor | None]:
            return self._backward(all[:n], all[n:], asked, known)

        return run_or_descend(
            self, lambda *all: with_leaves(self.cls, run, all, known), (*flat, *cotangents), self.rule, self.refusal
        )

    def _backward(self, flat: Maybe, cotangents: Maybe, asked: tuple[bool, ...], known: Sequence[int]) -> list[Tensor | None]:
        # A class may write into its gradient, which is the user's, or one number that is expanded.
        writes = writes_of(self.cls, (*flat, *cotangents))
        own = [g if g is None else g.clone() if writes is None else writes.batched(g) for g in cotangents]
        items: Any = self._items(own, [None] * len(self.record[1]))
        items = [items] if getattr(self.cls, "boxed_grads_call", False) else items
        if self.modules and not _dispatch.transforms_active():  # it may ask autograd for the gradients of parameters
            needed = {a for a, needed in zip(self.args, asked, strict=True) if needed}
            flat = [t.detach().requires_grad_() if i in needed and t is not None else t for i, t in enumerate(flat)]
        ctx = self._context(flat, "to_save")
        ctx.needs_input_grad = asked
        with self._code("backward", (), writes), OfRule([flat[i] for i in known], own, flat):
            grads = self._with_modules(flat, lambda: self.rule(ctx, *items))
        grads, n = list(grads) if isinstance(grads, (tuple, list)) else [grads], len(self.args)
        if len(grads) < n or any(g is not None for g in grads[n:]):
            raise RuntimeError(f"{self.name}.backward returned {len(grads)} gradients for {n} inputs.")
        result: list[Tensor | None] = [None] * len(self.inputs)
        for i, (slot, needed, g) in enumerate(zip(self.args, asked, grads, strict=False)):
            if g is not None and not isinstance(g, Tensor):
                raise TypeError(
                    f"{self.name}.backward returned a {type(g).__name__} for argument {i}; a gradient is a tensor or None."
                )
            if needed and g is not None:
                shape, dtype, _ = self.inputs[slot]
                result[slot] = self._like(g, shape).to(dtype)
        return result

    def _like(self, gradient: Tensor, shape: torch.Size) -> Tensor:
        if gradient.shape == shape:
            return gradient
        try:
            return gradient.sum_to_size(shape)
        except RuntimeError as error:
            raise RuntimeError(
                f"{self.name}.backward returned a gradient of shape {tuple(gradient.shape)} for an input of shape {tuple(shape)}."
            ) from error

    def jvp(self, flat: Maybe, tangents: Maybe) -> Sequence[Tensor | None]:
        """A tangent or None for each output, by the ``jvp`` that the class declares."""
        n = len(flat)
        return run_or_descend(self, lambda *all: self._jvp(all[:n], all[n:]), (*flat, *tangents), self.cls.jvp)

    def _jvp(self, flat: Maybe, tangents: Maybe) -> list[Tensor | None]:
        given = [self._tangent(tangents, a) if isinstance(a, Slot) else None for a in self.args]
        with self._code("jvp", (*flat, *tangents)):
            context = self._context(flat, "saved_for_forward", "to_save")
            pushed = self._with_modules(flat, lambda: self.cls.jvp(context, *given))
        found = list(pushed) if isinstance(pushed, tuple) else [pushed]
        if len(found) != len(self.record[1]):
            raise RuntimeError(f"{self.name}.jvp returned {len(found)} tangents for {len(self.record[1])} outputs.")
        for i, shape in zip(self.places, self.shapes, strict=True):
            if found[i] is not None and found[i].shape != shape:
                raise RuntimeError(
                    f"{self.name}.jvp returned a tangent of shape {tuple(found[i].shape)} for an output of shape {tuple(shape)}."
                )
        return [found[i] for i in self.places]

    def _tangent(self, tangents: Maybe, i: int) -> Tensor | None:
        """The tangent of an input: as in torch, zeros where it has none, unless the class has declined them."""
        (shape, dtype, device), t = self.inputs[i], tangents[i]
        is_needed = t is None and self.materialize and (dtype.is_floating_point or dtype.is_complex)
        return torch.zeros(shape, dtype=dtype, device=device) if is_needed else t

    def _with_modules(self, tensors: Maybe, run: Callable[[], Any]) -> Any:
        """``run()`` while modules among the arguments hold some tensors in the places of the arguments."""
        if not self.modules:
            return run()
        return run_with_states([(m, {n: tensors[i] for n, i in names.items()}) for m, names in self.modules], run)  # pyright: ignore

    @contextlib.contextmanager
    def _code(self, rule: str, tensors: Maybe, writes: Writes | None = None) -> Iterator[None]:
        """A context for a rule of the class, which takes some tensors."""
        writes = writes or writes_of(self.cls, tensors)
        unusable = Unusable(self.unusable) if self.unusable else contextlib.nullcontext()
        has_modes = rule == "backward" or writes is not None or bool(self.unusable)
        with scope(self.options), unusable, writing(writes), not_drawing(self.cls, self.name, rule), self._as_python(has_modes):
            yield

    def _as_python(self, has_modes: bool) -> contextlib.AbstractContextManager[Any]:
        """A context in which code that the user has compiled runs as it is written, if it runs under modes: Dynamo would compile
        them with it, and compiles functions wrong whose modes break the graph.
        """
        is_compiled = has_modes and self._calls_compiled_code
        return torch.compiler.set_stance("force_eager") if is_compiled else contextlib.nullcontext()

    @functools.cached_property
    def _calls_compiled_code(self) -> bool:
        rules = [getattr(self.cls, name, None) for name in ("forward", "setup_context", "backward", "vjp", "jvp")]
        return calls_compiled_code(*[f for f in rules if f is not None], *self.holders)

    def _context(self, flat: Maybe, *saved: str) -> Any:
        """The recorded context; its ``saved_tensors`` are the tensors kept under the first of the names."""
        ctx: Any = FunctionCtx()
        vars(ctx).update({name: filled(value, flat) for name, value in self.state.items()})
        ctx.saved_tensors = ctx.saved_variables = next((tuple(vars(ctx)[name]) for name in saved if name in vars(ctx)), ())
        return ctx


def _modules(holders: Sequence[Any]) -> list[torch.nn.Module]:
    """The modules among some modules and functions, and those that the functions hold."""
    functions = [v for v in holders if not isinstance(v, torch.nn.Module)]
    modules = [v for v in holders if isinstance(v, torch.nn.Module)]
    return [*modules, *held(*functions)[0]] if functions else modules


def is_new_style(cls: Any) -> bool:
    """Whether a class has a ``setup_context`` of its own."""
    return any("setup_context" in c.__dict__ for c in cls.__mro__[: cls.__mro__.index(TorchFunction)])
