"""Objects that record numbers, also while compiled graphs run, which take numbers and words alone as arguments.

A graph refers to an object by its key and to a function by its name, and records by an effect that it never drops.
"""

import itertools
import secrets
import uuid
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import effect, is_tracing, mark_for_dynamo


class Recorder:
    """An object with a method ``put(field, value)``. One created inside a compiled graph has no key: its record would be lost."""

    def __init__(self) -> None:
        self.key: int | None = None
        if not torch.compiler.is_dynamo_compiling():
            self.key = next(_KEYS)
            _RECORDERS[self.key] = self

    def put(self, field: str, value: Tensor) -> None:
        """Record a value, to be read later."""
        raise NotImplementedError


# The objects to which compiled graphs refer by key, as long as others use them.
_RECORDERS: weakref.WeakValueDictionary[int, Recorder] = weakref.WeakValueDictionary()
# From a random start: a graph that outlives the process must not find another's object.
_KEYS = itertools.count(secrets.randbits(61) + 2)


def record(value: Tensor, recorder: Recorder | int, field: str) -> None:
    """Record a plain tensor below all transforms: in the object or, while torch traces, in the graph."""
    if isinstance(recorder, Recorder):
        recorder.put(field, value)
        if not is_tracing():
            return
        recorder = recorder.key  # pyright: ignore[reportAssignmentType]  # made outside of compiled code
    _put(value, recorder, field)


@effect("fullgrad::record_scale")
def _put(value: Tensor, key: int, field: str) -> None:
    """Record a value when a graph runs."""
    recorder = _RECORDERS.get(key)
    if recorder is not None:
        recorder.put(field, value.clone())  # compiled code reuses its memory


def for_graph(recorder: Recorder | int | None) -> Any:
    """An object as an argument of an operator: in compiled code its key, None where it has none."""
    return recorder.key if torch.compiler.is_dynamo_compiling() and isinstance(recorder, Recorder) else recorder


def function_for_graph(function: Any) -> Any:
    """A function as an argument of an operator: in compiled code a name."""
    return _name_of(function) if torch.compiler.is_dynamo_compiling() and callable(function) else function


def function_of(name: Any) -> Any:
    """The function of a name; anything else as it is."""
    return _FUNCTIONS.get(name, name) if isinstance(name, str) else name


# Functions that compiled code calls, by their names in its graph.
_FUNCTIONS: dict[str, Any] = {}
_PROCESS = uuid.uuid4().hex


def _name_of(function: Any) -> str:
    # torch caches graphs on disk: another process, or another function at the same address, must not find this name in one.
    name = f"function {id(function)} of {_PROCESS}"
    _FUNCTIONS[name] = function
    return name


mark_for_dynamo(torch.compiler.assume_constant_result, _name_of)


def found_for_graph(find: Callable[..., Recorder], *words: str) -> Any:
    """``find(*words)`` as an argument of an operator: in compiled code its key."""
    return _key_found(find, *words) if torch.compiler.is_dynamo_compiling() else find(*words)


def _key_found(find: Callable[..., Recorder], *words: str) -> Any:
    return find(*words).key


mark_for_dynamo(torch.compiler.assume_constant_result, _key_found)
