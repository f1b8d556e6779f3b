"""Declared gradients for PyTorch: operators whose derivative you choose, right under every transform."""

import importlib
from typing import TYPE_CHECKING, Any

from fullgrad._core.elementwise import Elementwise
from fullgrad._core.function import Function

__version__ = "0.2.0"

if TYPE_CHECKING:
    from fullgrad import (
        adoption,
        blackbox,
        clamping,
        completion,
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
        "implicit",
        "losses",
        "per_sample",
        "quantizers",
        "safe",
        "sampling",
        "soft",
        "spikes",
    ]

# A family is imported on the first use of one of its names. The names of the first group are also names of `fullgrad`, and are
# searched in this order: `straight` needs all of `soft`.
_TOP_LEVEL = ("clamping", "rounding", "gradients", "adoption", "tracking", "functions", "completion", "straight")
_MODULES = ("blackbox", "implicit", "losses", "per_sample", "quantizers", "safe", "sampling", "soft", "spikes")
# Not in `__all__`, so that `import *` does not shadow torch's `nn`.
_NOT_EXPORTED = ("audit", "nn", "testing")


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name in (*_TOP_LEVEL, *_MODULES, *_NOT_EXPORTED):
            return importlib.import_module(f"fullgrad.{name}")
        if name == "__all__":
            families = [importlib.import_module(f"fullgrad.{family}") for family in _TOP_LEVEL]
            return ["Elementwise", "Function", *(name for family in families for name in family.__all__), *_MODULES]
        for family in () if name.startswith("_") else _TOP_LEVEL:
            module = importlib.import_module(f"fullgrad.{family}")
            if name in module.__all__:
                globals()[name] = value = getattr(module, name)
                return value
        raise AttributeError(f"module 'fullgrad' has no attribute {name!r}")


def __dir__() -> list[str]:
    described = [name for name in globals() if name.startswith("__")]
    return sorted({*described, *__getattr__("__all__"), *_NOT_EXPORTED})  # pyright: ignore[reportUndefinedVariable]
