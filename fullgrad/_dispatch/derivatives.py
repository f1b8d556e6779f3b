"""The author's ``vjp`` and ``jvp``, prepared for autograd's engine."""

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from fullgrad._dispatch import torch_private
from fullgrad._dispatch.compile_cache import recomputed
from fullgrad._dispatch.forward_marks import saves_nothing
from fullgrad._dispatch.in_place import repeatable
from fullgrad._dispatch.state import is_tracing, with_memory


def as_forward(operator: Any) -> Any:
    """The ``forward`` of a user, which may write in place what it makes."""

    def forward(*args: Any) -> Any:
        if is_dynamo_compiling():
            return operator.forward(*args)
        with repeatable():
            return operator.forward(*args)

    return forward


def as_backward(operator: Any, runs_code: bool) -> Any:
    """The ``vjp`` rule. If it is elementwise, compiled code saves what the operator saves and no intermediate result.

    Not every operation may be computed again: with a sort, for one, torch cannot partition the graph.
    """
    vjp = _as_function(operator.vjp)
    if runs_code:
        vjp = _on_memory(vjp)
    if operator.setup_context is saves_nothing or not operator.recompute_in_backward:
        return vjp

    def backward(ctx: Any, *cotangents: Any) -> Any:
        return recomputed(vjp, ctx, *cotangents) if is_tracing() else vjp(ctx, *cotangents)

    return backward


def checked_once(operator: Any, backward: Any, install: Callable[[Any], None]) -> Any:
    """A backward that checks what the author's ``vjp`` returns, and then installs the backward without checks."""

    def checking_backward(ctx: Any, *cotangents: Any) -> Any:
        try:
            gradients = backward(ctx, *cotangents)
        except Exception as error:
            _explain(operator, "vjp", "save_for_backward", ctx, cotangents, error)
            raise
        _check_gradients(operator.__name__, len(ctx.needs_input_grad), gradients)
        install(backward)
        return gradients

    return checking_backward


def _check_gradients(name: str, inputs: int, gradients: Any) -> None:
    """Refuse gradients that the engine refuses without naming the rule, or converts to zeros."""
    several = gradients if isinstance(gradients, tuple) else (gradients,)
    if len(several) < inputs or any(g is not None for g in several[inputs:]):  # torch allows more if they are None
        wanted = f"one gradient for each of the {inputs} inputs of forward, or None"
        raise TypeError(f"{name}.vjp must return {wanted}, got {kind_of(gradients)}.")
    for i, g in enumerate(several):
        if not (g is None or _is_tangent(g)):
            raise TypeError(f"{name}.vjp must return floating tensors or None, got {kind_of(g)} for input {i}.")


def kind_of(value: Any) -> str:
    """A value as error messages describe it."""
    if isinstance(value, Tensor):
        return f"a tensor of dtype {value.dtype}"
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, tuple) else "")


def _explain(operator: Any, rule: str, save: str, ctx: Any, given: tuple[Any, ...], error: Exception) -> None:
    """Say why a rule failed if the reason is a common first mistake."""
    written = getattr(operator, rule)
    code = getattr(getattr(written, "__func__", written), "__code__", None)
    without = next((i for i, t in enumerate(given) if t is None), None)
    if rule == "jvp" and without is not None and "NoneType" in str(error):
        reason = f"the tangent of input {without} is None, as that has none; leave its part out"
    elif (
        isinstance(error, (ValueError, IndexError))  # before the tensors are asked for, which may be an error of its own
        and code is not None
        and "saved_tensors" in code.co_names
        and not ctx.saved_tensors
    ):
        reason = f"it reads ctx.saved_tensors, and setup_context saves nothing for it by ctx.{save}"
    else:
        return
    raise TypeError(f"{operator.__name__}.{rule} failed: {reason}.") from error


def names(rule: Any, attribute: str) -> bool:
    """Whether the code of a rule names an attribute."""
    code = getattr(getattr(rule, "__func__", rule), "__code__", None)
    return code is not None and attribute in code.co_names


def with_zeros(backward: Any) -> Any:
    """The rule of a Function without materialized zeros, which torch leaves out for cotangents and for tangents alike: it gets
    zeros for a cotangent that does not exist, if another one does.
    """

    def with_all_cotangents(ctx: Any, *cotangents: Any) -> Any:
        for g in cotangents:
            if g is None:
                if len(cotangents) == 1 or all(g is None for g in cotangents):
                    return (None,) * len(ctx.needs_input_grad)
                like = torch_private.output_metadata(ctx)
                cotangents = tuple([_zeros(m) if g is None else g for g, m in zip(cotangents, like, strict=True)])
                break
        return backward(ctx, *cotangents)

    return with_all_cotangents


def _zeros(metadata: Any) -> Tensor:
    return torch.zeros(metadata.shape, dtype=metadata.dtype, device=metadata.device)


def as_differentiable_jvp(operator: Any, runs_code: bool) -> Any:
    """The ``jvp`` rule, itself differentiable in forward mode when a transform is active, its mistakes named."""
    jvp = _as_function(operator.jvp)
    if runs_code:
        jvp = _on_memory(jvp)
    active, is_on, switch = torch_private.transforms_active, torch_private.is_forward_mode, torch_private.set_forward_mode

    def call(ctx: Any, tangents: tuple[Any, ...]) -> Any:
        try:
            result = jvp(ctx, *(tangents if len(tangents) == 1 else _on_one_device(tangents)))
        except Exception as error:
            _explain(operator, "jvp", "save_for_forward", ctx, tangents, error)
            raise
        if not _is_tangent(result) and not isinstance(result, tuple):
            raise TypeError(f"{operator.__name__}.jvp must return a floating tensor for each output, got {kind_of(result)}.")
        return clone_if_aliased(result, tangents)

    def differentiable_jvp(ctx: Any, *tangents: Any) -> Any:
        if not active():
            return call(ctx, tangents)
        previous = is_on()
        switch(True)
        try:
            return call(_View(ctx, _primal), tangents)
        finally:
            switch(previous)

    return differentiable_jvp


def _is_tangent(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def _on_one_device(tangents: tuple[Any, ...]) -> tuple[Any, ...]:
    """The tangents, with that of a number on the CPU moved to the device of the others: not every kernel takes such a number."""
    device = next((t.device for t in tangents if isinstance(t, Tensor) and not t.is_cpu), None)
    if device is None:
        return tangents
    return tuple([t.to(device) if isinstance(t, Tensor) and t.is_cpu and not t.ndim else t for t in tangents])


def clone_if_aliased(result: Any, tangents: tuple[Any, ...]) -> Any:
    """The output tangents; an input tangent among them is copied, since an in-place operation on the output would change it."""
    if isinstance(result, tuple):
        return tuple(clone_if_aliased(r, tangents) for r in result)
    return result.clone() if isinstance(result, Tensor) and any(result is t for t in tangents) else result


def with_live_tensors(backward: Any) -> Any:
    """The rule for calls after the transform that saved the tensors has ended, as by the function that `torch.func.vjp` returns.

    The saved tensors are still wrappers of that transform. Operations see through them, but a transform in the rule does not, and
    torch fails inside (``batched == nullptr INTERNAL ASSERT FAILED``).
    """
    return lambda ctx, *cotangents: backward(_View(ctx, _live), *cotangents)


def with_primals(jvp: Any) -> Any:
    """The rule on saved tensors without tangents: torch switches forward mode on again in a transform inside the rule."""
    return lambda ctx, *tangents: jvp(_View(ctx, _primal), *tangents)


class _View:
    """A view of ``ctx`` whose saved tensors are passed through a function."""

    __slots__ = ("_ctx", "_seen")

    def __init__(self, ctx: Any, seen: Callable[[Tensor], Tensor]) -> None:
        object.__setattr__(self, "_ctx", ctx)
        object.__setattr__(self, "_seen", seen)

    def __getattr__(self, name: str) -> Any:
        if name in _View.__slots__:  # Dynamo asks an object that has no attributes yet
            raise AttributeError(name)
        return getattr(self._ctx, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._ctx, name, value)

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        return tuple(t if t is None else self._seen(t) for t in self._ctx.saved_tensors)


def _primal(tensor: Tensor) -> Tensor:
    """The tensor without its tangent of the level that is being differentiated."""
    return torch_private.unpack_dual(tensor, level=0)[0]


def _live(tensor: Tensor) -> Tensor:
    """The tensor inside wrappers of transforms that have ended."""
    while (inner := torch_private.unwrap_if_dead(tensor)) is not tensor:
        tensor = inner
    return tensor


def _on_memory(rule: Any) -> Any:
    """The rule of a user, which gets no zeros without memory, and may write in place what it makes."""

    def on_memory(ctx: Any, *given: Any) -> Any:
        if is_dynamo_compiling():
            return rule(ctx, *given)
        with repeatable():
            return rule(ctx, *map(with_memory, given))

    return on_memory


def _as_function(rule: Any) -> Any:
    """The rule as a plain function, which autograd binds to ``ctx``; a family may write it as a classmethod."""
    if isinstance(rule, types.FunctionType):
        return rule

    def function(ctx: Any, *args: Any) -> Any:
        return rule(ctx, *args)

    return function
