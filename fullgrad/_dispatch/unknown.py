"""Sizes and numbers that depend on data: in compiled code the size of `x[mask]` and the number `x.item()` are unknown.

A comparison with an unknown size cannot be tested by `if`. The functions here decide it instead; for known sizes they are the
comparison itself. torch's own functions for this are imported when needed, as the import takes longer than torch's.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch.state import is_tracing

_is_compiling, _SymBool = torch.compiler.is_dynamo_compiling, torch.SymBool


def surely(condition: Any) -> bool:
    """Whether a comparison is known to hold."""
    if not (_is_compiling() or isinstance(condition, _SymBool)):
        return bool(condition)
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    return guard_or_false(condition)


def perhaps(condition: Any) -> bool:
    """Whether a comparison is not known to fail."""
    if not (_is_compiling() or isinstance(condition, _SymBool)):
        return bool(condition)
    from torch.fx.experimental.symbolic_shapes import guard_or_true

    return guard_or_true(condition)


def holds(condition: Any) -> bool:
    """Whether a rule holds. If it depends on data, it is checked when the compiled code runs."""
    if not (_is_compiling() or isinstance(condition, _SymBool)):
        return bool(condition)
    known_to_fail = not perhaps(condition)
    if not known_to_fail:
        torch._check(condition)
    return not known_to_fail


def same_shape(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two shapes are known to be the same."""
    if not is_tracing():
        return shape == other
    return len(shape) == len(other) and all([surely(n == m) for n, m in zip(shape, other, strict=True)])  # noqa: C419


def has_shape(shape: Sequence[int], required: Sequence[int]) -> bool:
    """Whether a shape is the required one. Sizes that depend on data are checked when the compiled code runs."""
    if not is_tracing():
        return shape == required
    return len(shape) == len(required) and all([holds(n == m) for n, m in zip(shape, required, strict=True)])  # noqa: C419


def is_known(value: Any) -> bool:
    """Whether a value is a float that Python may compute with. Under Dynamo a symbol has the class float, too."""
    return value.__class__ is float and not _is_compiling()


def is_float(value: Any) -> bool:
    """Whether a value is a float and not a symbol.

    Under Dynamo a symbol has the class float since torch 2.15, but its comparisons are not bools.
    """
    return value.__class__ is float and ((value == 0.0) is True or (value != 0.0) is True)


def number_or_tensor(value: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """A tensor as it is; a number as a float, or as a tensor if compiled code does not know it."""
    if isinstance(value, Tensor):
        return value
    value = float(value)
    return value if is_float(value) else torch.full((), value, dtype=dtype, device=device)


def at_least(value: Any, least: Any) -> Any:
    """The larger of a size or number and a constant."""
    return torch.sym_max(value, least) if isinstance(value, (torch.SymInt, torch.SymFloat)) else max(value, least)


def square_root(value: Any) -> float:
    """The square root of a size, which `math.sqrt` would specialize."""
    return value**0.5 if isinstance(value, (torch.SymInt, torch.SymFloat)) else math.sqrt(value)
