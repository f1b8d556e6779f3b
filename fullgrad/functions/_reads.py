"""`Reads`: what functions read besides their arguments, on which compiled code is guarded."""

import functools
import operator
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from fullgrad._dispatch import guard_on, is_compiling
from fullgrad.functions._closures import names_in

_NUMBERS = (int, float, complex, str, type(None))
_DEPTH, _MOST = 6, 64  # of objects in objects, and of entries of a list
_PACKAGES = frozenset({"torch", "numpy"})  # whose functions and modules read no numbers of users
_Place = tuple[Callable[[Any, Any], Any], Any, Any]  # how to read it, a holder and a key


class Reads:
    """The numbers that functions read from variables, globals and attributes, and which objects they find them in.

    Compiled code takes an operator made of functions as it is, and would not see that they change.
    """

    def __init__(self, *functions: Any) -> None:
        names, count = set[str](), -1
        while count < len(names):  # one function may read what another one holds
            count = len(names)
            self._places = list(_places_of(functions, names, set(), _DEPTH))

    @property
    def now(self) -> str:
        """The numbers, and the identities of the objects."""
        return repr([_shown(_content(place)) for place in self._places])


def guard(*functions: Any) -> None:
    """Compile again where functions read other numbers than now, if Dynamo traces a call of them."""
    if is_compiling():
        guard_on(lambda: Reads(*functions), "now")


def _shown(value: Any) -> Any:
    if isinstance(value, _NUMBERS):
        return value
    is_array = type(value).__module__ == "numpy" and hasattr(value, "tobytes") and value.size <= _MOST
    return value.tobytes() if is_array else id(value)  # an array may change in place


def _content(place: _Place) -> Any:
    read, holder, key = place
    try:
        return read(holder, key)
    except (AttributeError, KeyError, IndexError, ValueError):  # it is gone, or a name that has no value yet
        return None


def _places_of(value: Any, names: set[str], seen: set[int], depth: int) -> Iterator[_Place]:
    """The places of what is read in an object by code that has some names, to which it adds those of code that it meets."""
    if id(value) in seen or depth < 0 or isinstance(value, (*_NUMBERS, Tensor, types.BuiltinFunctionType)):
        return
    seen.add(id(value))
    if isinstance(value, types.FunctionType):
        names.update(_names_in(value.__code__))
    elif callable(value) and not isinstance(value, type):
        names.update(_reached(type(value), ["__call__"]))
    for place in _own_places(value, names):
        found = _content(place)
        is_code = isinstance(found, (types.FunctionType, types.MethodType, types.ModuleType, functools.partial))
        if not (is_code and _package_of(found) in _PACKAGES):
            yield place
            yield from _places_of(found, names, seen, depth - 1)
    if isinstance(value, types.MethodType):
        yield from _places_of(value.__func__, names, seen, depth)
        names.update(_reached(type(value.__self__), _names_in(value.__func__.__code__)))
        yield from _places_of(value.__self__, names, seen, depth)
    elif isinstance(value, functools.partial):
        yield from _places_of((value.func, value.args, value.keywords), names, seen, depth)
    elif isinstance(value, nn.Module):
        for part in value.modules():
            forward = getattr(type(part).forward, "__code__", None)
            read = names | {"training"} | (_reached(type(part), _names_in(forward)) if forward else frozenset())
            for name in vars(part):
                if name in read:
                    yield operator.getitem, vars(part), name
                    yield from _places_of(vars(part)[name], names, seen, depth - 1)


def _own_places(value: Any, names: set[str]) -> Iterable[_Place]:
    if isinstance(value, types.FunctionType):
        space = value.__globals__
        cells: list[_Place] = [(_cell_contents, cell, None) for cell in value.__closure__ or ()]
        of_globals = [(operator.getitem, space, name) for name in dict.fromkeys(_names_in(value.__code__)) if name in space]
        of_itself = [(getattr, value, name) for name in ("__defaults__", "__kwdefaults__")]
        return [*cells, *of_globals, *of_itself, *[(operator.getitem, vars(value), name) for name in vars(value)]]
    if isinstance(value, (list, tuple)):
        return [(operator.getitem, value, i) for i in range(min(len(value), _MOST))]
    if isinstance(value, dict):
        return [(_length, value, None), *[(operator.getitem, value, key) for key in list(value)[:_MOST]]]
    if isinstance(value, types.ModuleType):
        return [(operator.getitem, vars(value), name) for name in sorted(names) if name in vars(value)]
    if isinstance(value, type):
        return _of_classes(value, names)
    if isinstance(value, nn.Module):
        return _of_classes(type(value), names)
    reached = _reached(type(value), names)
    own = vars(value) if hasattr(value, "__dict__") else {}
    slots = [
        name for cls in type(value).__mro__ for name in reached if isinstance(vars(cls).get(name), types.MemberDescriptorType)
    ]
    return [
        *[(operator.getitem, own, name) for name in own if name in reached],
        *[(getattr, value, name) for name in slots],
        *_of_classes(type(value), reached),
    ]


def _of_classes(cls: type, names: Iterable[str]) -> list[_Place]:
    """The numbers of a class and of those that it derives from."""
    return [(operator.getitem, vars(c), name) for c in cls.__mro__ for name in names if isinstance(vars(c).get(name), _NUMBERS)]


def _cell_contents(cell: Any, _: None) -> Any:
    return cell.cell_contents


def _length(value: Any, _: None) -> int:
    return len(value)


def _package_of(value: Any) -> str:
    name = value.__name__ if isinstance(value, types.ModuleType) else str(getattr(value, "__module__", ""))
    return name.partition(".")[0]


def _names_in(code: types.CodeType) -> Iterator[str]:
    """The names of globals and attributes in code, also those that it asks for by `getattr`."""
    yield from names_in(code)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            yield constant


def _reached(cls: type, names: Iterable[str]) -> frozenset[str]:
    """The names in code, and in the methods of a class that it names."""
    found, rest = set(), list(names)
    while rest:
        name = rest.pop()
        if name not in found:
            found.add(name)
            method = getattr(cls, name, None)
            method = getattr(method, "fget", method)
            if isinstance(method, types.FunctionType) and _package_of(method) not in _PACKAGES:
                rest += _names_in(method.__code__)
    return frozenset(found)
