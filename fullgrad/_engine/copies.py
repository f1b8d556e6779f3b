"""Copies of functions: with other tensors in the places of those that they hold, and with their variables as they are now."""

import functools
import types
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from fullgrad._engine.held import is_compiled
from fullgrad._engine.names import is_library, names_in


def substituted(value: Any, others: Mapping[int, Tensor], seen: frozenset[int] = frozenset(), compiled: bool = False) -> Any:
    """A function with other tensors, by the identity of those that its variables, globals, defaults and bound arguments have.

    It is a copy where something changes: nobody else calls it, so that nothing is put back.
    """
    if isinstance(value, Tensor):
        return others.get(id(value), value)
    kind = value.__class__
    if kind is tuple:
        items = tuple([substituted(v, others, seen, compiled) for v in value])
        return value if _same(items, value) else items
    if kind is types.MethodType:
        function = substituted(value.__func__, others, seen, compiled)
        return value if function is value.__func__ else types.MethodType(function, value.__self__)
    if kind is functools.partial:
        parts, n = (value.func, *value.args, *value.keywords.values()), len(value.args)
        function, *args = substituted(parts, others, seen, compiled)
        keywords = dict(zip(value.keywords, args[n:], strict=True))
        return value if _same((function, *args), parts) else functools.partial(function, *args[:n], **keywords)
    if kind is not types.FunctionType or id(value) in seen:
        return value
    seen, compiled = seen | {id(value)}, compiled or is_compiled(value)
    cells = [_substituted_cell(cell, others, seen, compiled) for cell in value.__closure__ or ()]
    defaults, space = substituted(value.__defaults__, others, seen, compiled), value.__globals__
    if not compiled and not is_library(value.__module__ or ""):  # Dynamo has the globals of the code that it has compiled
        found = {name: space[name] for name in names_in(value.__code__).globals if name in space}
        changed = {k: v for k, v in ((k, substituted(v, others, seen, compiled)) for k, v in found.items()) if v is not found[k]}
        space = {**space, **changed} if changed else space
    if defaults is value.__defaults__ and space is value.__globals__ and _same(cells, value.__closure__ or ()):
        return value
    return _copied(value, space, defaults, cells)


def _copied(function: Any, space: dict[str, Any], defaults: Any, cells: Iterable[Any]) -> Any:
    copy = types.FunctionType(function.__code__, space, function.__name__, defaults, tuple(cells))
    copy.__kwdefaults__ = function.__kwdefaults__
    vars(copy).update(vars(function))  # by which a compiled function is known
    return copy


def _substituted_cell(cell: Any, others: Mapping[int, Tensor], seen: frozenset[int], compiled: bool) -> Any:
    try:
        content = cell.cell_contents
    except ValueError:  # a name that has no value yet
        return cell
    found = substituted(content, others, seen, compiled)
    return cell if found is content else types.CellType(found)


def _same(some: Iterable[Any], others: Iterable[Any]) -> bool:
    return all(a is b for a, b in zip(some, others, strict=True))


def frozen(function: Any) -> Any:
    """A function with the variables that it closes over as they are now: a lambda in a loop sees the loop's last one later."""
    if isinstance(function, types.MethodType):
        return types.MethodType(frozen(function.__func__), function.__self__)
    if not isinstance(function, types.FunctionType) or not function.__closure__:
        return function
    cells = []
    for cell in function.__closure__:
        try:
            cells.append(types.CellType(cell.cell_contents))
        except ValueError:  # a name that has no value yet
            cells.append(cell)
    return _copied(function, function.__globals__, function.__defaults__, cells)
