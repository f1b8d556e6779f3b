"""Checks of what functions of the user return: gradients and tangents, pairs, and tensors that are like others."""

import numbers
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import has_shape
from fullgrad._engine.call import Call, Result
from fullgrad._engine.differentiated import may_differ


def check_like(label: str, of: str, t: Any, shape: Any, dtype: torch.dtype, or_none: bool = False) -> Tensor:
    """The tensor, if it has a shape and a dtype; ``or_none`` says in the error that None would be 0."""
    if not isinstance(t, Tensor):
        raise TypeError(f"{label} must be a tensor,{' or None for 0,' * or_none} got a value of type {type(t).__name__}.")
    if not has_shape(t.shape, shape):
        raise ValueError(f"{label} must have the shape of {of}, {tuple(shape)}, got {tuple(t.shape)}.")
    if t.dtype != dtype:
        raise TypeError(f"{label} must have the dtype of {of}, {dtype}, got {t.dtype}.")
    return t


def check_result(label: str, result: Result, constant: Sequence[int] = (), is_plain: bool = False) -> None:
    """Refuse the result of a differentiated call whose derivative would be lost without an error: one with an array of floats,
    or without a floating or complex tensor. The tensors at some positions are declared constant; plain code may return integers.
    """
    tensors, others = result.tensors, [v for v in result.constants() if v is not None]
    arrays = [v for v in others if _is_floating_array(v)]
    if not arrays and any(map(may_differ, tensors)):
        return
    is_declared = bool(tensors) and {*range(len(tensors))} <= {*constant}
    if not arrays and (is_declared or (is_plain and not any(isinstance(v, (float, complex)) for v in others))):
        return
    kinds = map(_name_of_type, arrays) if arrays else [*map(_name_of_type, others), *[str(t.dtype) for t in tensors]]
    found = ", ".join(dict.fromkeys(kinds))
    raise TypeError(
        f"{label} is differentiated, so it must return floating or complex tensors, which can have a gradient; got "
        f"{found or 'nothing'}. Return torch.as_tensor(y) for an array or a number, and y.to(x.dtype) for integers and bools; or "
        "pass x.detach() where no gradient is wanted."
    )


def _is_floating_array(value: Any) -> bool:
    """Whether a value is an array of floats of numpy or a library like it, not a number."""
    return getattr(getattr(value, "dtype", None), "kind", None) in ("f", "c") and not isinstance(value, numbers.Number)


def _name_of_type(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def check_pair(label: str, pair: str, value: Any) -> Any:
    """The value, if it is a pair."""
    if not isinstance(value, tuple) or len(value) != 2:
        raise TypeError(f"{label} must return the pair {pair}, got {_kind(value)}.")
    return value


def _kind(value: Any) -> str:
    of = f" of {len(value)}" if isinstance(value, (tuple, list)) else ""
    return f"a value of type {type(value).__name__}{of}"


def gradients_of(rule: str, label: str, call: Call, wanted: Sequence[int], grads: Any) -> list[Any]:
    """The gradients that a rule returned, one or None for each tensor of a call; the tuple has the wanted arguments."""
    if not isinstance(grads, (tuple, list)) or len(grads) != len(wanted):
        raise TypeError(
            f"{rule} must return a tuple with a gradient, or None, for each of the {len(wanted)} arguments, got {_kind(grads)}."
        )
    given = dict(zip(wanted, grads, strict=True))
    parts = [part.flattened(given.get(i), f"{label}: the gradient of argument {i}") for i, part in enumerate(call.parts)]
    return [g for part in parts for g in part]
