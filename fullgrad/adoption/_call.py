"""`Call`: one call of a `torch.autograd.Function` as pure functions of tensors."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function as TorchFunction
from torch.autograd.function import FunctionCtx, once_differentiable

from fullgrad._dispatch import ignored_unknown_sizes, is_wrapped, is_wrapper_subclass, pytree, require_grad
from fullgrad.adoption._below import Maybe, run_or_descend
from fullgrad.adoption._scope import Options, following
from fullgrad.adoption._tensors import hidden_tensors, innermost, is_differentiable

Tensors = Sequence[Tensor]


_EXACT = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
_FLAGS = ("needs_input_grad", "materialize_grads")
IN_PLACE = "{}.forward changes an input in place, which transforms cannot follow."


class Slot(int):
    """Stands for a tensor: its place among the inputs, the outputs and what else a context keeps, in this order."""


class NumberSlot(Slot):
    """Stands for a number, kept as a tensor."""


class Container(NamedTuple):
    """An argument that holds tensors: constants and slots."""

    leaves: list[Any]
    structure: Any


class Layout(NamedTuple):
    """What is known of a call once its forward has run: everything but numbers."""

    state: dict[str, Any]  # the attributes of ctx, with slots for tensors
    items: tuple[Any, ...]  # what forward returned, with None for tensors
    is_tuple: bool
    positions: tuple[int, ...]  # of the tensors among the items
    constant: frozenset[int]  # outputs without a derivative
    used: frozenset[int]  # slots that the backward reads
    hidden: frozenset[int]  # slots of intermediates that depend on an input; found in strict mode alone
    inputs: tuple[tuple[torch.Size, torch.dtype], ...]

    @property
    def count(self) -> int:
        """The number of outputs that are tensors."""
        return len(self.positions)


class Call:
    """One call of a class.

    `forward` runs the class once, with a context that records. It returns the outputs, and then each tensor that the context
    keeps and that is neither input nor output. A tensor is recognized by its identity. `backward` and `tangent` run the rules of
    the class with the context as it was, in which inputs and outputs are those of the level that is differentiated, and the
    rest is constant. That is what eager double backward sees.
    """

    layout: Layout
    numbers_are_tensors = False

    def __init__(self, cls: Any, args: Sequence[Any], options: Options, forward_mode: bool) -> None:
        self.cls, self.name, self.options, self.forward_mode = cls, cls.__name__, options, forward_mode
        self.new_style = is_new_style(cls)
        # A vmap rule of its own sees no recorded context: setup_context runs at each level instead, as in torch.
        self.levelwise = self.new_style and cls.vmap is not TorchFunction.vmap
        self.rule = cls.vjp if cls.vjp is not TorchFunction.vjp else cls.backward
        self.once = getattr(self.rule, "__code__", None) is once_differentiable(len).__code__
        self.has_jvp = cls.jvp is not TorchFunction.jvp
        self.tensors: list[Tensor] = []  # taken by `adopted` before the first level
        self.args = [self._argument(a) for a in args]

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value if self._is_opaque(value) else self._slot(value)
        # A tensor in a container is a constant to autograd, but transforms have to see it.
        packed = _packed(value, lambda leaf: self._slot(leaf) if isinstance(leaf, Tensor) else leaf)
        if packed is value and any(is_wrapped(t) for leaf in pytree.tree_leaves(value) for t in hidden_tensors(leaf)):
            raise NotImplementedError(
                f"{self.name} got a {type(value).__name__} that holds a batched or differentiated tensor; pass the tensor itself."
            )
        return packed

    def _slot(self, tensor: Tensor) -> Slot:
        self.tensors.append(tensor)
        return Slot(len(self.tensors) - 1)

    def _is_opaque(self, tensor: Tensor) -> bool:
        """Whether transforms do not see through a tensor, and need not: a subclass in Python that is a constant."""
        inner = innermost(tensor)
        if not is_wrapper_subclass(inner) or type(inner).__name__ == "DTensor":
            return False
        if inner is not tensor or tensor.requires_grad:
            raise NotImplementedError(f"{self.name}: transforms cannot differentiate or batch a {type(inner).__name__} in it.")
        return True

    def arguments(self, tensors: Sequence[Any]) -> list[Any]:
        """What the class is called with."""
        return [_filled(a, tensors) for a in self.args]

    def constants(self) -> tuple[Any, ...]:
        """The arguments that are no tensors, which may choose what the backward computes."""
        return tuple(None if isinstance(a, (Slot, Container, Tensor)) else a for a in self.args)

    def anew(self) -> "Call":
        """The same call, to be run again."""
        return copy.copy(self)

    def keep_numbers_as_tensors(self) -> None:
        """From now on: the context of a call that runs sample by sample keeps other numbers for each."""
        self.numbers_are_tensors = True

    # --- Forward ----------------------------------------------------------------------------------------------------------

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The outputs, and then what else the context keeps."""
        where = [i for i, t in enumerate(tensors) if is_differentiable(t)]
        if not self.options.strict or self.levelwise or not where:
            return self._forward([t.detach() for t in tensors])[0]
        # Inside a transform, each intermediate tells whether it depends on an input.

        def run(*some: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
            given = dict(zip(where, some, strict=True))
            kept, dependent = self._forward([given[i].view_as(given[i]) if i in given else t for i, t in enumerate(tensors)])
            first = len(tensors) + self.layout.count
            hidden = {first + i for i in range(len(dependent)) if dependent[i]}
            self.layout = self.layout._replace(hidden=frozenset(hidden))
            return sum((t.real.sum() for t in some), torch.zeros(())), kept

        kept: Any = torch.func.vjp(run, *[tensors[i] for i in where], has_aux=True)[-1]
        return kept

    def _forward(self, tensors: list[Tensor]) -> tuple[tuple[Tensor, ...], list[bool]]:
        """The tensors are objects of their own, since what a context keeps is known by identity."""
        for t in tensors:
            if is_differentiable(t) and not t.requires_grad:
                require_grad(t)  # a class that looks at it shall save what its backward wants
        args, ctx = self.arguments(tensors), self.context(tensors)
        with following(self.options), ignored_unknown_sizes():
            output = self.cls.forward(*args) if self.new_style else self.cls.forward(ctx, *args)
            if self.new_style and not self.levelwise:
                self.cls.setup_context(ctx, tuple(args), output)
        if getattr(ctx, "dirty_tensors", None):
            raise NotImplementedError(IN_PLACE.format(self.name))
        outs, rest = self.note(ctx, tensors, output)
        return (*outs, *[t.detach() for t in rest]), [t.requires_grad for t in rest]

    def context(self, tensors: Sequence[Tensor]) -> Any:
        """A context for the forward. It is told that every floating input needs a gradient."""
        ctx: Any = FunctionCtx()
        ctx.needs_input_grad = tuple(isinstance(a, Slot) and is_differentiable(tensors[a]) for a in self.args)
        return ctx

    def note(self, ctx: Any, tensors: Tensors, output: Any) -> tuple[list[Tensor], list[Tensor]]:
        """Keep the context as Python values and slots; return the outputs, and the tensors that are neither input nor output."""
        items = output if isinstance(output, tuple) else (output,)
        outs = [o for o in items if isinstance(o, Tensor)]
        if any(isinstance(leaf, Tensor) for o in items if not isinstance(o, Tensor) for leaf in pytree.tree_leaves(o)):
            raise NotImplementedError(f"{self.name}.forward returns tensors in a container, where autograd does not see them.")
        slots: dict[int, Slot] = {}
        rest: list[Tensor] = []
        for i, t in enumerate([*tensors, *outs]):
            slots.setdefault(id(t), Slot(i))

        def slot(leaf: Any) -> Any:
            if self.numbers_are_tensors and type(leaf) in (bool, int, float, complex):
                rest.append(torch.tensor(leaf, dtype=_EXACT[type(leaf)]))
                return NumberSlot(len(tensors) + len(outs) + len(rest) - 1)
            if not isinstance(leaf, Tensor):
                for t in hidden_tensors(leaf):
                    if id(t) in slots or is_wrapped(t):
                        raise NotImplementedError(
                            f"{self.name}.forward keeps a tensor inside a {type(leaf).__name__} in ctx, where transforms cannot "
                            "see it; keep the tensor in ctx itself."
                        )
                return leaf
            if id(leaf) not in slots:
                if is_wrapper_subclass(leaf):
                    return leaf
                if leaf.grad_fn is not None and not self.options.strict:
                    raise NotImplementedError(
                        f"{self.name}.forward keeps a graph of its own in ctx, which transforms cannot see."
                    )
                slots[id(leaf)] = Slot(len(tensors) + len(outs) + len(rest))
                rest.append(leaf)
            return slots[id(leaf)]

        state = vars(ctx).copy()
        constant = {id(t) for t in state.pop("non_differentiable", ())}
        state = {name: value if name in _FLAGS else _packed(value, slot) for name, value in state.items()}
        self.layout = Layout(
            state=state,
            items=tuple(None if isinstance(o, Tensor) else o for o in items),
            is_tuple=isinstance(output, tuple),
            positions=tuple(i for i, o in enumerate(items) if isinstance(o, Tensor)),
            constant=frozenset(i for i, o in enumerate(outs) if id(o) in constant or not is_differentiable(o)),
            used=frozenset(_slots(state.values())),
            hidden=frozenset(),
            inputs=tuple((t.shape, t.dtype) for t in tensors),
        )
        return outs, rest

    def output(self, tensors: Tensors) -> Any:
        """What the caller of the class gets."""
        items = list(self.layout.items)
        for i, t in zip(self.layout.positions, tensors, strict=False):
            items[i] = t
        return tuple(items) if self.layout.is_tuple else items[0]

    # --- Derivatives ------------------------------------------------------------------------------------------------------

    def _replayed(self, flat: Maybe, *saved: str) -> Any:
        ctx: Any = FunctionCtx()

        vars(ctx).update({name: _filled(value, flat) for name, value in self.layout.state.items()})
        ctx.saved_tensors = next((tuple(vars(ctx)[name]) for name in saved if name in vars(ctx)), ())
        return ctx

    def backward(self, flat: Maybe, cotangents: Maybe) -> list[Tensor | None]:
        """A gradient or None for each input, by the class's own rule."""
        n = len(flat)
        return run_or_descend(self, lambda *all: self._backward(all[:n], all[n:]), [*flat, *cotangents])

    def _backward(self, flat: Maybe, cotangents: Maybe) -> list[Tensor | None]:
        items: list[Any] = [None] * len(self.layout.items)
        for i, g in zip(self.layout.positions, cotangents, strict=True):
            items[i] = g
        with following(self.options), ignored_unknown_sizes():
            grads = self.rule(
                self._replayed(flat, "to_save"), *([items] if getattr(self.cls, "boxed_grads_call", False) else items)
            )
        grads, n = list(grads) if isinstance(grads, (tuple, list)) else [grads], len(self.args)
        if len(grads) < n or any(g is not None for g in grads[n:]):
            raise RuntimeError(f"{self.name}.backward returned {len(grads)} gradients for {n} inputs.")
        result: list[Tensor | None] = [None] * len(self.layout.inputs)
        for slot, g in zip(self.args, grads, strict=False):
            if isinstance(slot, Slot) and g is not None and is_differentiable(self.layout.inputs[slot][1]):
                shape, dtype = self.layout.inputs[slot]
                result[slot] = (g if g.shape == shape else g.sum_to_size(shape)).to(dtype)
        return result

    def jvp(self, flat: Maybe, tangents: Maybe) -> list[Tensor | None]:
        """A tangent for each output that is a tensor, by the ``jvp`` that the class declares."""
        given = [tangents[a] if isinstance(a, Slot) else None for a in self.args]
        with following(self.options):
            pushed = self.cls.jvp(self._replayed(flat, "saved_for_forward", "to_save"), *given)
        return [pushed[i] for i in self.layout.positions] if isinstance(pushed, tuple) else [pushed]


def is_new_style(cls: Any) -> bool:
    """Whether a class has a ``setup_context`` of its own."""
    return any("setup_context" in c.__dict__ for c in cls.__mro__[: cls.__mro__.index(TorchFunction)])


def _packed(value: Any, replace: Callable[[Any], Any]) -> Any:
    """A value with its leaves replaced; the very same object where there is nothing to replace."""
    leaves, structure = pytree.tree_flatten(value)
    replaced = [replace(leaf) for leaf in leaves]
    if all(new is old for new, old in zip(replaced, leaves, strict=True)):
        return value
    return replaced[0] if structure.is_leaf() else Container(replaced, structure)


def _filled(value: Any, tensors: Sequence[Any]) -> Any:
    """The value again, with tensors for slots."""
    if isinstance(value, Container):
        return pytree.tree_unflatten([_filled(leaf, tensors) for leaf in value.leaves], value.structure)
    if isinstance(value, NumberSlot):
        return tensors[value].item()
    return tensors[value] if isinstance(value, Slot) else value


def _slots(values: Iterable[Any]) -> Iterator[Slot]:
    """The slots in packed values."""
    for value in values:
        yield from (leaf for leaf in (value.leaves if isinstance(value, Container) else [value]) if isinstance(leaf, Slot))
