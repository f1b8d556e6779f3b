"""Declared gradients for PyTorch: operators whose derivative you choose, right under every transform."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from fullgrad import (
        adoption,
        blackbox,
        clamping,
        completion,
        forward,
        functions,
        gradients,
        implicit,
        losses,
        per_sample,
        quantizers,
        rounding,
        safe,
        sampling,
        soft,
        spikes,
        straight,
        tracking,
    )
    from fullgrad import audit as audit
    from fullgrad import nn as nn
    from fullgrad import testing as testing
    from fullgrad._core.elementwise import Elementwise
    from fullgrad._core.function import Function
    from fullgrad.adoption import *  # noqa: F403
    from fullgrad.clamping import *  # noqa: F403
    from fullgrad.completion import *  # noqa: F403
    from fullgrad.functions import *  # noqa: F403
    from fullgrad.gradients import *  # noqa: F403
    from fullgrad.rounding import *  # noqa: F403
    from fullgrad.straight import *  # noqa: F403
    from fullgrad.tracking import *  # noqa: F403

    __all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
        "Elementwise",
        "Function",
        *adoption.__all__,
        *clamping.__all__,
        *completion.__all__,
        *functions.__all__,
        *gradients.__all__,
        *rounding.__all__,
        *straight.__all__,
        *tracking.__all__,
        "blackbox",
        "forward",
        "implicit",
        "losses",
        "per_sample",
        "quantizers",
        "safe",
        "sampling",
        "soft",
        "spikes",
    ]

# A family is imported on the first use of one of its names, and torch with it: the command line refuses a wrong argument at once.
# The names of the first group are also names of `fullgrad`, and are searched in this order: `straight` needs all of `soft`.
_TOP_LEVEL = ("clamping", "rounding", "gradients", "adoption", "tracking", "functions", "completion", "straight")
_MODULES = ("blackbox", "forward", "implicit", "losses", "per_sample", "quantizers", "safe", "sampling", "soft", "spikes")
# Not in `__all__`, so that `import *` does not shadow torch's `nn`.
_NOT_EXPORTED = ("audit", "nn", "testing")
_BASES = {"Elementwise": "elementwise", "Function": "function"}


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name in (*_TOP_LEVEL, *_MODULES, *_NOT_EXPORTED):
            return importlib.import_module(f"fullgrad.{name}")
        if name == "__all__":
            families = [importlib.import_module(f"fullgrad.{family}") for family in _TOP_LEVEL]
            return [*_BASES, *(name for family in families for name in family.__all__), *_MODULES]
        if name in _BASES:
            globals()[name] = value = getattr(importlib.import_module(f"fullgrad._core.{_BASES[name]}"), name)
            return value
        for family in () if name.startswith("_") else _TOP_LEVEL:
            module = importlib.import_module(f"fullgrad.{family}")
            if name in module.__all__:
                globals()[name] = value = getattr(module, name)
                return value
        raise AttributeError(f"module 'fullgrad' has no attribute {name!r}{_where_it_is(name)}", name=name)


def _where_it_is(name: str) -> str:
    """The end of an error about a name: the modules that have it, its straight-through version, or a name that is close."""
    from difflib import get_close_matches

    from fullgrad._core.listed import listed

    if name.startswith("_"):
        return ""
    of = {module: listed(module) for module in (*_TOP_LEVEL, *_MODULES, "nn")}
    found = [f"fullgrad.{module}.{name}" for module in (*_MODULES, "nn") if name in of[module]]
    found += [f"fullgrad.{name}_st"] * (f"{name}_st" in of["straight"])
    if found:
        return f": write {' or '.join(found)}"
    close = get_close_matches(name, [n for family in _TOP_LEVEL for n in of[family]], 1, 0.7)
    return f": did you mean {close[0]}?" if close else ""


def __dir__() -> list[str]:
    described = [name for name in globals() if name.startswith("__")]
    return sorted({*described, *__getattr__("__all__"), *_NOT_EXPORTED})  # pyright: ignore[reportUndefinedVariable]
