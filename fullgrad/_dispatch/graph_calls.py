"""Calls of other packages' classes in compiled code: a caught call becomes one node of the graph.

Dynamo traces into a Function, and below transforms it drops the rules. Calls that `interception` catches are put into the graph
instead, as functions that AOTAutograd traces with their rules.
"""

import functools
import inspect
import types
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch.interception import catcher
from fullgrad._dispatch.torch_private import dynamo_names, is_operator, mark_for_dynamo, transforms_active

_TorchFunction: Any = torch.autograd.Function
_BY_VALUE = (bool, int, float, str, type(None))
# The attributes in which a function holds the objects it refers to.
_PARTS: dict[type, tuple[str, ...]] = {
    types.MethodType: ("__func__", "__self__"),
    types.FunctionType: ("__closure__",),
    types.CellType: ("cell_contents",),
    functools.partial: ("func", "args", "keywords"),
}


@functools.cache
def catch_in_graphs(module: str, *path: str) -> Any:
    """Make Dynamo catch calls, now or once it is imported. Traced code is guarded on a value: an attribute of a module."""

    def teach() -> None:
        names = dynamo_names()
        variable = names.AutogradFunctionVariable
        inline = variable.call_method

        def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
            if name != "apply":
                return inline(self, tx, name, args, kwargs)
            source = functools.reduce(names.AttrSource, path, tx.import_source(module))
            names.install_guard(source.make_guard(names.GuardBuilder.EQUALS_MATCH))
            cls = self.fn_cls
            # Without transforms, Dynamo's own handling is right for a class that it supports.
            needed = transforms_active() or cls.jvp is not _TorchFunction.jvp or inspect.ismethod(cls.forward)
            how = catcher.how(cls, needed)
            return inline(self, tx, name, args, kwargs) if how is None else _node(names, tx, cls, how, args, kwargs)

        function = names.TorchInGraphFunctionVariable
        call = function.call_function

        def call_function(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
            if is_operator(self.value):  # AOTAutograd calls it, where `interception` catches it
                source = functools.reduce(names.AttrSource, path, tx.import_source(module))
                names.install_guard(source.make_guard(names.GuardBuilder.EQUALS_MATCH))
            return call(self, tx, *args, **kwargs)

        function.call_function = call_function
        variable.call_method = call_method
        names.reset_code_caches()  # code that was compiled before is not guarded

    mark_for_dynamo(lambda teach: teach(), teach)
    return teach  # the cache keeps it, `mark_for_dynamo` does not


def _node(names: Any, tx: Any, cls: Any, how: Any, args: Any, kwargs: Any) -> Any:
    """The node of a call. Objects and functions among the arguments are part of the node, and guarded."""
    call, fixed = catcher.as_function(cls, how), {}
    for key, a in [*enumerate(args), *kwargs.items()]:
        a = a.realize()
        if not any(hasattr(a, name) for name in ("value", "fn", "func", "get_function")) or _fits_into_graph(a):
            continue
        value, reason = _constant(names, tx, a)
        if reason:
            names.unimplemented(
                gb_type="fullgrad.adopt: an argument that compiled code makes or changes",
                context=f"{cls.__name__}.apply, argument {key!r}",
                explanation=f"{cls.__name__} is one node of the graph, and its argument {key!r} {reason}.",
                hints=["Make and change it outside of what is compiled, or pass the tensors in it as arguments."],
            )
        fixed[key] = value
    n, named = len(args), {k: v for k, v in fixed.items() if isinstance(k, str)}

    def node(*some: Any, **others: Any) -> Any:
        remaining = iter(some)
        return call(*[fixed[i] if i in fixed else next(remaining) for i in range(n)], **others, **named)

    node.__name__ = node.__qualname__ = call.__name__
    given = names.proxy_args_kwargs(
        [a for i, a in enumerate(args) if i not in fixed], {k: a for k, a in kwargs.items() if k not in fixed}
    )
    return names.wrap_fx_proxy(tx=tx, proxy=tx.output.create_proxy("call_function", node, *given))


def _constant(names: Any, tx: Any, variable: Any) -> tuple[Any, str]:
    """An object or a function among the arguments, its contents guarded; or the reason why it cannot be part of the node."""
    if variable.source is None:
        try:
            return variable.get_function(), ""
        except Exception:
            return None, "is made in compiled code, and holds what that computes"
    root, effects = tx.output.root_tx, tx.output.side_effects
    # The `resolve_source_value` of a graph, which torch 2.11 lacks.
    value = variable.source.get_value({"G": root.f_globals, "L": root.f_locals}, {}, weakref.WeakKeyDictionary())
    for source, item in _contents(names, value, variable.source):
        known = effects.id_to_variable.get(id(item))
        if known is not None and effects.is_modified(known):
            return None, "is changed in compiled code before"
        guards = [(source, names.GuardBuilder.EQUALS_MATCH if isinstance(item, _BY_VALUE) else names.GuardBuilder.ID_MATCH)]
        if isinstance(item, Tensor) and not item.is_inference():
            guards.append((names.AttrSource(source, "_version"), names.GuardBuilder.EQUALS_MATCH))
        for place, kind in guards if not isinstance(item, types.MethodType) else ():  # a method is a new object each time
            names.install_guard(place.make_guard(kind))
    return value, ""


def _contents(names: Any, value: Any, source: Any, depth: int = 6) -> Iterator[tuple[Any, Any]]:
    """An object and the objects it refers to, each with its source."""
    yield source, value
    if isinstance(value, (Tensor, type, types.ModuleType)) or not depth:
        return
    if isinstance(value, (list, tuple)):
        inside = [(names.GetItemSource(source, i), item) for i, item in enumerate(value)]
    elif isinstance(value, dict):
        inside = [(names.DictGetItemSource(source, k), v) for k, v in value.items() if isinstance(k, (str, int))]
    else:
        parts = next((parts for kind, parts in _PARTS.items() if isinstance(value, kind)), ())
        found = [*parts, *getattr(value, "__dict__", ())]
        inside = [(names.AttrSource(source, name), getattr(value, name)) for name in found]
    for place, item in inside:
        yield from _contents(names, item, place, depth - 1)


def _fits_into_graph(variable: Any) -> bool:
    """Whether an argument is a tensor or a number, or a container of them."""
    try:
        proxy = variable.as_proxy()
    except NotImplementedError:
        return False
    return isinstance(proxy, torch.fx.Proxy) or not callable(proxy)
