"""The objects that functions hold: those that their code reaches without being given them, and the places where it finds them.

There is one walk, `places`. What a function holds, and which numbers it reads, are loops over it.
"""

import collections
import contextlib
import functools
import threading
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fullgrad._dispatch import below_transforms, dynamo_is_imported, level_of, repair_folded
from fullgrad._engine.names import ALL, CALLED, is_installed, is_library, names_in, reached_by

_DEPTH = 8  # of objects in objects
_MOST = 64  # numbers in a container
_OBJECTS = 4_096  # in all, the nearest ones
_CACHED = type(functools.cache(len))
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
    names = CALLED
    while True:
        walk = _Walk(names)
        walk.run(functions)
        if walk.at_first_look in (None, walk.names):  # all names were known where attributes were looked for
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


def tensors_held(*functions: Any) -> list[Tensor]:
    """The tensors that functions hold, those of modules among them, each once."""
    return list({id(t): t for *_, t in tensor_places(functions)}.values())


class StandIns:
    """Other tensors for those that functions hold: the inputs of a graph while it is traced."""

    def __init__(self, functions: Sequence[Any], tensors: Sequence[Tensor], others: Sequence[Tensor]) -> None:
        self.functions, self.pairs = functions, [*zip(tensors, others, strict=True)]

    def original(self, tensor: Tensor) -> Tensor | None:
        """The tensor in whose place one stands."""
        return next((t for t, other in self.pairs if other is tensor), None)

    @contextlib.contextmanager
    def standing(self) -> Iterator[None]:
        """A context in which they are where the functions hold the tensors."""
        new = {id(t): other for t, other in self.pairs}
        changed = [(holder, key, t) for holder, key, t in tensor_places(self.functions) if id(t) in new]
        before, _now.stand_ins = _now.stand_ins, self
        try:
            for holder, key, t in changed:
                put(holder, key, new[id(t)])
            yield
        finally:
            _now.stand_ins = before
            for holder, key, t in changed:
                put(holder, key, t)


class _Now(threading.local):
    stand_ins: StandIns | None = None


_now = _Now()


def stand_ins_now() -> StandIns | None:
    """The stand-ins of the graph that is traced in this thread."""
    return _now.stand_ins


def tensor_places(functions: Iterable[Any]) -> list[Place]:
    """The places of tensors, where others can stand, in functions and in modules that they hold, with all parts of these."""
    found = [p for p in places(*functions) if isinstance(p[2], Tensor) and not isinstance(p[0], (tuple, _Attributes))]
    modules = {id(part): part for m in held(*functions)[0] for part in m.modules()}.values()
    spaces = [space for m in modules for space in (m._parameters, m._buffers)]
    found += [(space, name, t) for space in spaces for name, t in space.items() if isinstance(t, Tensor)]
    return list({(id(holder), key): (holder, key, t) for holder, key, t in found}.values())


def put(holder: Any, key: Any, value: Any) -> None:
    if key is None:
        holder.cell_contents = value
    else:
        holder[key] = value


def generators_in(functions: Iterable[Any], found: Iterable[Place]) -> list[torch.Generator]:
    """The random generators of the user among functions and what was found in their places."""
    values = (*functions, *[value for *_, value in found])
    return list({id(v): v for v in values if isinstance(v, torch.Generator)}.values())


def has_compiled_code(functions: Iterable[Any], found: Iterable[Place]) -> bool:
    """Whether the user has compiled one of some functions, or something in their places."""
    return any(map(is_compiled, (*functions, *[value for *_, value in found])))


def calls_compiled_code(*functions: Any) -> bool:
    """Whether functions call code that the user has compiled; those of installed packages, too, whose globals are no `places`."""
    if not dynamo_is_imported():
        return False
    plain = [getattr(f, "__func__", f) for f in functions]
    own = [f.__globals__.get(name) for f in plain if isinstance(f, types.FunctionType) for name in f.__code__.co_names]
    return has_compiled_code((*plain, *own), places(*plain))


def is_compiled(value: Any) -> bool:
    """Whether the user has compiled a module or a function."""
    if isinstance(value, nn.Module):
        return getattr(value, "_compiled_call_impl", None) is not None or "_orig_mod" in value._modules
    return isinstance(value, types.FunctionType) and "_torchdynamo_orig_callable" in vars(value)


def is_globals(holder: Any) -> bool:
    """Whether the holder of a place is the globals of a module."""
    return holder.__class__ is dict and "__builtins__" in holder


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
    return all([v.__class__ is types.ModuleType and is_installed(v.__name__) for v in found])  # noqa: C419


def _fold(module: nn.Module) -> None:
    """Let a function that `torch.func.linearize` returned compute its constants now, and not in its first call: they would belong
    to the transforms of that call, and be other tensors than before it.
    """
    own = vars(module)
    if "has_folding_been_run" in own and not own.get("_fullgrad_repaired"):
        repair_folded(module)
        own["_fullgrad_repaired"] = True
    if own.get("has_folding_been_run") is False:
        part = vars(module)["_modules"].get("const_subgraph_module")
        constants = [*vars(part).values(), *part._buffers.values(), *part._parameters.values()] if part is not None else []
        has_levels = any(level_of(t) for t in constants if isinstance(t, Tensor))
        module.run_folding() if has_levels else below_transforms(module.run_folding)  # pyright: ignore


class _Walk:
    """The places that were found, for code that reads attributes of some names, to which those of the code are added."""

    def __init__(self, names: frozenset[str]) -> None:
        self.found: list[Place] = []
        self.seen: dict[int, Any] = {}  # which are kept, so that no other object gets the identity of one
        self.names, self.at_first_look = names, None
        self.owners: set[int] = set()  # of methods, whose code says what it reads; another module is called
        self.waiting: collections.deque[tuple[Any, int]] = collections.deque()

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
            if not is_installed(value.__name__):
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
        _fold(module)
        kind = module.__class__
        is_torchs = is_library(kind.__module__)
        has_torchs_forward = kind.forward is not nn.Module.forward and is_library(getattr(kind.forward, "__module__", "") or "")
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
        if not is_installed(function.__module__ or ""):
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
            if not is_library(base.__module__):
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
