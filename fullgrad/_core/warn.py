"""`warn`: a warning at the line of the user."""

import sys
import warnings
from typing import Any

from torch import Tensor

from fullgrad._dispatch import are_differentiated, is_tracing


def warn(message: str, kind: type[Warning]) -> None:
    """Warn at the first line outside of this package and torch."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and _is_inside(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, kind, stacklevel=level)


def warn_of_long_rows(name: str, x: Tensor, dim: int, most: int, in_derivative: bool, message: str) -> None:
    """Warn in eager code of rows longer than ``most``, whose size goes to the braces of the message.

    ``in_derivative``: the rows are used by a derivative alone, so that there is nothing to say without one.
    """
    if is_tracing() or x.shape[dim] <= most or (in_derivative and not any(are_differentiated([x]))):
        return
    size = f" of the {x.shape[dim]} elements of a row, n² of them"
    warn(f"{name}: the method {message.format(size)}.", UserWarning)


def _is_inside(frame: Any) -> bool:
    # An operator's `apply` is made at run time, and has a name alone.
    name = frame.f_globals.get("__name__", "").partition(".")[0]
    return name in ("fullgrad", "torch") or frame.f_code.co_filename.startswith("<fullgrad")
