"""Errors that users can fix, and how they are reported."""

import importlib
from types import ModuleType


class UsageError(Exception):
    """An error that is reported in one line, with exit status 2."""


def extra(module: str, name: str) -> ModuleType:
    """An optional dependency; if it is missing, the error says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UsageError(f'{module.split(".")[0]} is not installed; pip install "fullgrad[{name}]" brings it.') from None
