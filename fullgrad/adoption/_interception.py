"""How the calls of other packages' classes are caught: while a scope is open, the code of ``Function.apply`` is another.

Packages keep ``SomeFunction.apply`` in variables, so no attribute can be replaced. The function behind them is torch's, and its
code can. Outside of a scope nothing is changed, and nothing costs anything.
"""

import types
from collections.abc import Callable
from typing import Any

import torch

from fullgrad._dispatch import forward_mode_is_on, function_module, transforms_active

_Function: Any = torch.autograd.Function
_apply = _Function.__dict__["apply"]
_IS_PYTHON = isinstance(_apply, classmethod)  # up to torch 2.14


def _copy(function: Any) -> Any:
    """A function with the code that a function has now."""
    return types.FunctionType(function.__code__, function.__globals__, function.__name__, None, function.__closure__)


class _Handler:
    """What a caught call asks: `fullgrad.adoption._adopt` fills it in."""

    options_for: Callable[[type], Any]
    call: Callable[..., Any]


handler = _Handler()
strict_scopes = 0  # open ones, which catch calls in plain eager code, too


def _caught(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if transforms_active() or forward_mode_is_on() or strict_scopes:
        options = handler.options_for(cls)
        if options is not None and (not strict_scopes or options.strict or transforms_active() or forward_mode_is_on()):
            return handler.call(cls, args, kwargs, options)
    return _torch_apply(cls, *args, **kwargs)


def _replacement() -> types.CodeType:
    __class__ = _Function

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        _ = __class__  # torch's code has this variable, so must this
        if torch.compiler.is_dynamo_compiling():
            return cls.apply(*args, **kwargs)
        return _fullgrad_caught(cls, args, kwargs)  # pyright: ignore # noqa: F821

    return apply.__code__


_torch_apply: Any = _copy(_apply.__func__) if _IS_PYTHON else None
_original, _new = (_apply.__func__.__code__, _replacement()) if _IS_PYTHON else (None, None)
function_module._fullgrad_caught = _caught


def intercept(on: bool) -> None:
    """Catch calls, or no longer."""
    if not _IS_PYTHON:
        raise NotImplementedError(f"fullgrad.adopting does not know torch {torch.__version__}, whose Function.apply is C code.")
    _apply.__func__.__code__ = _new if on else _original
