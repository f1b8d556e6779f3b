"""How the calls of other packages' classes are caught: while a scope is open, the code behind ``Function.apply`` is replaced.

Packages keep ``SomeFunction.apply`` in variables, so replacing an attribute would not reach them. The functions that run are
torch's, and their code can be replaced. While no scope is open, nothing is changed and nothing costs anything.

Up to torch 2.14 ``apply`` itself is such a function. Since 2.15 it is C code, which calls two: one that binds the arguments of a
class with a ``setup_context``, and inside transforms one that dispatches the call. While calls are caught, each caught class has
a ``setup_context``, and a call that is caught outside of transforms enters a level between the two.
"""

import inspect
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint

from fullgrad._dispatch import torch_private
from fullgrad._dispatch.state import forward_mode_is_on
from fullgrad._dispatch.torch_private import dispatch_modes, forward_ad, function_module, transforms_active


class Catcher:
    """The functions that decide about a call and run it; `fullgrad.adoption` sets them."""

    # Options with which a call of a class is caught, or None; the flag says whether a transform or forward mode is active.
    how: Callable[[type, bool], Any]
    call: Callable[[type, tuple[Any, ...], dict[str, Any], Any], Any]
    as_function: Callable[[type, Any], Any]  # for graphs
    # Whether the current thread or task adopts checkpoints, and a checkpoint.
    adopts_checkpoints: Callable[[], bool]
    checkpoint: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
    # Options with which a call of an operator is caught, or None; and such a call, with the options or without.
    how_operator: Callable[[Any], Any]
    call_operator: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], Any]


catcher = Catcher()
# The names that the replaced code finds in torch's module; `in_plain_code`: also catch calls where no transform is active.
_names: Any = types.SimpleNamespace(in_plain_code=False)
function_module._fullgrad = _names
_Function: Any = torch.autograd.Function
_IS_PYTHON = isinstance(_Function.__dict__["apply"], classmethod)  # up to torch 2.14


def _how(cls: type) -> Any:
    active = transforms_active() or forward_mode_is_on()
    return catcher.how(cls, active) if active or _names.in_plain_code else None


def _copy(function: Any) -> Any:
    """A copy of a function, with its present code."""
    return types.FunctionType(function.__code__, function.__globals__, function.__name__, None, function.__closure__)


if _IS_PYTHON:
    _torch_apply = _copy(_Function.apply.__func__)

    def _caught(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        how = _how(cls)
        return _torch_apply(cls, *args, **kwargs) if how is None else catcher.call(cls, args, kwargs, how)

    def _new_apply() -> Any:
        __class__ = _Function

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            _ = __class__  # torch's code has this variable, so must this
            if torch.compiler.is_dynamo_compiling():
                return cls.apply(*args, **kwargs)
            # The test of `_how` written out: this is the hot path of plain code.
            if _fullgrad.active() or _fullgrad.forward_ad._current_level >= 0 or _fullgrad.in_plain_code:  # pyright: ignore # noqa: F821
                return _fullgrad.caught(cls, args, kwargs)  # pyright: ignore # noqa: F821
            return _fullgrad.torch_apply(cls, *args, **kwargs)  # pyright: ignore # noqa: F821

        return apply

    _names.caught, _names.torch_apply, _names.active, _names.forward_ad = _caught, _torch_apply, transforms_active, forward_ad
    _exchanged = [(_Function.apply.__func__, _new_apply())]
else:
    _base: Any = torch_private.SingleLevelFunction
    _setup_context = _base.__dict__["setup_context"]
    _torch_bind, _torch_call = _copy(torch_private.bind_arguments), _copy(torch_private.call_in_transforms)

    class _CallState(threading.local):
        """The state of a call in C code: whether it has entered a level, and whether it must not be caught."""

        has_level = is_free = False

    _call_state = _CallState()

    class _SetupContext:
        """A stand-in for the ``setup_context`` that a class of the old style inherits."""

        def __get__(self, instance: Any, cls: Any) -> Any:
            return _setup_context.__func__ if cls is _base or _how(cls) is None else _bind

    def _bind(forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        if _call_state.is_free or not (transforms_active() or forward_mode_is_on() or _names.in_plain_code):
            _call_state.is_free = False  # what the class calls is caught again
            return _torch_bind(forward, args, kwargs)
        if not transforms_active():
            torch_private.enter_level()
            _call_state.has_level = True
        return args, kwargs or {}

    def _dispatch(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        if _call_state.has_level:
            torch_private.leave_level()
            _call_state.has_level = False
        how = _how(cls)
        if how is not None:
            return catcher.call(cls, args, kwargs or {}, how)
        if transforms_active():
            return _torch_call(cls, *_torch_bind(cls.forward, args, kwargs))
        _call_state.is_free = True
        return cls.apply(*args, **(kwargs or {}))

    _names.bind, _names.dispatch = _bind, _dispatch
    _exchanged = [
        (torch_private.bind_arguments, lambda f, args, kwargs: _fullgrad.bind(f, args, kwargs)),  # pyright: ignore # noqa: F821
        (torch_private.call_in_transforms, lambda c, args, kwargs: _fullgrad.dispatch(c, args, kwargs)),  # pyright: ignore # noqa: F821
    ]

# The other code has torch's file, which Dynamo skips: where a class breaks the graph, it would compile the other code, whose call
# for compiled code is the class's own once more.
_codes = [
    (function, function.__code__, other.__code__.replace(co_filename=function.__code__.co_filename))
    for function, other in _exchanged
]


def intercept(on: bool, in_plain_code: bool) -> None:
    """Start or stop catching calls."""
    _names.in_plain_code = in_plain_code
    for function, original, other in _codes:
        if (function.__code__ is original) is on:
            function.__code__ = other if on else original
    if not _IS_PYTHON:
        _base.setup_context = _SetupContext() if on else _setup_context


# --- Operators of torch.library -------------------------------------------------------------------------------------------

_overload, _packet = torch_private.operator_class, torch_private.operator_packet
_calls: dict[type, Any] = {kind: _copy(kind.__call__) for kind in (_overload, _packet)}
_of_torch: set[Any] = set()  # operators that are never caught
_lock = threading.RLock()
_catching: set[str] = set()  # who catches: "adopting" or "completing"


class _Running(threading.local):
    """The operator that is called for its value. Modes get the call and make it again, which must not be caught."""

    overload: Any = None


_running = _Running()


def operator_value(overload: Any, args: Any, kwargs: Any) -> Any:
    """The value of an operator, whose calls inside are not caught."""
    before, _running.overload = _running.overload, overload
    try:
        return call_operator(overload, args, kwargs)
    finally:
        _running.overload = before


def call_operator(op: Any, args: Any, kwargs: Any) -> Any:
    """The call as torch has it."""
    return _calls[_packet if isinstance(op, _packet) else _overload](op, *args, **kwargs)


def _operator_call(op: Any, args: Any, kwargs: Any) -> Any:
    if op in _of_torch:
        return call_operator(op, args, kwargs)
    overload = torch_private.overload_of(op, args, kwargs)
    if overload is None or not torch_private.is_custom(overload):
        if overload is not None:
            _of_torch.add(op)
        return call_operator(op, args, kwargs)
    how = None if overload is _running.overload else catcher.how_operator(overload)
    if how is None and (overload is _running.overload or "completing" not in _catching):
        return call_operator(op, args, kwargs)
    return catcher.call_operator(op, args, kwargs, how)


def _new_calls() -> Any:
    def overload(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if _fullgrad.active() or _fullgrad.forward_ad._current_level >= 0:  # pyright: ignore # noqa: F821
            return _fullgrad.operator(self, args, kwargs)  # pyright: ignore # noqa: F821
        return _fullgrad.overload_call(self, *args, **kwargs)  # pyright: ignore # noqa: F821

    def packet(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if _fullgrad.active() or _fullgrad.forward_ad._current_level >= 0:  # pyright: ignore # noqa: F821
            return _fullgrad.operator(self, args, kwargs)  # pyright: ignore # noqa: F821
        return _fullgrad.packet_call(self, *args, **kwargs)  # pyright: ignore # noqa: F821

    return overload, packet


_names.operator, _names.active, _names.forward_ad = _operator_call, transforms_active, forward_ad
_names.overload_call, _names.packet_call = _calls.values()
sys.modules["torch._ops"]._fullgrad = _names  # pyright: ignore[reportAttributeAccessIssue]
_operator_codes: list[Any] = [
    (kind.__call__, kind.__call__.__code__, new.__code__.replace(co_filename=kind.__call__.__code__.co_filename))
    for kind, new in zip(_calls, _new_calls(), strict=True)
]


def intercept_operators(who: str, on: bool) -> None:
    """Start or stop catching calls of operators."""
    with _lock:
        (_catching.add if on else _catching.discard)(who)
        for function, original, other in _operator_codes:
            if (function.__code__ is original) is bool(_catching):
                function.__code__ = other if _catching else original


# --- Checkpoints ----------------------------------------------------------------------------------------------------------

_checkpoint: Any = inspect.unwrap(torch.utils.checkpoint.checkpoint)
_torch_checkpoint = _copy(_checkpoint)
_torch_checkpoint.__kwdefaults__ = _checkpoint.__kwdefaults__


def _checkpoint_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if (transforms_active() or forward_mode_is_on()) and catcher.adopts_checkpoints():
        return catcher.checkpoint(function, args, kwargs)
    return _torch_checkpoint(function, *args, **kwargs)


torch.utils.checkpoint._fullgrad = _checkpoint_call  # pyright: ignore[reportAttributeAccessIssue]
_checkpoint_codes: Any = (
    _checkpoint.__code__,
    (lambda function, *args, **kwargs: _fullgrad(function, args, kwargs)).__code__,  # pyright: ignore # noqa: F821
)


def intercept_checkpoints(on: bool) -> None:
    """Start or stop catching calls of torch.utils.checkpoint."""
    _checkpoint.__code__ = _checkpoint_codes[on]


# --- Functions of torch that call a compiler ------------------------------------------------------------------------------

_function_codes: list[Any] = []
_functions: dict[str, Any] = {}


def may_be_differentiated() -> bool:
    """Whether a transform is active, or a derivative may be taken of what is computed now and no tracer keeps operators."""
    if transforms_active() or forward_mode_is_on():
        return True
    # An export traces above autograd, where its mode is not among those that are counted.
    return torch.is_grad_enabled() and not (dispatch_modes() or torch_private.is_compiling() or torch_private.is_recorded())


def torch_function(name: str) -> Any:
    """torch's own function, while another one is called in its place."""
    return _functions[name]


def _instead(*args: Any, **kwargs: Any) -> Any:
    if not torch.compiler.is_dynamo_compiling():
        return _fullgrad.call(*args, **kwargs)  # pyright: ignore # noqa: F821
    if _fullgrad.active():  # pyright: ignore # noqa: F821
        return _fullgrad.other(*args, **kwargs)  # pyright: ignore # noqa: F821
    return _fullgrad.own(*args, **kwargs)  # pyright: ignore # noqa: F821


def intercept_functions(others: dict[str, Callable[..., Any]], on: bool) -> None:
    """Start or stop calling others in place of torch's functions in Python, by name, where a derivative may be taken."""
    if on and not _function_codes:
        for name, function in torch_private.python_functions().items():
            if name in others:
                original = function.__code__
                function.__globals__["_fullgrad"] = _names_of(name, function, others[name])
                other = _instead.__code__.replace(co_filename=original.co_filename, co_name=name)
                _function_codes.append((function, original, other))
    for function, original, other in _function_codes:
        function.__code__ = other if on else original
    torch_private.forget_signatures([function for function, *_ in _function_codes])


def _names_of(name: str, function: Any, other: Callable[..., Any]) -> Any:
    """The functions that the replaced code calls. Compiled code without a transform keeps torch's operators."""
    own = _functions[name] = _copy(function)
    own.__defaults__, own.__kwdefaults__ = function.__defaults__, function.__kwdefaults__

    def call(*args: Any, **kwargs: Any) -> Any:
        # A compiled function that is called under a transform would have the code of the other compiled.
        return torch_private.outside_dynamo(other)(*args, **kwargs) if may_be_differentiated() else own(*args, **kwargs)

    return types.SimpleNamespace(own=own, other=other, call=call, active=transforms_active)
