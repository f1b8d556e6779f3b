"""The types of fullgrad.nn, whose classes are made from functions: ``python docs/stubs.py`` writes fullgrad/nn/__init__.pyi.

A class that is not in it yet has the types of `FunctionModule`. tests/nn/test_stub.py compares the others with their functions.
"""

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from fullgrad import nn

STUB = Path(__file__).parents[1] / "fullgrad" / "nn" / "__init__.pyi"
HEADER = '''\
"""Written by docs/stubs.py."""

import collections.abc
from typing import Any, Literal, Union

import torch

from fullgrad.nn._function_module import FunctionModule as FunctionModule
from fullgrad.quantizers import FloatFormat

def __getattr__(name: str) -> type[FunctionModule]: ...
'''
_NAMES = {"torch._C.": "torch.", "typing.": "", "fullgrad.quantizers._formats.": ""}
_SELF = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
_LEARNABLE = inspect.Parameter("learnable", inspect.Parameter.KEYWORD_ONLY, default=(), annotation=str | Sequence[str])
_OTHERS = inspect.Parameter("others", inspect.Parameter.VAR_KEYWORD, annotation=Any)


def text() -> str:
    """The stub of all classes."""
    return "\n".join([HEADER, *(stub_of(name) for name in nn.__all__[1:])])


def stub_of(name: str) -> str:
    """The stub of a class: its arguments as attributes, its constructor, and the call with the inputs and call-time arguments."""
    cls = getattr(nn, name)
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
    for told, name in _NAMES.items():
        written = written.replace(told, name)
    return written


def _signature(parameters: list[inspect.Parameter], returned: Any) -> str:
    given = [p if p.default is p.empty else p.replace(default=...) for p in parameters]
    return str(inspect.Signature(given, return_annotation=returned)).replace("Ellipsis", "...")


if __name__ == "__main__":
    STUB.write_text(text())
