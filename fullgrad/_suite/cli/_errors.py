"""What a user can fix, and how to report it."""

import importlib
from types import ModuleType


class UsageError(Exception):
    """Reported in one line, with exit status 2."""


def extra(module: str, name: str) -> ModuleType:
    """An optional dependency, or how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UsageError(f'{module.split(".")[0]} is not installed; pip install "fullgrad[{name}]" brings it.') from None
