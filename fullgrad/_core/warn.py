"""`warn`: a warning at the line of the user."""

import sys
import warnings
from typing import Any


def warn(message: str, kind: type[Warning]) -> None:
    """Warn at the first line outside of this package and torch."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and _is_inside(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, kind, stacklevel=level)


def _is_inside(frame: Any) -> bool:
    # An operator's `apply` is made at run time, and has a name alone.
    name = frame.f_globals.get("__name__", "").partition(".")[0]
    return name in ("fullgrad", "torch") or frame.f_code.co_filename.startswith("<fullgrad")
