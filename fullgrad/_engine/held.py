"""The objects that functions hold: those that their code reaches without being given them, and the places where it finds them.

There is one walk, `places`. What a function holds, and which numbers it reads, are loops over it.
"""

import collections
import dis
import functools
import sys
import types
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_DEPTH = 8  # of objects in objects
_MOST = 64  # numbers in a container
_OBJECTS = 4_096  # in all, the nearest ones
ALL = "*"  # a name for all names, of code that asks for attributes by other means
_CACHED = type(functools.cache(len))
_CALLED = frozenset({"__call__"})
_DATA = frozenset({int, float, complex, bool, str, bytes, type(None)})
_LEAVES = frozenset({int, float, complex, bool, str, bytes, type(None), types.BuiltinFunctionType, Tensor, nn.Parameter})

# A holder and a key, by which `content` finds what is there, and what was found. The holder is a cell, or has items.
Place = tuple[Any, Any, Any]


def places(*functions: Any) -> list[Place]:
    """The places that functions read: variables, defaults, globals, and attributes that their code names, in any depth.

    Names are those of instructions: an attribute ``box.scale`` is not a global ``scale``. A function of an installed package has
    variables, as `torch.func.grad(f)` has f, and no globals. A module of torch has all its parameters, and others those that code
    names. The nearest objects are looked at first, and no more than some thousands: a function may reach a whole program.
    """
    if all(map(_reads_nothing, functions)):  # as most rules do, which are called often
        return []
    names = _CALLED
    while True:
        walk = _Walk(names)
        walk.run(functions)
        if walk.is_complete():
            return walk.found
        names = walk.names  # one function reads an attribute of what another one holds


def content(place: Place) -> Any:
    """The object at a place now; None if the place is gone, or a variable has no value yet."""
    holder, key, _ = place
    try:
        return holder.cell_contents if key is None else holder[key]
    except (KeyError, IndexError, ValueError):
        return None


def held(*functions: Any) -> tuple[list[nn.Module], list[Tensor]]:
    """The modules and tensors that functions hold: those whose methods they are, or that their places have."""
    return held_in(functions, places(*functions))


def held_in(functions: Iterable[Any], found: Iterable[Place]) -> tuple[list[nn.Module], list[Tensor]]:
    """The modules and tensors among functions and what was found in their places."""
    values = {id(v): v for v in (*functions, *[value for *_, value in found]) if isinstance(v, (nn.Module, Tensor))}.values()
    return [v for v in values if isinstance(v, nn.Module)], [v for v in values if isinstance(v, Tensor)]


def generators_in(functions: Iterable[Any], found: Iterable[Place]) -> list[torch.Generator]:
    """The random generators of the user among functions and what was found in their places."""
    values = (*functions, *[value for *_, value in found])
    return list({id(v): v for v in values if isinstance(v, torch.Generator)}.values())


def has_compiled_code(functions: Iterable[Any], found: Iterable[Place]) -> bool:
    """Whether the user has compiled one of some functions, or something in their places."""
    return any(map(_is_compiled, (*functions, *[value for *_, value in found])))


def _is_compiled(value: Any) -> bool:
    if isinstance(value, nn.Module):
        return getattr(value, "_compiled_call_impl", None) is not None or "_orig_mod" in value._modules
    return isinstance(value, types.FunctionType) and "_torchdynamo_orig_callable" in vars(value)


def is_globals(holder: Any) -> bool:
    """Whether the holder of a place is the globals of a module."""
    return holder.__class__ is dict and "__builtins__" in holder


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
    seen, compiled = seen | {id(value)}, compiled or _is_compiled(value)
    cells = [_substituted_cell(cell, others, seen, compiled) for cell in value.__closure__ or ()]
    defaults, space = substituted(value.__defaults__, others, seen, compiled), value.__globals__
    if not compiled and not _is_library(value.__module__ or ""):  # Dynamo has the globals of the code that it has compiled
        found = {name: space[name] for name in names_in(value.__code__).globals if name in space}
        changed = {k: v for k, v in ((k, substituted(v, others, seen, compiled)) for k, v in found.items()) if v is not found[k]}
        space = {**space, **changed} if changed else space
    if defaults is value.__defaults__ and space is value.__globals__ and _same(cells, value.__closure__ or ()):
        return value
    copy = types.FunctionType(value.__code__, space, value.__name__, defaults, tuple(cells))
    copy.__kwdefaults__ = value.__kwdefaults__
    vars(copy).update(vars(value))
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
    copy = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, tuple(cells))
    copy.__kwdefaults__ = function.__kwdefaults__
    vars(copy).update(vars(function))  # by which a compiled function is known
    return copy


def _reads_nothing(value: Any) -> bool:
    """Whether an object is a function that reads its arguments alone, and what installed packages have."""
    if (
        value.__class__ is not types.FunctionType
        or value.__closure__
        or value.__defaults__
        or value.__kwdefaults__
        or vars(value)
    ):
        return False
    space = value.__globals__
    found = [space[name] for name in names_in(value.__code__).globals if name in space]
    return all([v.__class__ is types.ModuleType and _is_installed(v.__name__) for v in found])  # noqa: C419


class _Walk:
    """The places that were found, for code that reads attributes of some names, to which those of the code are added."""

    def __init__(self, names: frozenset[str]) -> None:
        self.found: list[Place] = []
        self.seen: dict[int, Any] = {}  # which are kept, so that no other object gets the identity of one
        self.names, self.at_first_look = names, None
        self.owners: set[int] = set()  # of methods, whose code says what it reads; another module is called
        self.waiting: collections.deque[tuple[Any, int]] = collections.deque()

    def is_complete(self) -> bool:
        """Whether all names were known where attributes were looked for."""
        return self.at_first_look is None or self.at_first_look == self.names

    def run(self, values: Iterable[Any]) -> None:
        """Add the places in some objects, and in those that are found there."""
        for value in values:
            self._wait(value, _DEPTH)
        while self.waiting and len(self.seen) < _OBJECTS:
            self._look(*self.waiting.popleft())

    def _wait(self, value: Any, depth: int) -> None:
        if value.__class__ not in _LEAVES and depth >= 0:
            self.waiting.append((value, depth))

    def _look(self, value: Any, depth: int) -> None:
        """Add the places in an object."""
        if id(value) in self.seen:
            return
        self.seen[id(value)] = value
        kind = value.__class__
        if kind is types.FunctionType:
            self._function(value, depth)
        elif kind is types.MethodType:
            self.owners.add(id(value.__self__))
            self._wait(value.__func__, depth)
            self._add((value.__self__,), 0, value.__self__, depth + 1)
        elif kind is functools.partial:
            self._items((value.func, *value.args), depth)
            self._items(value.keywords, depth)
        elif isinstance(value, (list, tuple, collections.deque, Mapping)):
            self._items(value, depth)
        elif isinstance(value, (set, frozenset)):
            self._items(list(value), depth)
        elif kind is _CACHED:
            self._add(vars(value), "__wrapped__", value.__wrapped__, depth)
        elif kind is types.ModuleType:
            if not _is_installed(value.__name__):
                self._attributes(vars(value), self.names, depth)
        elif isinstance(value, nn.Module):
            self._module(value, depth)
        elif isinstance(value, type):
            self._class(value, self.names, depth)
        elif kind.__module__.startswith("fullgrad."):
            self._items(value.parts() if hasattr(kind, "parts") else (), depth)  # an operator made of functions
        elif not isinstance(value, Tensor) and kind.__module__.partition(".")[0] not in ("builtins", "torch"):
            reached = self._reached(kind, self.names)
            self._attributes(getattr(value, "__dict__", {}), reached, depth)
            for name in _slots_of(kind) & reached:
                if hasattr(value, name):
                    self._add(_Attributes(value), name, getattr(value, name), depth)
            self._class(kind, reached, depth)

    def _module(self, module: nn.Module, depth: int) -> None:
        """The parameters, buffers, parts and attributes that code names; those of a module of torch, and whether it trains."""
        kind = module.__class__
        is_torchs = _is_library(kind.__module__)
        has_torchs_forward = kind.forward is not nn.Module.forward and _is_library(getattr(kind.forward, "__module__", "") or "")
        names = self.names if is_torchs or id(module) in self.owners else self.names | {"forward"}
        reached = names if is_torchs else self._reached(kind, names)
        for space in (module._parameters, module._buffers, module._modules):
            for name in list(space):
                if is_torchs or has_torchs_forward or name in reached or ALL in reached:
                    self._add(space, name, space[name], depth)
        self.found.append((vars(module), "training", module.training))
        if not is_torchs:
            self._attributes(vars(module), reached - _OF_MODULES, depth)
            self._class(kind, reached, depth)

    def _function(self, function: types.FunctionType, depth: int) -> None:
        names = names_in(function.__code__)
        if not names.attributes <= self.names:
            self.names = self.names | names.attributes
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # a name that has no value yet
                continue
            if name not in names.assigned:
                self._add(cell, None, value, depth)
            elif value.__class__ not in _LEAVES:  # a counter of the function itself is no setting
                self._wait(value, depth - 1)
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(function, name):
                self._add(_Attributes(function), name, getattr(function, name), depth + 1)
        if not _is_installed(function.__module__ or ""):
            space = function.__globals__
            for name in names.globals:
                if name in space:
                    self._add(space, name, space[name], depth)
            if function.__dict__:
                self._attributes(function.__dict__, self.names, depth)

    def _reached(self, cls: type, names: frozenset[str]) -> frozenset[str]:
        reached = reached_by(cls, names)
        if not reached <= self.names:
            self.names = self.names | reached
        if self.at_first_look is None:
            self.at_first_look = self.names
        return reached

    def _class(self, cls: type, names: frozenset[str], depth: int) -> None:
        for base in cls.__mro__:
            if not _is_library(base.__module__):
                self._attributes(vars(base), names, depth)

    def _attributes(self, space: Mapping[str, Any], names: frozenset[str], depth: int) -> None:
        if self.at_first_look is None:
            self.at_first_look = self.names
        for name in list(space) if len(space) < len(names) or ALL in names else names:
            if (name in names or ALL in names) and name in space:
                self._add(space, name, space[name], depth)

    def _items(self, value: Any, depth: int) -> None:
        keys: Any = value if isinstance(value, Mapping) else range(len(value))
        if len(value) > _MOST:  # of data, such as a vocabulary, the numbers are not looked at
            is_data = {*map(type, value.values() if isinstance(value, Mapping) else value)} <= _DATA
            keys = () if is_data else [key for key in keys if value[key].__class__ not in _DATA]
        for key in keys:
            self._add(value, key, value[key], depth)

    def _add(self, holder: Any, key: Any, value: Any, depth: int) -> None:
        self.found.append((holder, key, value))
        self._wait(value, depth - 1)


class _Attributes:
    """The attributes of an object that are in no dict, such as its slots, as a holder has them."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner

    def __getitem__(self, name: str) -> Any:
        return getattr(self.owner, name, None)


@functools.lru_cache(maxsize=1024)
def _slots_of(cls: type) -> frozenset[str]:
    declared = [vars(base).get("__slots__", ()) for base in cls.__mro__]
    return frozenset([name for slots in declared for name in ((slots,) if isinstance(slots, str) else slots)])


_OF_MODULES = {*vars(nn.Module())} - {"training"}


_LIBRARIES = frozenset({*sys.stdlib_module_names, "torch", "numpy", "scipy", "fullgrad"}) - {"__main__"}


@functools.lru_cache(maxsize=4096)
def _is_library(module: str) -> bool:
    """Whether the code of a module is of Python, torch or of this package, and reads no variable of a user."""
    return module.partition(".")[0] in _LIBRARIES


def _is_installed(module: str) -> bool:
    """Whether the code of a module is of a package that is installed, whose globals no user changes."""
    return _is_library(module) or _is_in_site_packages(module.partition(".")[0])


@functools.lru_cache(maxsize=4096)
def _is_in_site_packages(package: str) -> bool:
    folders = Path(getattr(sys.modules.get(package), "__file__", None) or "").parts
    return "site-packages" in folders or "dist-packages" in folders


# --- Names in code --------------------------------------------------------------------------------------------------------


class Names(NamedTuple):
    """The names in code: globals that it reads, attributes of any object, methods among them, and variables that it assigns."""

    globals: tuple[str, ...]
    attributes: frozenset[str]
    assigned: frozenset[str]


# Code objects are compared by what they hold, which takes longer than to read them: they are known by identity, and kept.
_names: dict[int, tuple[types.CodeType, Names]] = {}


def names_in(code: types.CodeType) -> Names:
    """The names in code, and in the functions that it makes."""
    known = _names.get(id(code))
    if known is None:
        if len(_names) >= 10_000:
            _names.clear()
        known = _names[id(code)] = code, _read(code)
    return known[1]


_KINDS = {
    "LOAD_GLOBAL": 0, "LOAD_NAME": 0, "LOAD_ATTR": 1, "LOAD_METHOD": 1, "LOAD_SUPER_ATTR": 1, "STORE_DEREF": 2,
}  # fmt: skip
# Functions that take names as text, and what has everything.
_ASKING = frozenset({"getattr", "attrgetter", "vars", "methodcaller"})
_OF_ALL = frozenset({"__dict__", "parameters", "buffers", "modules", "children", "state_dict"})
_OF_ALL |= {"named_parameters", "named_buffers", "named_modules", "named_children"}


def _read(code: types.CodeType) -> Names:
    found: list[set[str]] = [set(), set(), set()]
    for instruction in dis.get_instructions(code):
        if instruction.opname in _KINDS:
            found[_KINDS[instruction.opname]].add(instruction.argval)
    inner = [names_in(c) for c in code.co_consts if isinstance(c, types.CodeType)]
    globals_, attributes, assigned = [names.union(*[n[i] for n in inner]) for i, names in enumerate(found)]
    if _ASKING & globals_ or _ASKING & attributes:
        attributes = attributes.union([c for c in code.co_consts if isinstance(c, str) and c.isidentifier()])
    if _OF_ALL & attributes or (any(i.opname == "BUILD_STRING" for i in dis.get_instructions(code)) and _ASKING & globals_):
        attributes = attributes | {ALL}
    return Names(tuple(sorted(globals_)), frozenset(attributes) | _CALLED, frozenset(assigned))


_reached: Any = weakref.WeakKeyDictionary()


def reached_by(cls: type, names: frozenset[str]) -> frozenset[str]:
    """The names of attributes that code reads, and those in the methods and properties of a class that are among them."""
    known = _reached.setdefault(cls, {})
    if names not in known:
        found, rest = set(), list(names)
        while rest:
            name = rest.pop()
            if name not in found:
                found.add(name)
                method = getattr(cls, name, None)
                method = getattr(method, "fget", getattr(method, "__func__", method))
                if isinstance(method, types.FunctionType) and not _is_library(method.__module__ or ""):
                    rest += names_in(method.__code__).attributes
        known[names] = frozenset(found)
    return known[names]
