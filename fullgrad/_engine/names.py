"""`names_in`: the names of globals and attributes that code reads, and whose code it is."""

import dis
import functools
import sys
import types
import weakref
from pathlib import Path
from typing import Any, NamedTuple

ALL = "*"  # a name for all names, of code that asks for attributes by other means
CALLED = frozenset({"__call__"})
_LIBRARIES = frozenset({*sys.stdlib_module_names, "torch", "numpy", "scipy", "fullgrad"}) - {"__main__"}


@functools.lru_cache(maxsize=4096)
def is_library(module: str) -> bool:
    """Whether the code of a module is of Python, torch or of this package, and reads no variable of a user."""
    return module.partition(".")[0] in _LIBRARIES


def is_installed(module: str) -> bool:
    """Whether the code of a module is of a package that is installed, whose globals no user changes."""
    return is_library(module) or _is_in_site_packages(module.partition(".")[0])


@functools.lru_cache(maxsize=4096)
def _is_in_site_packages(package: str) -> bool:
    folders = Path(getattr(sys.modules.get(package), "__file__", None) or "").parts
    return "site-packages" in folders or "dist-packages" in folders


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
    return Names(tuple(sorted(globals_)), frozenset(attributes) | CALLED, frozenset(assigned))


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
                if isinstance(method, types.FunctionType) and not is_library(method.__module__ or ""):
                    rest += names_in(method.__code__).attributes
        known[names] = frozenset(found)
    return known[names]
