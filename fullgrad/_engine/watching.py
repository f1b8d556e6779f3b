"""Modes of torch functions that look at the code of an operator: what they are told, and what they tell."""

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from fullgrad._dispatch import (
    Moving,
    are_differentiated,
    current,
    current_level,
    is_computed_since,
    level_of,
    sees_functions,
    sequence_number,
    transforms_active,
    watchers,
)


class _Watching(threading.local):
    """The modes of this thread that look at functions of torch, and see nothing of an operator's results."""

    def __init__(self) -> None:
        self.modes: list[Any] = []
        self.in_operator = False  # which a mode has been told of


_now = _Watching()


@contextlib.contextmanager
def watching(mode: Any) -> Iterator[None]:
    """A context in which a mode is told of operators, which are no functions of torch, and which parameters modules get."""
    _watch_parameters()
    _now.modes.append(mode)
    before, _now.in_operator = _now.in_operator, False
    watchers.append(_watched)
    try:
        yield
    finally:
        watchers.pop()
        _now.in_operator = before
        _now.modes.pop()


def _watched(call: Callable[[Any], Any], args: tuple[Any, ...]) -> Any:
    """A call of an operator, with its arguments as the modes have them; they are told of its results."""
    if _now.in_operator or not (_now.modes and sees_functions(_now.modes[-1])):
        return call(args)
    args = tuple(seen(args))
    _now.in_operator = True
    try:
        result = call(args)
    finally:
        _now.in_operator = False
    shown(result if isinstance(result, tuple) else [result])
    return result


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


_CONSTANTS = frozenset({int, float, bool, str, type(None)})


class Watch(TorchFunctionMode):
    """Replaces tensors in a call, and asks its owner, by ``met``, about those that were neither given nor made in it."""

    def __init__(
        self, owner: Any, given: Sequence[Tensor], others: Sequence[tuple[Tensor, Tensor]] = (), function: Any = None
    ) -> None:
        super().__init__()
        self.owner, self.level, self.looks = owner, current_level(), True
        self.start, self.curves = sequence_number(), current.curves
        self.others = {id(t): (t, value) for t, value in others}
        self.used = {id(value) for t, value in others if t is value}  # values in whose places tensors were
        self.own: dict[int, Any] = {}
        self.function = function  # of a derivative
        self.held: dict[int, Tensor] | None = None  # by it, once the owner asks
        self.add(given)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.looks or _is_query(function):  # also of tensors below transforms
            return function(*args, **(kwargs or {}))
        own = self.own
        # Most arguments are the call's own tensors, or constants. A solver comes here in each operation.
        given = [v if v.__class__ in _CONSTANTS or ((ref := own.get(id(v))) and ref() is v) else self.replaced(v) for v in args]
        result = function(*given, **self.replaced(kwargs)) if kwargs else function(*given)
        self.add(result)
        return result

    def add(self, value: Any) -> None:
        """Add tensors that were given or made in the call."""
        if isinstance(value, Tensor):
            self.own[id(value)] = weakref.ref(value)
        elif isinstance(value, (tuple, list)):
            for v in value:
                self.add(v)

    def replaced(self, value: Any) -> Any:
        """A value with other tensors in the places of those that are replaced."""
        if isinstance(value, Tensor):
            ref = self.own.get(id(value))
            return value if ref is not None and ref() is value else self._foreign(value)
        if value.__class__ in (tuple, list):
            return value.__class__([self.replaced(v) for v in value])
        if value.__class__ is dict:
            return {k: self.replaced(v) for k, v in value.items()}
        return value

    def _foreign(self, tensor: Tensor) -> Tensor:
        if id(tensor) in self.others:
            value = self.others[id(tensor)][1]
            self.used.add(id(value))
            return value
        if isinstance(tensor, Moving) and tensor.call > self.curves:  # of a call along curves inside the function
            return tensor
        # As the modes outside have it, which may replace it by one of the present level.
        value = seen([tensor], outside=self)[0]
        return self.owner.met(tensor, value, self)

    def matters(self, tensor: Tensor) -> bool:
        """Whether a tensor needs a derivative, or belongs to a transform that was active at the start."""
        if is_computed_since(self.start, tensor):  # by code that is no function of torch, such as a transform or a Function
            return False
        level = level_of(tensor)
        if level > self.level:  # of a transform inside the function, if one is active
            if not transforms_active():
                raise RuntimeError(self.owner.message())
            return False
        return level > 0 or any(are_differentiated([tensor]))  # also under no_grad, as kernels are called


def _is_query(function: Any) -> bool:
    """Whether a function of torch tells about a tensor, such as its dtype, and returns none."""
    if function.__name__ == "__get__":
        return function.__self__.__name__ not in ("T", "mT", "H", "mH", "real", "imag", "grad", "data")
    return function.__name__ in ("is_inference", "_is_zerotensor")
