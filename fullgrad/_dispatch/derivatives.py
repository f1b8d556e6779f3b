"""The ``vjp`` and ``jvp`` that an author wrote, made ready for autograd's engine."""

import types
from typing import Any

from torch import Tensor

from fullgrad._dispatch import torch_private
from fullgrad._dispatch.compile_cache import recomputed
from fullgrad._dispatch.forward_marks import saves_nothing


def as_backward(operator: Any) -> Any:
    """The ``vjp`` rule, of which compiled code, if it is elementwise, saves what the operator saves and no intermediate.

    Not every operation may be computed again: a sort, for one, of which torch then cannot partition the graph.
    """
    vjp = _as_function(operator.vjp)
    if operator.setup_context is saves_nothing or not operator.recompute_in_backward:
        return vjp

    is_tracing = torch_private.dispatch_modes

    def backward(ctx: Any, *cotangents: Any) -> Any:
        return recomputed(vjp, ctx, *cotangents) if is_tracing() else vjp(ctx, *cotangents)

    return backward


def as_differentiable_jvp(operator: Any) -> Any:
    """The ``jvp`` rule, itself differentiable in forward mode when a transform is active."""
    jvp = _as_function(operator.jvp)
    active, is_on, switch = torch_private.transforms_active, torch_private.is_forward_mode, torch_private.set_forward_mode

    def differentiable_jvp(ctx: Any, *tangents: Any) -> Any:
        if not active():
            return clone_if_aliased(jvp(ctx, *tangents), tangents)
        previous = is_on()
        switch(True)
        try:
            return clone_if_aliased(jvp(_PrimalContext(ctx), *tangents), tangents)
        finally:
            switch(previous)

    return differentiable_jvp


def clone_if_aliased(result: Any, tangents: tuple[Any, ...]) -> Any:
    """A tangent returned unchanged becomes a copy: an in-place operation on the output would change the input's tangent."""
    if isinstance(result, tuple):
        return tuple(clone_if_aliased(r, tangents) for r in result)
    return result.clone() if isinstance(result, Tensor) and any(result is t for t in tangents) else result


class _PrimalContext:
    """A view of ``ctx`` whose saved tensors carry no tangent of the level that is being differentiated."""

    __slots__ = ("_ctx",)

    def __init__(self, ctx: Any) -> None:
        object.__setattr__(self, "_ctx", ctx)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._ctx, name, value)

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        unpack = torch_private.unpack_dual
        return tuple(t if t is None else unpack(t, level=0)[0] for t in self._ctx.saved_tensors)


def _as_function(rule: Any) -> Any:
    """A rule may be a classmethod, so that a family writes it once; autograd binds plain functions to ``ctx``."""
    if isinstance(rule, types.FunctionType):
        return rule

    def function(ctx: Any, *args: Any) -> Any:
        return rule(ctx, *args)

    return function
