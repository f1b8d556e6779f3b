"""Whether the names of modules, classes and namespaces that `adopting` gets are of something."""

import contextlib
import difflib
import importlib.util
import pkgutil
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from fullgrad._dispatch import operator_names

_known: set[str] = set()  # names that were found, which a context opened often asks for


def check_names(names: Iterable[str]) -> None:
    """Refuse a name that is of nothing: no module that is imported or can be found, no class, no namespace of operators.

    What is not imported yet is looked up by its first part, since more would import it.
    """
    for name in names:
        if name not in _known and not _is_named(name) and operator_names() is not None:
            close = difflib.get_close_matches(name, sorted({*_candidates(name)}), cutoff=0.7)
            raise ValueError(
                f"adopting: {name!r} is no module, class or namespace of operators that is imported or could be"
                f"{f'; did you mean {close[0]!r}?' if close else '.'} Names are those of imports, as in `import NAME`."
            )
        _known.add(name)


def note(name: str) -> None:
    """Remember the name of a module or class that was given itself."""
    _known.add(name)


def _is_named(name: str) -> bool:
    """Whether a name is of something."""
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        module = sys.modules.get(".".join(parts[:n]))
        if module is not None and _has(module, parts[n:]):
            return True
    if parts[0] not in sys.modules and _can_be_found(parts[0]):
        return True
    # A class may name another module than the one that has it, and operators have namespaces.
    return any(f"{own}.".startswith(f"{name}.") for own in _of_functions_and_operators())


def _has(module: types.ModuleType, rest: list[str]) -> bool:
    """Whether a module has an attribute, or a part that is not imported yet."""
    value: Any = module
    for i, part in enumerate(rest):
        if part == "<locals>":  # of a function, whose classes exist while it runs
            return True
        if not hasattr(value, part):
            return not i and hasattr(module, "__path__") and _can_be_found(f"{module.__name__}.{part}")
        value = getattr(value, part)
    return True


def _can_be_found(name: str) -> bool:
    with contextlib.suppress(ImportError, ValueError, AttributeError):
        return importlib.util.find_spec(name) is not None
    return False


def _of_functions_and_operators() -> Iterator[str]:
    waiting: list[type] = [torch.autograd.Function]
    while waiting:
        found = waiting.pop().__subclasses__()
        waiting += found
        yield from [f"{cls.__module__}.{cls.__qualname__}" for cls in found]
    yield from operator_names() or ()


def _candidates(name: str) -> Iterator[str]:
    """The names that a wrong one may mean: those as deep as it."""
    depth = name.count(".") + 1
    for known in (*sys.modules, *_of_functions_and_operators()):
        parts = known.split(".")
        if not any(part.startswith("_") for part in parts[:depth]):
            yield ".".join(parts[:depth])
    parent = name.rpartition(".")[0]
    if not parent:
        yield from [found.name for found in pkgutil.iter_modules()]  # that are installed
    elif parent in sys.modules:
        parts = pkgutil.iter_modules(getattr(sys.modules[parent], "__path__", ()))
        yield from [f"{parent}.{own}" for own in (*vars(sys.modules[parent]), *[found.name for found in parts])]
