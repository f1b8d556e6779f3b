"""Sizes and numbers that data decides: in compiled code `x[mask]` has a size, and `x.item()` is a number, that nobody knows.

A comparison of such a size cannot be tested. All questions that code asks about it are here; of what is known they are the
comparison itself. torch's own functions for this are imported when they are needed, as the import takes longer than torch's.
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
    """Whether a rule holds. Where data decides, it is checked when the compiled code runs."""
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
    """Whether a shape is the required one. Sizes that data decides are checked when the compiled code runs."""
    if not is_tracing():
        return shape == required
    return len(shape) == len(required) and all([holds(n == m) for n, m in zip(shape, required, strict=True)])  # noqa: C419


def is_known(value: Any) -> bool:
    """Whether a value is a float that Python may compute with. Dynamo has the class of one for a symbol, too."""
    return value.__class__ is float and not _is_compiling()


def number_or_tensor(value: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """A tensor, or a number as a float: as a tensor where compiled code does not know it, and Python cannot compute with it."""
    if isinstance(value, Tensor):
        return value
    value = float(value)
    return value if value.__class__ is float else torch.full((), value, dtype=dtype, device=device)


def at_least(value: Any, least: Any) -> Any:
    """The larger of a size, or a number, and a constant."""
    return torch.sym_max(value, least) if isinstance(value, (torch.SymInt, torch.SymFloat)) else max(value, least)


def square_root(value: Any) -> float:
    """The root of a size, which `math.sqrt` would fix."""
    return value**0.5 if isinstance(value, (torch.SymInt, torch.SymFloat)) else math.sqrt(value)
