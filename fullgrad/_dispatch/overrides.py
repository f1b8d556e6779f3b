"""``__torch_function__`` for the public functions: overrides of torch's functions apply to those of fullgrad too.

The public name of a function that takes tensors is a wrapper with the function's exact signature, which asks torch whether an
argument or a mode overrides it. Inside the package the functions are called without a wrapper: as with torch's composite
functions, an override sees the outer call only. The wrappers are generated text, since a generic one takes ten times as long;
the text is in `linecache`, so that tracebacks show it.

A wrapper also converts numbers of other packages, such as numpy's, to Python's, so that the functions see no others, and refuses
tensors of two devices by the names of the arguments.
"""

import functools
import inspect
import linecache
import numbers
import operator
import types
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Union, get_args, get_origin

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import handle_torch_function, has_torch_function_unary, has_torch_function_variadic

from fullgrad._dispatch.jagged import call_on_buffers, is_jagged
from fullgrad._dispatch.state import Moving
from fullgrad._dispatch.torch_private import (
    SCRIPT_HOOK,
    has_function_mode,
    is_compiling,
    no_torch_function,
    outside_dynamo,
    subclasses_override,
)

# The wrapper's own names begin with two underscores, so that parameters may have any name. Globals are faster than a closure,
# positions than keywords, and `is None` than torch's check of an argument.
_WRAPPER = """\
def {name}({parameters}):{refusal}{conversion}
    if {overrides}:
        return __overridden(__self, __function, {names}, ({tensors},), {arguments}){devices}
    return __by_position({values})
"""
_REFUSAL = """
    if __others:
        __refuse(__others)"""
_DEVICES = """
    if ({several}) and not ({on_cpu}):
        __on_one_device(__self, ({tensors},))"""
_CONVERSION = """
    if {unusual}:
        {numbers} = __plain_numbers({numbers})"""

_KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY
_Refuse = Callable[[str, Sequence[str]], Callable[[dict[str, Any]], None] | None]
_Target = TypeVar("_Target", bound=Callable[..., Any])


def make_overridable(module: types.ModuleType, public: str, refuse: _Refuse) -> None:
    """Replace the functions in ``__all__`` that take tensors by wrappers, which name ``public`` as their module.

    A function with two names has one wrapper. ``refuse`` makes, of the name of a function and its parameters, a function that
    refuses the keywords of a call that are none of them: words of other packages. None leaves them to Python.
    """
    wrappers: dict[Any, Any] = {}
    for name in module.__all__:
        function = getattr(module, name)
        if inspect.isfunction(function):
            if function not in wrappers:
                wrappers[function] = unscriptable(_wrapper(function, public, refuse))
            setattr(module, name, wrappers[function])


def is_override(value: Any) -> bool:
    """Whether an argument of ``apply`` overrides functions of torch and is no ordinary tensor: a node of `torch.fx`, a curve."""
    is_ordinary = isinstance(value, Tensor) and not isinstance(value, Moving)
    return not is_ordinary and hasattr(type(value), "__torch_function__") and has_torch_function_unary(value)


@functools.cache
def without_question(function: Any) -> Any:
    """A copy of a function of torch in Python that does not ask whether its arguments override it: the functions that it
    calls are asked instead.
    """
    function = inspect.unwrap(function)
    asks = {name: lambda *_: False for name in function.__globals__ if name.startswith("has_torch_function")}
    copy = types.FunctionType(
        function.__code__, {**function.__globals__, **asks}, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def overrides_in(*values: Any) -> list[Any]:
    """The arguments, and items of containers among them, for which `is_override` is true."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, (tuple, list)):
            found += overrides_in(*value)
        elif isinstance(value, dict):
            found += overrides_in(*value.values())
        elif is_override(value):
            found.append(value)
    return found


def unscriptable(target: _Target) -> _Target:
    """The function or module class, made to raise a helpful error under `torch.jit.script`, which would else complain about the
    first line that it cannot compile.
    """

    def refuse(module: Any = None) -> None:
        name = target.__name__ if module is None else type(module).__name__
        raise NotImplementedError(
            f"{name}: torch.jit.script, which torch has deprecated, cannot compile it: use torch.compile, torch.export or "
            f"torch.jit.trace, or call it outside of what is scripted."
        )

    setattr(target, SCRIPT_HOOK, refuse)
    return target


def _wrapper(function: Any, module: str, refuse: _Refuse) -> Any:
    """The public wrapper of a function; the function itself if it takes no tensors."""
    signature = inspect.signature(function).parameters.values()
    tensors = [p.name for p in signature if _may_be_tensor(p.annotation)]
    if not tensors:
        return function
    refusal = refuse(function.__name__, [p.name for p in signature])
    given_numbers = [p.name for p in signature if _may_be_number(p.annotation)]
    parameters = ["*" if p.kind is _KEYWORD_ONLY else p.name for p in signature]
    first = parameters.index("*") if "*" in parameters else len(parameters)
    named = [p.name for p in signature if p.kind is _KEYWORD_ONLY]
    optional = [p.name for p in signature if p.name in tensors[1:] and p.default is None]
    check = f"__has_override({', '.join(tensors)})"
    if len(optional) == len(tensors) - 1 > 0:
        check = f"__of_one({tensors[0]}) if {' and '.join(f'{t} is None' for t in optional)} else {check}"
    on_cpu = [f"(type({t}) in __plain and {t}.is_cpu)" for t in tensors]
    several = {
        "several": " or ".join(f"type({t}) not in __no_tensors" for t in tensors[1:]),
        "on_cpu": " and ".join(
            [on_cpu[0], *(f"(type({t}) in __no_tensors or {c})" for t, c in zip(tensors[1:], on_cpu[1:], strict=True))]
        ),
    }
    written = inspect.unwrap(function)  # a decorator takes keywords
    arguments = ", ".join([*parameters[:first], *(f"{name}={name}" for name in named)])
    conversion = {
        "unusual": " or ".join(f"type({name}) not in __usual" for name in given_numbers),
        "numbers": "".join(f"{name}, " for name in given_numbers).rstrip(" "),
    }
    text = {
        "name": function.__name__,
        "parameters": ", ".join([*parameters[:first], *["*"] * bool(named), *named, *["**__others"] * bool(refusal)]),
        "refusal": _REFUSAL if refusal else "",
        "conversion": _CONVERSION.format(**conversion) if given_numbers else "",
        "names": repr(tuple(parameters[:first])),
        "tensors": ", ".join(tensors),
        "overrides": check,
        "devices": _DEVICES.format(**several, tensors=", ".join(tensors)) if len(tensors) > 1 else "",
        "values": ", ".join(p.name for p in signature) if written is function else arguments,
        "arguments": arguments,
    }
    given = {
        "__function": function,
        "__by_position": _by_position(function) if written is function else function,
        "__of_one": has_torch_function_unary,
        "__has_override": has_torch_function_unary if len(tensors) == 1 else has_torch_function_variadic,
        "__overridden": _overridden,
        "__usual": _USUAL,
        "__no_tensors": _NO_TENSORS,
        "__plain": (Tensor, Parameter),
        "__on_one_device": _on_one_device,
        "__plain_numbers": _plain_numbers,
        "__refuse": refusal,
    }
    wrapper: Any = _executed(f"<{module}.{function.__name__}>", _WRAPPER.format(**text), {**given})[function.__name__]
    wrapper.__globals__["__self"] = wrapper
    for attribute in ("__defaults__", "__kwdefaults__", "__doc__", "__type_params__"):
        if hasattr(written, attribute):
            setattr(wrapper, attribute, getattr(written, attribute))
    if refusal:
        wrapper.__signature__ = inspect.signature(function)
    annotations = next(name for name in ("__annotate__", "__annotations__") if hasattr(function, name))
    setattr(wrapper, annotations, getattr(function, annotations))  # the first since Python 3.14
    wrapper.__module__, wrapper.__wrapped__ = module, function
    return wrapper


def _by_position(function: Any) -> Any:
    """The function with all parameters allowed by position."""
    code = function.__code__
    code = code.replace(co_argcount=code.co_argcount + code.co_kwonlyargcount, co_kwonlyargcount=0)
    return types.FunctionType(code, function.__globals__, function.__name__, None, function.__closure__)


def _executed(file: str, text: str, namespace: dict[str, Any]) -> dict[str, Any]:
    """The namespace after executing a text in it."""
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    exec(compile(text, file, "exec"), namespace)
    return namespace


def _may_be_tensor(annotation: Any) -> bool:
    """Whether an annotation is a tensor, or a union with one."""
    return Tensor in _types(annotation)


def _may_be_number(annotation: Any) -> bool:
    """Whether an annotation allows numbers or sequences of numbers."""
    kinds = [*_types(annotation)]
    kinds += [item for kind in kinds if get_origin(kind) in (tuple, list, Sequence) for item in get_args(kind)]
    return any(kind is int or kind is float for kind in kinds)


def _types(annotation: Any) -> tuple[Any, ...]:
    """The types of a union, or the only type."""
    is_union = get_origin(annotation) in (Union, types.UnionType)
    return get_args(annotation) if is_union else (annotation,)


# Types of arguments that need no conversion.
_USUAL = (float, int, Tensor, type(None), bool, Parameter, str, torch.SymInt, torch.SymFloat)

# Types of most arguments that could be tensors and are not.
_NO_TENSORS = (float, type(None), int, bool)


def _on_one_device(public: Any, tensors: tuple[Any, ...]) -> None:
    """Refuse tensors of two devices; a number on the CPU may stand next to others, as in torch."""
    devices = {value.device for value in tensors if isinstance(value, Tensor)}
    if len(devices) < 2:
        return
    names = [p.name for p in inspect.signature(public).parameters.values() if _may_be_tensor(p.annotation)]
    check_devices(public.__name__, names, tensors)


def check_devices(name: str, arguments: Sequence[str], values: Sequence[Any]) -> None:
    """Refuse tensors on another device than the first of them, by name. A number on the CPU may stand next to others."""
    first: tuple[str, torch.device] | None = None
    for argument, value in zip(arguments, values, strict=True):
        if isinstance(value, Tensor) and (value.ndim or not value.is_cpu):
            if first is None:
                first = argument, value.device
            elif value.device != first[1]:
                raise RuntimeError(
                    f"{name}: `{argument}` must be on the device of `{first[0]}`, which is {first[1]}, got one on "
                    f"{value.device}; move it with .to."
                )


def _plain_numbers(*values: Any) -> list[Any]:
    """The arguments with numbers of other packages as Python's, alone or in a tuple or list."""
    return [type(v)(map(_plain_number, v)) if type(v) in (tuple, list) else _plain_number(v) for v in values]


def _plain_number(value: Any) -> Any:
    if type(value) in _USUAL or isinstance(value, Tensor) or not _is_number(value):
        return value
    return outside_dynamo(_to_python)(value) if is_compiling() else _to_python(value)


def _to_python(value: Any) -> Any:
    """The value as a number of Python. Dynamo's tensor for an integer cannot be read inside a graph."""
    try:
        return operator.index(value)
    except TypeError:
        return float(value)


def _is_number(value: Any) -> bool:
    """Whether a value is a real number of any package, or an array of numpy with one; numpy's bools do not count."""
    if is_compiling():  # Dynamo traces numbers of numpy as tensors and hides their type
        return hasattr(value, "__float__")
    is_of_numpy = type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0
    return value.dtype.kind in "iuf" if is_of_numpy else isinstance(value, numbers.Real)


def _overridden(public: Any, function: Any, names: tuple[str, ...], tensors: tuple[Any, ...], *args: Any, **kwargs: Any) -> Any:
    """The call of a function with an overriding argument or mode, or with a jagged argument.

    An override sees the arguments that differ from the defaults, by position up to the first gap.
    """
    if not has_function_mode():
        if not subclasses_override() or all(overrides_nothing(type(t)) for t in tensors):
            _on_one_device(public, tensors)
            return function(*args, **kwargs)
        if any(is_jagged(t) for t in tensors) and all(is_jagged(t) or overrides_nothing(type(t)) for t in tensors):
            return call_on_buffers(public.__name__, function, names, args, kwargs, getattr(function, "last_dims", 0))
    defaults = function.__defaults__ or ()
    required = len(args) - len(defaults)
    given = [i for i, value in enumerate(args) if i < required or value is not defaults[i - required]]
    leading = next((i for i in range(len(args)) if i not in given), len(args))
    named = {names[i]: args[i] for i in given if i > leading}
    usual = function.__kwdefaults__ or {}
    named.update({name: value for name, value in kwargs.items() if name not in usual or value is not usual[name]})
    return handle_torch_function(public, tensors, *args[:leading], **named)


def overrides_nothing(kind: type) -> bool:
    """Whether a type does not override functions of torch: a plain subclass is treated as without a wrapper."""
    if kind is Tensor or kind is Parameter:
        return True
    override: Any = getattr(kind, "__torch_function__", None)
    return override is None or override is no_torch_function or getattr(override, "__func__", None) is _OF_TENSOR


_OF_TENSOR: Any = Tensor.__torch_function__.__func__  # pyright: ignore[reportFunctionMemberAccess]
