"""A module for every function that has parameters: arguments are attributes, and tensors among them parameters or buffers.

A class is made from the signature of its function, so that its constructor takes the arguments after the inputs, with the same
names, defaults and meaning, and ``learnable`` names those that become an ``nn.Parameter``. Names are those of the functions in
camel case: ``Soft…`` of :mod:`fullgrad.soft`, ``…ST`` of straight-through versions, ``…Spike`` of surrogates of a step.
"""

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fullgrad import clamping, estimators, gradients, quantizers, rounding, sampling, soft, spikes
from fullgrad.nn._function_module import FunctionModule, kept_arguments, module_of

# Words that are not merely capitalized.
_WORDS = {"atan": "ATan", "dorefa": "DoReFa", "imle": "IMLE", "reinmax": "ReinMax", "relu": "ReLU"}
_WORDS |= {w: w.upper() for w in ("bsq", "fsq", "lsq", "mx", "nvfp4", "pact", "s2nn", "sso", "st", "ste", "tqt", "twn", "xnor")}
# Soft functions that need no prefix.
_SOFT_ALREADY = ("entmax", "normmax", "proj_", "sigmoidal", "softrelu", "sparsemax", "subset_")
# Tensors without a default that belong to the module and are not inputs of a call.
_STATE = ("codebook", "mask", "scale", "v")
# Helpers that are not layers, and functions that make operators.
_EXCLUDED = ("clamp_backward", "from_slope", "grad_replace", "levels", "quant_range", "replace_grad", "st", "straight_through")


def _class_name(package: ModuleType, name: str, first: str) -> str:
    words = "".join(_WORDS.get(word, word.capitalize()) for word in name.split("_"))
    if package is soft and not name.startswith(_SOFT_ALREADY):
        return f"Soft{words}"
    # A spike has the potential v as input, a sign has x.
    return f"{words}Spike" if package is spikes and first == "v" and "spike" not in name else words


def _inputs(function: Callable[..., Any]) -> int:
    """The number of leading arguments that are inputs of a call: tensors without a default, and the ``y`` of a comparison."""
    count = 0
    for p in inspect.signature(function).parameters.values():
        is_input = (p.annotation is Tensor and p.name not in _STATE) or p.name == "y"
        if count and (p.default is not p.empty or p.kind is p.KEYWORD_ONLY or not is_input):
            break
        count += 1
    return count


def _classes() -> dict[str, type[FunctionModule]]:
    found: dict[str, type[FunctionModule]] = {}
    for package in (rounding, clamping, gradients, estimators, soft, spikes, quantizers, sampling):
        public = package.__name__ if package in (soft, spikes, quantizers, sampling) else "fullgrad"
        for name in package.__all__:
            function = getattr(package, name)
            is_alias = getattr(function, "__name__", name) != name
            if not inspect.isfunction(function) or is_alias or name in _EXCLUDED or name.endswith(("_forward", "_like")):
                continue
            inputs = _inputs(function)
            kept = kept_arguments(function, inputs)
            # `scale` has an argument `forward`, which no module can have as an attribute.
            if kept and not any(hasattr(FunctionModule, argument) for argument in kept):
                cls = _class_name(package, name, next(iter(inspect.signature(function).parameters)))
                found[cls] = module_of(function, f"{public}.{name}", cls, inputs, __name__)
    return found


_FOUND = _classes()
globals().update(_FOUND)

__all__ = ["FunctionModule", *sorted(_FOUND)]  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:

    def __getattr__(name: str) -> type[FunctionModule]: ...
