"""How the calls of other packages' classes are caught: while a scope is open, the code behind ``Function.apply`` is another.

Packages keep ``SomeFunction.apply`` in variables, so no attribute can be replaced. The functions that run then are torch's, and
their code can. Outside of a scope nothing is changed, and nothing costs anything.

Up to torch 2.14 ``apply`` itself is such a function. Since 2.15 it is C code, which calls two: one that binds the arguments of a
class with a ``setup_context``, and inside transforms one that dispatches the call. While a scope is open, each adopted class has a
``setup_context``, and what is caught outside of transforms (forward mode, ``strict``) enters a level for the way between the two.
"""

import threading
import types
from collections.abc import Callable
from typing import Any

import torch

from fullgrad._dispatch import enter_level, forward_mode_is_on, function_module, leave_level, transforms_active

_Function: Any = torch.autograd.Function
_IS_PYTHON = isinstance(_Function.__dict__["apply"], classmethod)  # up to torch 2.14
_strict = False  # whether an open scope catches calls in plain eager code, too
options_for: Callable[[type], Any] = lambda cls: None  # noqa: E731  `_adopt` puts the real functions here
adopted: Callable[..., Any] = lambda *args: None  # noqa: E731


def _options(cls: type) -> Any:
    """The options with which a call that is made now is caught, or None."""
    active = transforms_active() or forward_mode_is_on()
    options = options_for(cls) if active or _strict else None
    return options if options is not None and (active or options.strict) else None


def _caught(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    options = _options(cls)
    return _not_caught(cls, args, kwargs or {}) if options is None else adopted(cls, args, kwargs or {}, options)


def _copy(function: Any) -> Any:
    """A function with the code that a function has now."""
    return types.FunctionType(function.__code__, function.__globals__, function.__name__, None, function.__closure__)


if _IS_PYTHON:
    _torch_apply = _copy(_Function.apply.__func__)

    def _not_caught(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return _torch_apply(cls, *args, **kwargs)

    def _new_apply() -> Any:
        __class__ = _Function

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            _ = __class__  # torch's code has this variable, so must this
            if torch.compiler.is_dynamo_compiling():
                return cls.apply(*args, **kwargs)
            return _fullgrad_caught(cls, args, kwargs)  # pyright: ignore # noqa: F821

        return apply

    function_module._fullgrad_caught = _caught
    _exchanged = [(_Function.apply.__func__, _new_apply())]
else:
    _base: Any = function_module._SingleLevelFunction
    _setup_context = _base.__dict__["setup_context"]
    _torch_bind, _torch_call = _copy(function_module._bind_default_args), _copy(function_module._call_custom_function_call)

    class _Way(threading.local):
        """The way of a call through C code: whether it has entered a level, and whether it shall not be caught."""

        has_level = is_free = False

    _way = _Way()

    class _SetupContext:
        """In place of the method that a class of the old style inherits."""

        def __get__(self, instance: Any, cls: Any) -> Any:
            return _setup_context.__func__ if cls is _base or _options(cls) is None else _bind

    def _bind(forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        if _way.is_free or not (transforms_active() or forward_mode_is_on() or _strict):
            return _torch_bind(forward, args, kwargs)
        if not transforms_active():
            enter_level()
            _way.has_level = True
        return args, kwargs or {}

    def _dispatch(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        if _way.has_level:
            leave_level()
            _way.has_level = False
        return _caught(cls, args, kwargs)

    def _not_caught(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if transforms_active():
            return _torch_call(cls, *_torch_bind(cls.forward, args, kwargs))
        _way.is_free = True
        try:
            return cls.apply(*args, **kwargs)
        finally:
            _way.is_free = False

    function_module._fullgrad_bind, function_module._fullgrad_dispatch = _bind, _dispatch
    _exchanged = [
        (function_module._bind_default_args, lambda f, args, kwargs: _fullgrad_bind(f, args, kwargs)),  # pyright: ignore # noqa: F821
        (function_module._call_custom_function_call, lambda c, args, kwargs: _fullgrad_dispatch(c, args, kwargs)),  # pyright: ignore # noqa: F821
    ]

_codes = [(function, function.__code__, other.__code__) for function, other in _exchanged]


def intercept(on: bool, strict: bool) -> None:
    """Catch calls, or no longer."""
    global _strict
    _strict = strict
    for function, original, other in _codes:
        if (function.__code__ is original) is on:
            function.__code__ = other if on else original
            if not _IS_PYTHON:
                _base.setup_context = _SetupContext() if on else _setup_context
