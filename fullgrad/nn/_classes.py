"""The class of each function that has parameters: its name, and which of the function's arguments are the inputs of a call."""

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import Tensor

from fullgrad import clamping, functions, gradients, quantizers, rounding, sampling, soft, spikes, straight
from fullgrad.nn._function_module import FunctionModule, kept_arguments, module_of

# Words whose case is not that of a word.
_WORDS = {"atan": "ATan", "dorefa": "DoReFa", "imle": "IMLE", "jumprelu": "JumpReLU", "reinmax": "ReinMax", "relu": "ReLU"}
_WORDS |= {w: w.upper() for w in ("bsq", "fsq", "lsq", "mx", "nvfp4", "pact", "s2nn", "sso", "st", "ste", "tqt", "twn", "xnor")}
# Tensors without a default that belong to the module, and are no inputs of a call.
_STATE = ("codebook", "mask", "scale", "v")
# What each definition learns, so that its module does by default.
_LEARNED = {
    "affine_k_bit_quantize": ("w", "b"),
    "jumprelu": ("threshold",),
    "learned_round": ("v",),
    "lsq": ("scale", "offset"),
    "pact": ("alpha",),
    "stretched_elastic": ("scale",),
    "tqt": ("log2_threshold",),
}
# Helpers that compute no layer, and makers of operators.
_EXCLUDED = ("codebook_codes", "codes", "float_codes")
_EXCLUDED += ("clamp_backward", "from_slope", "grad_replace", "levels", "quant_range", "replace_grad", "st", "straight_through")
_EXCLUDED += ("checkpoint", "closure_convert", "custom_gradient", "custom_jvp", "custom_vjp", "linear_map", "with_reference")
# The families whose functions have their classes in a module.
_FAMILIES = {
    "fullgrad.nn": (rounding, clamping, gradients, functions, straight, spikes, quantizers, sampling),
    "fullgrad.nn.soft": (soft,),
}


def classes(module: str) -> dict[str, type[FunctionModule]]:
    """The classes of a module by name: one for each function of its families that has parameters."""
    found: dict[str, type[FunctionModule]] = {}
    for package in _FAMILIES[module]:
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
                found[cls] = module_of(function, f"{public}.{name}", cls, inputs, module, _LEARNED.get(name, ()))
    return found


def _class_name(package: ModuleType, name: str, first: str) -> str:
    words = "".join(_WORDS.get(word, word.capitalize()) for word in name.split("_"))
    # A surrogate of a step takes a potential v; a sign takes x.
    return f"{words}Spike" if package is spikes and first == "v" and "spike" not in name else words


def _inputs(function: Callable[..., Any]) -> int:
    """How many of the first arguments are the inputs of a call: tensors without a default, and the other side of a comparison."""
    count = 0
    for p in inspect.signature(function).parameters.values():
        is_input = (p.annotation is Tensor and p.name not in _STATE) or p.name == "y"
        if count and (p.default is not p.empty or p.kind is p.KEYWORD_ONLY or not is_input):
            break
        count += 1
    return count
