"""`Case`: a `Subject` with the names that it covers."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fullgrad.testing import Subject


@dataclass(frozen=True, kw_only=True)
class Case(Subject):
    """One way of calling public operators.

    Args:
        name: A unique name for reports.
        covers: The names of ``fullgrad.__all__`` that this case proves, and of ``fullgrad.soft.__all__`` as ``soft.…``.
        exhaustive: Whether the suite runs it with the exhaustive tests: a variant of another case.
        long: Whether other cases call all its operator classes, so that it is in the long tests but not in the short suite.
        of: The domain of the operator, for plots: ``"elements"``; ``"rows"``, of which one element varies;
            ``"tensors"``; or ``"matrices"``, which have no plot.
        elementwise: Whether each element of the value is made of one element and of numbers, so that compiled code fuses a chain
            of such operators into one kernel; not so for what reduces, or takes a constant of the size of its input.
    """

    name: str
    covers: tuple[str, ...]
    exhaustive: bool = False
    long: bool = False
    of: str = "elements"
    elementwise: bool = True


def numbers(*shape: int, scale: float = 2.0, seed: int = 0) -> Tensor:
    """Normal float64 numbers; none lies on a boundary of an operator."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def in_compute_dtype(value: Any) -> Any:
    """A value function that computes half precision in float32, with parameters converted to it, and rounds once."""

    def plain(x: Tensor, *rest: Any) -> Tensor:
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        if x.is_floating_point():
            rest = tuple(t.to(wide.dtype) if isinstance(t, Tensor) and t.is_floating_point() else t for t in rest)
        y = value(wide, *rest)
        return y.to(x.dtype) if x.is_floating_point() else y

    return plain


def straight_through(value: Tensor, x: Tensor) -> Tensor:
    """The value of the first and the derivative of the second, by the detach trick; exact up to rounding."""
    return x + (value - x).detach()
