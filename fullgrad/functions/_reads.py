"""`Reads`: what functions read besides their arguments, on which compiled code is guarded."""

import functools
import types
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from fullgrad._dispatch import guard_on, is_compiling
from fullgrad.functions._closures import names_in

_NUMBERS = (int, float, complex, str, type(None))
_DEPTH, _MOST = 6, 64  # of objects in objects, and of entries of a list


class Reads:
    """The numbers that functions read from variables, globals and attributes, and which objects they find them in.

    Compiled code takes an operator made of functions as it is, and would not see that they change.
    """

    def __init__(self, *functions: Any) -> None:
        self._places = list(_places_of(functions, frozenset(), set(), _DEPTH))

    @property
    def now(self) -> str:
        """The numbers, and the identities of the objects."""
        return repr([v if isinstance(v, _NUMBERS) else id(v) for v in map(_content, self._places)])


def guard(*functions: Any) -> None:
    """Compile again where functions read other numbers than now, if Dynamo traces a call of them."""
    if is_compiling():
        guard_on(lambda: Reads(*functions), "now")


def _content(place: tuple[Any, Any]) -> Any:
    holder, key = place
    try:
        return holder.cell_contents if key is None else holder[key]
    except (KeyError, IndexError, ValueError):  # it is gone, or a name that has no value yet
        return None


def _places_of(value: Any, names: frozenset[str], seen: set[int], depth: int) -> Iterator[tuple[Any, Any]]:
    """The places, a cell or a holder and a key, of what is read in an object by code that has some names."""
    if id(value) in seen or depth < 0 or isinstance(value, (*_NUMBERS, Tensor, types.ModuleType, types.BuiltinFunctionType)):
        return
    seen.add(id(value))
    for place in _own_places(value, names):
        found = _content(place)
        is_code = isinstance(found, (types.FunctionType, types.MethodType, functools.partial))
        of_function = frozenset(names_in(value.__code__)) if isinstance(value, types.FunctionType) else names
        if not (is_code and str(getattr(found, "__module__", "")).partition(".")[0] == "torch"):
            yield place
            yield from _places_of(found, of_function, seen, depth - 1)
    if isinstance(value, types.MethodType):
        yield from _places_of(value.__func__, names, seen, depth)
        yield from _places_of(value.__self__, _reached(type(value.__self__), names_in(value.__func__.__code__)), seen, depth)
    elif isinstance(value, functools.partial):
        yield from _places_of((value.func, value.args, value.keywords), names, seen, depth)
    elif isinstance(value, nn.Module):
        for part in value.modules():
            forward = getattr(type(part).forward, "__code__", None)
            read = names | {"training"} | (_reached(type(part), names_in(forward)) if forward else frozenset())
            for name in vars(part):
                if name in read:
                    yield vars(part), name
                    yield from _places_of(vars(part)[name], names, seen, depth - 1)


def _own_places(value: Any, names: frozenset[str]) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, types.FunctionType):
        space = value.__globals__
        of_globals = [(space, name) for name in names_in(value.__code__) if name in space]
        return [*[(cell, None) for cell in value.__closure__ or ()], *of_globals]
    if isinstance(value, (list, tuple)):
        return [(value, i) for i in range(min(len(value), _MOST))]
    if isinstance(value, dict):
        return [(value, key) for key in list(value)[:_MOST]]
    if isinstance(value, type):
        return [(vars(value), name) for name in names if isinstance(vars(value).get(name), _NUMBERS)]
    if isinstance(value, nn.Module) or not hasattr(value, "__dict__"):
        return []
    reached = _reached(type(value), names)
    return [(vars(value), name) for name in vars(value) if name in reached]


def _reached(cls: type, names: Iterable[str]) -> frozenset[str]:
    """The names in code, and in the methods of a class that it names."""
    found, rest = set(), list(names)
    while rest:
        name = rest.pop()
        if name not in found:
            found.add(name)
            method = getattr(cls, name, None)
            method = getattr(method, "fget", method)
            if isinstance(method, types.FunctionType) and method.__module__.partition(".")[0] != "torch":
                rest += names_in(method.__code__)
    return frozenset(found)
