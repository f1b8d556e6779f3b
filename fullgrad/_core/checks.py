"""Checks of arguments that several operators share. Their error messages have one form: name, rule, value found.

Public functions call the checks before the operator, so that nothing is recorded when one fails, also under ``torch.compile`` and
``vmap``.

A number in compiled code may depend on data. It is a symbol then, which has the class float since torch 2.15, and its comparisons
are not bools: a fast path asks whether a comparison ``is True``, and `holds` decides about the others.
"""

import inspect
import math
import operator
import types
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import can_look, holds, is_tracing, perhaps, same_shape

_FLOAT32, _INFINITY = torch.float32, math.inf
_COMPLEX = {torch.complex32, torch.complex64, torch.complex128}
# A quantized tensor has no gradient, and few of torch's functions take it.
_QUANTIZED = {torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4}
_NOT_REAL = frozenset({torch.bool} | _COMPLEX | _QUANTIZED)


def tensor(name: str, argument: str, value: Any) -> None:
    """A tensor of any kind."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: `{argument}` must be a tensor, got {_type(value)}{_as_tensor(value)}.")


def real_tensor(name: str, argument: str, value: Any) -> None:
    """A tensor of real numbers: integer or floating, neither bool nor complex nor quantized."""
    # This is the hot path: the first half of each condition saves the time of the second.
    if type(value) is not Tensor and not isinstance(value, Tensor):
        tensor(name, argument, value)
    if value.dtype is not _FLOAT32 and value.dtype in _NOT_REAL:
        raise TypeError(f"{name}: `{argument}` must be a real tensor, got dtype {value.dtype}.")


def floating_tensor(name: str, argument: str, value: Any) -> None:
    """A floating tensor."""
    real_tensor(name, argument, value)
    if not value.is_floating_point():
        raise TypeError(f"{name}: `{argument}` must be a floating tensor, got dtype {value.dtype}.")


def function(name: str, argument: str, value: Any) -> None:
    """A callable."""
    if not callable(value):
        raise TypeError(f"{name}: `{argument}` must be a function, got {_type(value)}.")


def callables(name: str, **values: Any) -> None:
    """Functions or other objects that are called, such as modules."""
    for argument, value in values.items():
        if not callable(value):
            raise TypeError(f"{name}: `{argument}` must be callable, got {_type(value)}.")


def like(name: str, value: Any) -> None:
    """A function that returns empty tensors, or None."""
    if value is not None and not callable(value):
        raise TypeError(f"{name}: `like` must be callable or None, got {_type(value)}.")


def choice(name: str, argument: str, value: Any, choices: Iterable[str | None]) -> None:
    """One of several strings."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name}: `{argument}` must be one of {', '.join(map(repr, choices))}, got {value!r}.")


def real_number_or_tensor(name: str, argument: str, value: Any) -> None:
    """A Python number or a real tensor."""
    if type(value) is float:
        return
    if isinstance(value, Tensor):
        real_tensor(name, argument, value)
    elif not isinstance(value, (int, float, torch.SymInt, torch.SymFloat)):
        raise TypeError(f"{name}: `{argument}` must be a number or a tensor, got {_type(value)}{_as_tensor(value)}.")


def real_number(name: str, argument: str, value: Any) -> None:
    """A Python number, neither bool nor complex."""
    if type(value) is float:
        return
    if not isinstance(value, (int, float, torch.SymInt, torch.SymFloat)) or isinstance(value, bool):
        raise TypeError(f"{name}: `{argument}` must be a number, got {_type(value)}.")


def flag(name: str, argument: str, value: Any) -> None:
    """True or False, as torch takes them: another value here is often the next argument of another function's positional call."""
    if not isinstance(value, (bool, torch.SymBool)):
        raise TypeError(f"{name}: `{argument}` must be True or False, got {_type(value)}: {value!r}.")


def bool_tensor(name: str, argument: str, value: Any) -> None:
    """A bool tensor."""
    tensor(name, argument, value)
    if value.dtype != torch.bool:
        raise TypeError(f"{name}: `{argument}` must be a bool tensor, got dtype {value.dtype}: pass `{argument}.bool()`.")


def positive_number(name: str, argument: str, value: Any, finite: bool = True) -> None:
    """A positive Python number, finite unless infinity is allowed."""
    if value.__class__ is float and (value > 0.0) is True and (value < _INFINITY) is True:
        return
    real_number(name, argument, value)
    if not (holds(value > 0) and (not finite or holds(value < math.inf))):
        raise ValueError(f"{name}: `{argument}` must be positive{' and finite' if finite else ''}, got {value}.")


def non_negative_number(name: str, argument: str, value: Any) -> None:
    """A finite Python number that is not negative."""
    if value.__class__ is float and (value >= 0.0) is True and (value < _INFINITY) is True:
        return
    real_number(name, argument, value)
    if not (holds(value >= 0) and holds(value < math.inf)):
        raise ValueError(f"{name}: `{argument}` must be finite and not negative, got {value}.")


def positive_number_or_tensor(name: str, argument: str, value: Any) -> None:
    """A positive, finite Python number, or a real tensor, as in `positive_elements`."""
    if value.__class__ is float and (value > 0.0) is True and (value < _INFINITY) is True:
        return
    real_number_or_tensor(name, argument, value)
    if isinstance(value, Tensor):
        positive_elements(name, argument, value)
    else:
        positive_number(name, argument, value)


def positive_elements(name: str, argument: str, value: Tensor) -> None:
    """A tensor without elements that are 0 or negative, where they can be read without waiting; NaN is let through."""
    if can_look(value) and value.numel():
        least = (value if value.ndim == 0 else value.detach().amin()).item()
        if least <= 0:
            way_out = f"; a step may have led there, write lower_bound({argument}, least)" if value.requires_grad else ""
            raise ValueError(f"{name}: `{argument}` must be positive, got {least}{_among(value)}{way_out}.")


def no_negative_elements(name: str, argument: str, value: Tensor, hint: str = "") -> None:
    """A tensor without negative elements, where they can be read without waiting; NaN is let through."""
    if can_look(value) and value.numel():
        least = value.detach().amin().item()
        if least < 0:
            raise ValueError(f"{name}: `{argument}` must not be negative, got {least}{_among(value)}{hint}.")


def probabilities(name: str, argument: str, value: Tensor) -> None:
    """A tensor whose elements lie between 0 and 1, as in `elements_between`."""
    elements_between(name, argument, value, 0, 1, "from 0 to 1")


def elements_between(name: str, argument: str, value: Tensor, least: float, most: float, words: str) -> None:
    """A tensor whose elements lie between two limits, included, where they can be read without waiting; NaN is let through."""
    if can_look(value) and value.numel():
        low, high = [end.item() for end in value.detach().aminmax()]
        if low < least or high > most:
            found = low if low < least else high
            raise ValueError(f"{name}: `{argument}` must be {words}, got {found}{_among(value)}.")


def _among(value: Tensor) -> str:
    return " among its elements" if value.numel() > 1 else ""


def broadcasts_to(name: str, argument: str, value: Any, other: str, shape: Sequence[int]) -> None:
    """A number, or a tensor that broadcasts to a shape."""
    if isinstance(value, Tensor) and not (same_shape(value.shape, shape) or can_broadcast(value.shape, shape)):
        raise ValueError(
            f"{name}: `{argument}` must broadcast to the shape {tuple(shape)} of {other}, got shape {tuple(value.shape)}."
        )


def on_device(name: str, argument: str, value: Any, x: Tensor) -> None:
    """A number, or a tensor on the device of ``x``, for kernels that do not take a number on the CPU next to other tensors."""
    if isinstance(value, Tensor) and value.device != x.device:
        raise RuntimeError(f"{name}: `{argument}` must be on the device {x.device}, got one on {value.device}; move it with .to.")


def can_broadcast(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Whether a tensor of a shape broadcasts to another. Sizes that depend on data count as fitting."""
    if len(shape) > len(target):
        return False
    sizes = zip(reversed(shape), reversed(target), strict=False)
    if not is_tracing():
        return all(n in (1, m) for n, m in sizes)
    return all([perhaps(n == 1) or perhaps(n == m) for n, m in sizes])  # noqa: C419


def broadcast_shape(shape: torch.Size, *others: torch.Size) -> torch.Size:
    """The shape to which all shapes broadcast. torch.broadcast_shapes takes longer than the kernels of a small tensor."""
    others = tuple([s for s in others if not same_shape(s, shape) and (is_tracing() or not can_broadcast(s, shape))])
    return torch.broadcast_shapes(shape, *others) if others else shape


def dim(name: str, value: Any, ndim: int) -> None:
    """None, a dimension of a tensor, or several different ones."""
    if value is None or (value.__class__ is int and -ndim <= value < ndim):  # the common arguments
        return
    named = (value,) if isinstance(value, (int, torch.SymInt)) else value
    if not isinstance(named, (tuple, list)) or not all(
        isinstance(d, (int, torch.SymInt)) and not isinstance(d, bool) for d in named
    ):
        raise TypeError(f"{name}: `dim` must be an integer, a tuple of integers or None, got {value!r}.")
    count = max(ndim, 1)  # as in torch, 0 and -1 name the only element of a 0-dimensional tensor
    for d in named:
        if not -count <= d < count:
            raise IndexError(f"{name}: `dim` must be from {-count} to {count - 1} for {ndim} dimensions, got {d}.")
    if not named or len({d % count for d in named}) < len(named):
        raise ValueError(f"{name}: `dim` must name at least one dimension and none twice, got {value!r}.")


def one_dim(name: str, value: Any, ndim: int) -> None:
    """A single dimension of a tensor."""
    if not isinstance(value, (int, torch.SymInt)):
        raise TypeError(f"{name}: `dim` must be an integer, got {value!r}.")
    dim(name, value, ndim)


def positive_integer(name: str, argument: str, value: Any, at_most: int) -> Any:
    """An integer from 1 to a limit, returned as a plain int."""
    if isinstance(value, bool):
        value = int(value)
    elif not isinstance(value, (int, torch.SymInt)):
        index = as_integer(value)
        if index is None:
            raise TypeError(f"{name}: `{argument}` must be a positive integer, got {_type(value)}: {value!r}.")
        value = index
    if not holds(value >= 1):
        raise ValueError(f"{name}: `{argument}` must be a positive integer, got {value}.")
    if not holds(value <= at_most):
        raise ValueError(f"{name}: `{argument}` must be at most {at_most}, got {value}.")
    return value


def as_integer(value: Any) -> int | None:
    """An integer of any kind as a plain int; None for what is not one."""
    if not hasattr(value, "__index__"):  # in compiled code torch 2.11 fails itself where `index` of a constant raises
        return None
    try:
        return operator.index(value)
    except TypeError:  # a tensor, which may be anything
        return None


def integer_between(name: str, argument: str, value: Any, low: int, high: int) -> None:
    """An integer between two limits, both included."""
    if not isinstance(value, (int, torch.SymInt)) or isinstance(value, bool):
        hint = f" Pass `{argument}.item()`." if isinstance(value, Tensor) and value.ndim == 0 else ""
        raise TypeError(f"{name}: `{argument}` must be an integer, got {_type(value)}: {value!r}.{hint}")
    if not (holds(low <= value) and holds(value <= high)):
        raise ValueError(f"{name}: `{argument}` must be from {low} to {high}, got {value}.")


def no_count(name: str, argument: str, value: Any, count: str) -> None:
    """No integer above 1 in the place of a scale, where it reads as a count, such as the number of bits. A float is a scale."""
    if isinstance(value, int) and value > 1:
        raise ValueError(
            f"{name}: `{argument}` must not be an integer above 1, which reads as `{count}`, got {value}: "
            f"write {count}={value} behind the {argument}, or {value}.0 for a {argument} of {value}."
        )


def not_empty(name: str, argument: str, value: Tensor) -> None:
    """A tensor with at least one element."""
    if not holds(value.numel() != 0):
        raise ValueError(f"{name}: `{argument}` must have at least one element, got shape {tuple(value.shape)}.")


_SUSPENDING = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
_SUSPENDED = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)


def returns_when_called(name: str, function: Any) -> None:
    """A function for a context to decorate: neither a generator nor a coroutine, which would run outside of the context."""
    own = function, getattr(type(function), "__call__", None)  # noqa: B004  # an object may have one
    if any(is_one(f) for is_one in _SUSPENDING for f in own):
        raise _suspends(name, getattr(function, "__qualname__", type(function).__name__))


def returned(name: str, result: Any) -> Any:
    """The result of a decorated function, which must not be a generator or a coroutine that is still to run."""
    if isinstance(result, _SUSPENDED):
        if not isinstance(result, types.AsyncGeneratorType):
            result.close()  # else Python would warn that nobody awaits it
        raise _suspends(name, result.__qualname__)
    return result


def _suspends(name: str, what: str) -> TypeError:
    return TypeError(
        f"{name} decorates functions that have run when they return, got {what}, a generator or a coroutine, which would run "
        f"outside: open it inside of that, by `with fullgrad.{name}(): …`."
    )


def _type(value: Any) -> str:
    kind = type(value)
    return f"a value of type {'numpy.' if kind.__module__ == 'numpy' else ''}{kind.__name__}"


def _as_tensor(value: Any) -> str:
    """A way to make a tensor of an array, a list or a number."""
    if type(value).__module__ == "numpy" and hasattr(value, "shape"):
        return ": torch.from_numpy makes a tensor of it" if value.shape else ": torch.as_tensor makes a tensor of it"
    return ": torch.as_tensor makes a tensor of it" if isinstance(value, (list, tuple, int, float)) else ""
