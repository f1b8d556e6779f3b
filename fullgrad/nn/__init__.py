"""A module for every function that has parameters: arguments are attributes, and tensors among them parameters or buffers.

A class is made from the signature of its function, so that its constructor takes the arguments after the inputs, with the same
names, defaults and meaning, and ``learnable`` names those that become an ``nn.Parameter``. Names are those of the functions in
camel case: ``…ST`` of straight-through versions, ``…Spike`` of surrogates of a step. The modules of :mod:`fullgrad.soft` are in
:mod:`fullgrad.nn.soft`; :class:`FunctionModule <fullgrad.nn.FunctionModule>` is that of any other function. Layers that are more
than a function are :class:`TopKRouter <fullgrad.nn.TopKRouter>` and :class:`VectorQuantizer <fullgrad.nn.VectorQuantizer>`.
:func:`quantize_ <fullgrad.nn.quantize_>` quantizes the layers of a model.
"""

from typing import Any

from fullgrad.nn import soft
from fullgrad.nn._classes import classes
from fullgrad.nn._function_module import FunctionModule
from fullgrad.nn._quantize import quantize_, unquantize_
from fullgrad.nn._top_k_router import TopKRouter
from fullgrad.nn._vector_quantizer import VectorQuantizer

_FOUND = classes(__name__)
globals().update(_FOUND)

# Without `soft`, so that `import *` leaves that name to `fullgrad.soft`.
__all__ = [
    "FunctionModule",
    "TopKRouter",
    "VectorQuantizer",
    "quantize_",
    "unquantize_",
    *sorted(_FOUND),  # pyright: ignore[reportUnsupportedDunderAll]
]


def __getattr__(name: str) -> Any:
    for moved in (name.removeprefix("Soft"), name):
        if hasattr(soft, moved):
            raise AttributeError(f"module 'fullgrad.nn' has no attribute {name!r}: write fullgrad.nn.soft.{moved}")
    told = f": write fullgrad.nn.{name}Spike" if f"{name}Spike" in __all__ else ""
    raise AttributeError(f"module 'fullgrad.nn' has no attribute {name!r}{told}")


def __dir__() -> list[str]:
    return sorted({*__all__, "soft", *(name for name in globals() if name.startswith("__"))})
