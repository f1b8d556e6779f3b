"""The types of fullgrad.nn, whose classes are made of functions: ``python docs/stubs.py`` writes the ``.pyi`` files next to them.

A checker does not know a class that is not in them yet. tests/nn/test_stub.py compares the others with their functions.
"""

import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from fullgrad import nn

FOLDER = Path(__file__).parents[1] / "fullgrad" / "nn"
STUBS = {FOLDER / "__init__.pyi": nn, FOLDER / "soft.pyi": nn.soft}
HEADER = '''\
"""Written by docs/stubs.py."""

import collections.abc
import typing
from typing import Literal, Union

import torch

from fullgrad.nn._function_module import FunctionModule as FunctionModule
'''
# What one of the two needs besides.
_OF_NN = (
    "from fullgrad.nn import soft as soft",
    "from fullgrad.nn._quantize import quantize_ as quantize_, unquantize_ as unquantize_",
    "from fullgrad.quantizers import FloatFormat",
    "",
)
IMPORTS = {nn: "\n".join(_OF_NN), nn.soft: ""}
_NAMES = {"torch._C.": "torch.", "typing.": "", "fullgrad.quantizers._formats.": ""}
_SELF = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
_LEARNABLE = inspect.Parameter("learnable", inspect.Parameter.KEYWORD_ONLY, default=(), annotation=str | Sequence[str])
_OTHERS = inspect.Parameter("others", inspect.Parameter.VAR_KEYWORD, annotation=Any)


def text(module: ModuleType) -> str:
    """The stub of a module: all its classes."""
    return "\n".join([HEADER + IMPORTS[module], *(stub_of(module, name) for name in names(module))])


def names(module: ModuleType) -> list[str]:
    """The classes that are made of functions."""
    return [name for name in module.__all__ if hasattr(getattr(module, name), "_function")]


def stub_of(module: ModuleType, name: str) -> str:
    """A class: its arguments as attributes, its constructor, and the call with the inputs and what else it may be given."""
    cls = getattr(module, name)
    kept, function = cls._arguments, inspect.signature(cls._function)
    called = [p for p in function.parameters.values() if p.name not in kept and p.name != "training"]
    # A union of types, of which the arguments choose one, helps nobody.
    returned = Any if get_args(function.return_annotation) else function.return_annotation
    lines = [
        f"class {name}(FunctionModule):",
        *(f"    {p.name}: {inspect.formatannotation(p.annotation)}" for p in kept.values()),
        f"    def __init__{_signature([_SELF, *kept.values(), _LEARNABLE], None)}: ...",
        f"    def __call__{_signature([_SELF, *called, _OTHERS], returned)}: ...",
        "",
    ]
    written = "\n".join(lines)
    for told, short in _NAMES.items():
        written = written.replace(told, short)
    # A module is called Any.
    return re.sub(r"(?<!class )\bAny\b", "typing.Any", written)


def _signature(parameters: list[inspect.Parameter], returned: Any) -> str:
    given = [p if p.default is p.empty else p.replace(default=...) for p in parameters]
    return str(inspect.Signature(given, return_annotation=returned)).replace("Ellipsis", "...")


if __name__ == "__main__":
    for path, module in STUBS.items():
        path.write_text(text(module))
