"""`Call`: one call of a `torch.autograd.Function` as pure functions of tensors."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function as TorchFunction
from torch.autograd.function import FunctionCtx, once_differentiable

from fullgrad import _dispatch
from fullgrad.adoption._operator import IN_PLACE, run_or_descend
from fullgrad.adoption._scope import Options, scope
from fullgrad.adoption._tensors import Maybe, NumberSlot, Refused, Slot, filled, hidden_tensors, may_differ, replaced

_FLAGS = ("needs_input_grad", "materialize_grads")
_EXACT = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


class Call:
    """One call of a class.

    `forward` runs the class once, with a context that records. It returns the outputs, and then each tensor that the context
    keeps and that is neither input nor output. A tensor is recognized by its identity. `backward` and `jvp` run the rules of
    the class with the context as it was, in which inputs and outputs are those of the level that is differentiated, and the
    rest is constant. That is what eager double backward sees.
    """

    numbers_are_tensors, verdict = False, None
    sample = property(lambda self: self)
    in_front = staticmethod(lambda *tensors: tensors)  # no batch is in front of what this call returns

    def __init__(self, cls: Any, args: Sequence[Any], options: Options) -> None:
        self.cls, self.code, self.name, self.options = cls, cls, cls.__name__, options
        self.in_forward_mode = _dispatch.forward_mode_is_on() or "Jvp" in _dispatch.active_transforms()
        self.new_style, self.has_jvp = is_new_style(cls), cls.jvp is not TorchFunction.jvp
        self.rule = cls.vjp if cls.vjp is not TorchFunction.vjp else cls.backward
        once = getattr(self.rule, "__code__", None) is once_differentiable(len).__code__
        self.refusal = f"{self.name}.backward is once_differentiable: it has no second derivative." if once else ""
        self.tensors: list[Tensor] = []  # taken by `adopted` before the first level
        # A tensor in a container is a constant to autograd, but transforms have to see it.
        self.args = [replaced(a, self._slot) for a in args]

    def _slot(self, leaf: Any) -> Any:
        inner = _dispatch.innermost(leaf) if isinstance(leaf, Tensor) else leaf
        # Transforms do not see through a tensor that is a subclass in Python, and need not if it is a constant.
        if isinstance(leaf, Tensor) and (not _dispatch.is_wrapper_subclass(inner) or type(inner).__name__ == "DTensor"):
            self.tensors.append(leaf)
            return Slot(len(self.tensors) - 1)
        if any(map(_dispatch.is_wrapped, hidden_tensors(leaf))) or getattr(leaf, "requires_grad", False):
            kind = type(inner).__name__
            raise Refused(f"{self.name} got a {kind} that holds a batched or differentiated tensor; pass the tensor itself.")
        return leaf

    # --- Forward ----------------------------------------------------------------------------------------------------------

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        """The outputs, and then what else the context keeps."""
        inputs = [t.view_as(t) for t in tensors]  # objects of their own, since what the context keeps is known by identity
        for t in inputs:
            if may_differ(t) and not t.requires_grad:
                _dispatch.require_grad(t)  # a class that looks at it shall save what its backward wants
        args, ctx = [filled(a, inputs) for a in self.args], FunctionCtx()
        ctx.needs_input_grad = tuple(isinstance(a, Slot) and may_differ(tensors[a]) for a in self.args)  # pyright: ignore
        with scope(self.options), _dispatch.ignored_unknown_sizes():
            output = self.cls.forward(*args) if self.new_style else self.cls.forward(ctx, *args)
            if self.new_style:
                self.cls.setup_context(ctx, tuple(args), output)
        return self._noted(vars(ctx), inputs, output)

    def _noted(self, state: dict[str, Any], inputs: list[Tensor], output: Any) -> list[Tensor]:
        """Keep the context, with slots for tensors; return the outputs, and the tensors that are neither input nor output."""
        if state.get("dirty_tensors"):
            raise Refused(IN_PLACE.format(self.name))
        items = output if isinstance(output, tuple) else (output,)
        outs = [o for o in items if isinstance(o, Tensor)]
        others = [o for o in items if not isinstance(o, Tensor)]
        if any(isinstance(leaf, Tensor) for leaf in _dispatch.pytree.tree_leaves(others)):
            raise Refused(f"{self.name}.forward returns tensors in a container, where autograd does not see them.")
        known = [*inputs, *outs]
        slots = {id(t): Slot(i) for i, t in reversed([*enumerate(known)])}

        def slot(leaf: Any) -> Any:
            if id(leaf) in slots:
                return slots[id(leaf)]
            if self.numbers_are_tensors and type(leaf) in _EXACT:
                known.append(torch.tensor(leaf, dtype=_EXACT[type(leaf)]))
                return NumberSlot(len(known) - 1)
            if isinstance(leaf, Tensor) and not _dispatch.is_wrapper_subclass(leaf):
                if leaf.grad_fn is not None and not self.options.strict:
                    raise Refused(f"{self.name}.forward keeps a graph of its own in ctx, which transforms cannot see.")
                known.append(leaf)
                return slots.setdefault(id(leaf), Slot(len(known) - 1))
            if not isinstance(leaf, Tensor) and any(id(t) in slots or _dispatch.is_wrapped(t) for t in hidden_tensors(leaf)):
                kind = f"a tensor inside a {type(leaf).__name__}"
                raise Refused(f"{self.name}.forward keeps {kind} in ctx, where transforms cannot see it; keep it in ctx itself.")
            return leaf

        constant = {id(t) for t in state.pop("non_differentiable", ())}
        self.state = {name: value if name in _FLAGS else replaced(value, slot) for name, value in state.items()}
        self.record = self.state, [None if isinstance(o, Tensor) else o for o in items], isinstance(output, tuple)
        self.places, self.count = [i for i, o in enumerate(items) if isinstance(o, Tensor)], len(outs)
        self.free = [i for i, o in enumerate(outs) if id(o) not in constant and may_differ(o)]
        self.used = {leaf for leaf in _dispatch.pytree.tree_leaves(self.state) if isinstance(leaf, Slot)}
        self.materialize = state.get("materialize_grads", True)
        self.inputs = [(t.shape, t.dtype) for t in inputs]
        return known[len(inputs) :]

    def output(self, tensors: Maybe) -> Any:
        """What the caller of the class gets."""
        items = self._items(tensors, self.record[1])
        return tuple(items) if self.record[2] else items[0]

    def _items(self, tensors: Maybe, others: Sequence[Any]) -> list[Any]:
        given = dict(zip(self.places, tensors, strict=False))
        return [given.get(i, other) for i, other in enumerate(others)]

    # --- Derivatives ------------------------------------------------------------------------------------------------------

    def backward(self, flat: Maybe, cotangents: Maybe) -> Sequence[Tensor | None]:
        """A gradient or None for each input, by the class's own rule."""
        n = len(flat)
        return run_or_descend(self, lambda *all: self._backward(all[:n], all[n:]), (*flat, *cotangents), self.refusal)

    def _backward(self, flat: Maybe, cotangents: Maybe) -> list[Tensor | None]:
        items: Any = self._items(cotangents, [None] * len(self.record[1]))
        items = [items] if getattr(self.cls, "boxed_grads_call", False) else items
        with scope(self.options), _dispatch.ignored_unknown_sizes():
            grads = self.rule(self._context(flat, "to_save"), *items)
        grads, n = list(grads) if isinstance(grads, (tuple, list)) else [grads], len(self.args)
        if len(grads) < n or any(g is not None for g in grads[n:]):
            raise RuntimeError(f"{self.name}.backward returned {len(grads)} gradients for {n} inputs.")
        result: list[Tensor | None] = [None] * len(self.inputs)
        for slot, needed, g in zip(self.args, self.state["needs_input_grad"], grads, strict=False):
            if needed and g is not None:
                shape, dtype = self.inputs[slot]
                result[slot] = (g if g.shape == shape else g.sum_to_size(shape)).to(dtype)
        return result

    def jvp(self, flat: Maybe, tangents: Maybe) -> list[Tensor | None]:
        """A tangent or None for each output, by the ``jvp`` that the class declares."""
        given = [tangents[a] if isinstance(a, Slot) else None for a in self.args]
        with scope(self.options):
            pushed = self.cls.jvp(self._context(flat, "saved_for_forward", "to_save"), *given)
        return [pushed[i] for i in self.places] if isinstance(pushed, tuple) else [pushed]

    def _context(self, flat: Maybe, *saved: str) -> Any:
        """The context as it was; its ``saved_tensors`` are what was kept under the first of the names."""
        ctx: Any = FunctionCtx()
        vars(ctx).update({name: filled(value, flat) for name, value in self.state.items()})
        ctx.saved_tensors = next((tuple(vars(ctx)[name]) for name in saved if name in vars(ctx)), ())
        return ctx


def is_new_style(cls: Any) -> bool:
    """Whether a class has a ``setup_context`` of its own."""
    return any("setup_context" in c.__dict__ for c in cls.__mro__[: cls.__mro__.index(TorchFunction)])
