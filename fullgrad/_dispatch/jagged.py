"""Jagged nested tensors: a public function runs on the buffer, in which the samples lie one after the other.

This is right for functions that treat elements alike, that work along dimensions behind the ragged one, or that reduce the whole
tensor. All others raise. `uses_last_dims` marks functions of rows or matrices without ``dim``, and `of_one_instance` those of
whole tensors; for others ``dim`` decides.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from fullgrad._dispatch.torch_private import is_compiling, to_jagged, transforms_active

_Function = TypeVar("_Function", bound=Callable[..., Any])
# Arguments that are tables and do not broadcast with the elements, and arguments that add dimensions in front of the batch.
_TABLES, _LEADING = ("codebook",), ("q", "sample_shape")


def uses_last_dims(count: int) -> Callable[[_Function], _Function]:
    """Decorator for a function of rows (1) or matrices (2) without a parameter ``dim``."""

    def decorate(function: _Function) -> _Function:
        function.last_dims = count  # pyright: ignore[reportFunctionMemberAccess]
        return function

    return decorate


def of_one_instance(function: _Function) -> _Function:
    """Decorator for a function that takes a tensor as a whole, such as one that gives it to a function of the user."""
    function.last_dims = None  # pyright: ignore[reportFunctionMemberAccess]
    return function


def is_jagged(value: Any) -> bool:
    """Whether a value is a nested tensor of the layout `torch.jagged`."""
    return isinstance(value, Tensor) and value.is_nested and value.layout == torch.jagged


def call_on_buffers(
    name: str, function: Any, names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any], last: int | None
) -> Any:
    """A function of jagged tensors, called on their buffers. All of its arguments are given, the positional ones with their
    names; the last ``last`` dimensions of a tensor are those of a row or a matrix.
    """
    arguments = dict(zip(names, args, strict=True)) | kwargs
    argument, like = next((key, value) for key, value in arguments.items() if is_jagged(value))
    if last is None:
        raise ValueError(f"{name}: `{argument}` must be one tensor, not a jagged one: call it for each of `{argument}.unbind()`.")
    values = _buffer(like)
    # The samples fill the buffer, and the ragged dimension is the first after the batch.
    if like.lengths() is not None or like.shape[2:] != values.shape[1:]:
        raise ValueError(
            f"{name}: `{argument}` must have its ragged dimension behind the batch and no holes, got shape {_shape(like)}."
        )
    for key in [*arguments]:
        value: Any = arguments[key]
        if key == "dim":
            arguments[key] = _inner_dim(name, value, like, arguments)
        elif is_jagged(value):
            if value.ndim != like.ndim and key not in _TABLES:
                found = f"{_shape(like)} and {_shape(value)}"
                raise ValueError(f"{name}: jagged tensors must have as many dimensions as each other, got shapes {found}.")
            if value.shape[:2] != like.shape[:2]:
                found = f"{_shape(like)} and {_shape(value)}"
                raise ValueError(f"{name}: jagged tensors must have the same offsets, got shapes {found}.")
            arguments[key] = _buffer(value)
        elif key in _LEADING and not isinstance(value, (int, float)) and getattr(value, "ndim", 1) and len(value) > 1:
            raise ValueError(f"{name}: `{key}` must be one number for a jagged tensor, got {value}.")
        elif isinstance(value, Tensor) and key not in _TABLES and value.ndim >= values.ndim:
            raise ValueError(
                f"{name}: `{key}` must be jagged as well, or broadcast with the dimensions behind the ragged one, which are "
                f"{tuple(values.shape[1:])}, got shape {tuple(value.shape)}."
            )
    if last >= values.ndim:
        raise ValueError(f"{name}: the ragged dimension must not be among the last {last}, got shape {_shape(like)}.")
    output = function(*[arguments[key] for key in names], **{key: arguments[key] for key in kwargs})
    return _wrapped(name, output, like, values.shape[0])


def _inner_dim(name: str, dim: Any, like: Any, arguments: Any) -> Any:
    """The dimension of the buffer for ``dim`` of a jagged tensor."""
    padded = "pad it by `to_padded_tensor(0)` and pass `mask=`" if "mask" in arguments else "call it row by row, for `unbind()`"
    if like.ndim == 2 and (dim is not None or "softness" in arguments or "soft_index" in arguments):
        raise ValueError(f"{name}: a jagged tensor of 2 dimensions has rows of different length alone: {padded}; got dim={dim}.")
    if dim is None:
        # In relaxations and selections, None makes one row of all elements.
        if "softness" in arguments or "soft_index" in arguments:
            raise ValueError(f"{name}: `dim` must be given for a jagged tensor, and be behind the ragged dimension, got None.")
        return None
    if isinstance(dim, (tuple, list)):
        return tuple([_inner_dim(name, d, like, arguments) for d in dim])
    if not (1 < dim < like.ndim or -like.ndim + 2 <= dim < 0):
        raise ValueError(
            f"{name}: `dim` must be behind the ragged dimension 1 of a jagged tensor of {like.ndim} dimensions, got {dim}. For "
            f"rows of different length {padded}."
        )
    return dim - 1 if dim > 0 else dim


def _wrapped(name: str, output: Any, like: Any, total: int) -> Any:
    """The outputs of a function of buffers, as jagged tensors; a single number stays as it is."""
    if isinstance(output, tuple):
        items = [_wrapped(name, item, like, total) for item in output]
        return type(output)(items) if not hasattr(output, "_make") else output._make(items)  # pyright: ignore
    if not isinstance(output, Tensor) or output.ndim == 0:
        return output
    if output.shape[0] != total:
        raise NotImplementedError(f"{name}: of a jagged tensor there is no jagged result, got shape {tuple(output.shape)}.")
    return _from_buffer(output, like.offsets())


def _buffer(x: Any) -> Tensor:
    """The buffer of a jagged tensor, differentiable any number of times."""
    return x.values() if is_compiling() or transforms_active() else _Buffer.apply(x)  # pyright: ignore[reportReturnType]


def _from_buffer(values: Tensor, offsets: Tensor) -> Any:
    if not (is_compiling() or transforms_active()):
        return _FromBuffer.apply(values, offsets)
    # A graph cannot return a view of a buffer of one dimension: torch has no `view` of such a tensor.
    return to_jagged(values, offsets) if values.ndim > 1 else to_jagged(values, offsets).clone()


class _Buffer(torch.autograd.Function):
    """``values()`` with a second derivative, which torch lacks."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Tensor:
        ctx.offsets = x.offsets()
        return x.values()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _FromBuffer.apply(g, ctx.offsets)


class _FromBuffer(torch.autograd.Function):
    """A jagged tensor from its buffer: the inverse of `_Buffer`, and its derivative."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, offsets: Tensor) -> Any:
        return to_jagged(values, offsets)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _Buffer.apply(g), None


def _shape(tensor: Tensor) -> str:
    return f"({', '.join(map(str, tensor.shape))})"
