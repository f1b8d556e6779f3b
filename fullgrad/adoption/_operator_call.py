"""`OperatorCall`: one call of an operator of torch.library as pure functions of tensors."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import (
    are_differentiated,
    call_operator,
    has_tangent,
    operator_value,
    overload_of,
    pytree,
    registered_autograd,
    require_grad,
    tangent_levels,
    transforms_active,
)
from fullgrad.adoption._adopted import applied
from fullgrad.adoption._class_call import ClassCall
from fullgrad.adoption._scope import Options
from fullgrad.adoption._tensors import Maybe, Refused, may_differ

_NONE = (
    "{} is an operator without a derivative. Give it one by torch.library.register_autograd, or plain torch code for the same "
    "function by fullgrad.adopt(op, reference=...), or detach its inputs."
)
_LOST = (
    "{} would lose a tangent in silence: its derivative is for reverse mode alone. Call it while fullgrad.adopting() is open, or "
    "give it plain torch code for the same function by fullgrad.adopt(op, reference=...), or detach its inputs."
)
_OF_KERNEL = (
    "{} would lose a tangent in silence: its kernel for autograd has none. Give it plain torch code for the same function by "
    "fullgrad.adopt(op, reference=...), or detach its inputs."
)
_MUTABLE = (
    "{} changes an argument in place, where torch.library allows no derivative. Make it an operator that returns a new tensor, "
    "or detach its inputs."
)


class OperatorCall(ClassCall):
    """One call of an operator, by what `torch.library.register_autograd` was given.

    A tensor in a list is an argument of its own, and a result of its own.
    """

    new_style, has_jvp = True, False

    def __init__(self, op: Any, registered: Any, args: Sequence[Any], kwargs: dict[str, Any], options: Options) -> None:
        self.cls, self.code, self.name, self.options = op, op, op._schema.name, options
        self.registered, self.rule = registered, self._pull
        self.refusal = "" if registered.backward else _NONE.format(self.name)
        positional, self.keywords = bound(op, args, kwargs)
        self.positional = len(positional)
        leaves, self.structure = _spread([*positional, *self.keywords.values()])
        self._take(leaves)

    def _called(self, ctx: Any, args: Sequence[Any]) -> tuple[Any, ...]:
        values = _gathered(args, self.structure)
        inputs, keywords = tuple(values[: self.positional]), dict(zip(self.keywords, values[self.positional :], strict=True))
        with torch.no_grad():  # else autograd would record the operator, which transforms do not see
            output = operator_value(self.cls, inputs, keywords)
        self.is_tuple = isinstance(output, tuple)
        leaves, self.outputs = _spread(output if self.is_tuple else (output,))
        if self.options.strict and any(self.needed):
            for leaf in filter(may_differ, [v for v in leaves if isinstance(v, Tensor) and v.is_leaf]):
                require_grad(leaf)  # so that an intermediate that is made of it is known
        if self.registered.setup_context:
            more = {"keyword_only_inputs": keywords} if self.keywords else {}
            self.registered.setup_context(ctx=ctx, inputs=inputs, output=output, **more)
        return tuple(leaves)

    def _pull(self, ctx: Any, *grads: Tensor | None) -> list[Tensor | None]:
        ctx.needs_input_grad = tuple(_gathered(ctx.needs_input_grad, self.structure)[: self.positional])
        found = self.registered.backward(ctx, *_gathered(grads, self.outputs))
        found, flat = found if isinstance(found, tuple) else (found,), []
        if any(g is not None for g in found[self.positional :]):
            raise RuntimeError(f"{self.name}.backward returned {len(found)} gradients for {self.positional} inputs.")
        for i, count in enumerate(self.structure):
            g = found[i] if i < min(len(found), self.positional) else None
            flat += [g] if count is None else [None] * len(count) if g is None else list(g)
        return flat

    def backward(self, flat: Maybe, cotangents: Maybe, needs: Sequence[bool]) -> Sequence[Tensor | None]:
        """A gradient or None for each input that needs one, by the registered backward."""
        if self.refusal:
            raise Refused(self.refusal)
        return super().backward(flat, cotangents, needs)

    def output(self, tensors: Sequence[Tensor], results: Any) -> Any:
        """The result of the operator."""
        values = _gathered(super().output(tensors, results), self.outputs)
        return tuple(values) if self.is_tuple else values[0]


def bound(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The positional arguments of an operator and those that are keywords only, with their defaults."""
    positional, keywords, given = [], {}, dict(kwargs)
    for i, argument in enumerate(op._schema.arguments):
        value = args[i] if i < len(args) and not argument.kwarg_only else given.pop(argument.name, argument.default_value)
        if argument.kwarg_only:
            keywords[argument.name] = value
        else:
            positional.append(value)
    return positional, keywords


def _spread(values: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Values, with the parts of lists of tensors in the places of the lists; and for each value a list as long as it, or None."""
    leaves: list[Any] = []
    structure: list[Any] = []
    for value in values:
        if isinstance(value, (list, tuple)) and any(isinstance(v, Tensor) for v in value):
            leaves += value
            structure.append([None] * len(value))
        else:
            leaves.append(value)
            structure.append(None)
    return leaves, structure


def _gathered(leaves: Sequence[Any], structure: Sequence[Any]) -> list[Any]:
    rest = iter(leaves)
    return [next(rest) if like is None else [next(rest) for _ in like] for like in structure]


def call_of_operator(op: Any, args: Sequence[Any], kwargs: dict[str, Any], options: Options | None) -> Any:
    """A call under a transform or in forward mode: adopted by the options, or without them as it is, if it loses no tangent."""
    overload = overload_of(op, args, kwargs)
    tensors = [v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, Tensor)]
    if overload is None or not (transforms_active() or any(map(has_tangent, tensors))):
        return call_operator(op, args, kwargs)
    registered = registered_autograd(overload)
    if registered.is_composite:
        return call_operator(op, args, kwargs)
    if overload._schema.is_mutable:
        if any(are_differentiated(tensors)):
            raise Refused(_MUTABLE.format(overload._schema.name))
        return call_operator(op, args, kwargs)
    # Below transforms, autograd may see torch code inside of an operator that has no derivative.
    is_open = not registered.backward and not transforms_active()
    if options is None or registered.has_kernel or is_open:
        return _checked(overload, registered, tensors, call_operator(op, args, kwargs))
    call = OperatorCall(overload, registered, args, kwargs, options)
    given, call.tensors = call.tensors, []
    return call.output(given, applied(call, *given))


def _checked(op: Any, registered: Any, tensors: Sequence[Tensor], result: Any) -> Any:
    """The result of torch's own call, which has a tangent where an argument has one."""
    results = [y for y in pytree.tree_leaves(result) if isinstance(y, Tensor) and may_differ(y)]
    levels = tangent_levels(tensors) if results else set()
    if levels and not levels <= tangent_levels(results):
        message = _LOST if registered.backward else _OF_KERNEL if registered.has_kernel else _NONE
        raise Refused(message.format(op._schema.name))
    return result


def check_adoptable(op: Any) -> None:
    """Refuse an operator whose derivative cannot be read."""
    names = op.overloads() if hasattr(op, "overloads") else ()
    overloads = [getattr(op, name) for name in names] or [overload_of(op)]
    # The variant that writes into ``out`` is refused where it is called.
    for overload in [o for o in overloads if not o._schema.is_mutable] or overloads:
        found = registered_autograd(overload)
        name = overload._schema.name
        if overload._schema.is_mutable:
            raise TypeError(f"adopt: {_MUTABLE.format(name)}")
        if found.has_kernel:
            raise TypeError(
                f"adopt: {name} has a kernel for autograd of its own, which cannot be read. Give it a `reference`, plain torch "
                "code for the same function: adopt(op, reference=...)."
            )
        if not (found.backward or found.is_composite):
            raise TypeError(f"adopt: {_NONE.format(name)}")
