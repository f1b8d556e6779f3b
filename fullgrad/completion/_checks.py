"""Checks of arguments by torch itself, which a formula would compute with: shapes, dtypes and options."""

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import below_transforms, is_tracing
from fullgrad._engine.call import flattened, unflattened

_MOST = 1024
# Operators that read numbers of an argument, or run all steps of a network.
_IN_PYTHON = (
    {
        getattr(getattr(torch.ops.aten, name), overload)
        for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")
        for overload in ("input", "data")
    }
    | {
        getattr(getattr(torch.ops.aten, name), overload)
        for name in ("linspace", "logspace")
        for overload in ("Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")
    }
    | {
        getattr(torch.ops.aten, name).default
        for name in (
            "_pack_padded_sequence",
            "_pad_packed_sequence",
            "_local_scalar_dense",
            "is_nonzero",
            "item",
            "equal",
            "allclose",
        )
    }
)
_passed: dict[Any, None] = {}


def check_arguments(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise what torch raises for tensors of such shapes and dtypes, by a call without data, once for each kind of call."""
    if op in _IN_PYTHON:
        return
    leaves, spec = flattened([list(args), kwargs])
    tensors = [v for v in leaves if isinstance(v, Tensor)]
    if is_tracing() or any(v.is_meta or v.is_nested for v in tensors):
        return
    key = op, tuple([(v.shape, v.dtype) if isinstance(v, Tensor) else (type(v), repr(v)) for v in leaves])
    if key in _passed:
        return

    def call() -> None:
        empty = [torch.empty(v.shape, dtype=v.dtype, device="meta") if isinstance(v, Tensor) else v for v in leaves]
        all_, named = unflattened(empty, spec)
        with torch.no_grad():
            op(*all_, **named)

    with contextlib.suppress(NotImplementedError):  # torch has no such call
        below_transforms(call)
    if len(_passed) >= _MOST:
        _passed.clear()
    _passed[key] = None
