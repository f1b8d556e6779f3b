"""Modes of torch functions that look at the code of an operator: what they are told, and what they tell."""

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling
from torch.nn.modules.module import register_module_parameter_registration_hook


class _Watching(threading.local):
    """The modes of this thread that look at functions of torch, and see nothing of an operator's results."""

    def __init__(self) -> None:
        self.modes: list[Any] = []


_now = _Watching()


@contextlib.contextmanager
def watching(mode: Any) -> Iterator[None]:
    """A context in which a mode's ``add`` is told what operators made of functions return, and which parameters modules get."""
    _watch_parameters()
    _now.modes.append(mode)
    try:
        yield
    finally:
        _now.modes.pop()


def is_watched() -> bool:
    """Whether a mode looks at the present code."""
    return bool(_now.modes)


@functools.cache
def _watch_parameters() -> None:
    register_module_parameter_registration_hook(_registered)


def _registered(module: nn.Module, name: str, parameter: Any) -> None:
    if not is_dynamo_compiling() and parameter is not None:
        shown([parameter])


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """A context for code inside an operator, below all transforms, at which the modes do not look."""
    before, _now.modes = _now.modes, []
    try:
        with _not_looking(before):
            yield
    finally:
        _now.modes = before


@contextlib.contextmanager
def _not_looking(modes: Sequence[Any]) -> Iterator[None]:
    looked = [mode.looks for mode in modes]
    for mode in modes:
        mode.looks = False
    try:
        yield
    finally:
        for mode, looks in zip(modes, looked, strict=True):
            mode.looks = looks


def seen(tensors: Sequence[Tensor], outside: Any = None) -> Sequence[Tensor]:
    """Tensors as the modes have them, or as those outside of one mode have them: for an operator, into which they do not look."""
    if not _now.modes:
        return tensors
    modes = _now.modes[: _now.modes.index(outside)] if outside in _now.modes else _now.modes
    for i in reversed(range(len(modes))):  # as in a call of a function of torch, the innermost one first, which those outside see
        with _not_looking(modes[i:]):
            tensors = modes[i].replaced(list(tensors))
    return tensors


def shown(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors that an operator made, of which the modes are told."""
    if _now.modes:
        for mode in _now.modes:
            mode.add(tensors)
    return list(tensors)
