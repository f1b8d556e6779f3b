"""The operator's ``apply``: a function with the signature of ``forward``, whose arguments Python binds itself.

It is the one piece of generated text, a few lines for each operator that pass the bound arguments on; `linecache` knows them, so
that tracebacks and ``inspect.getsource`` show them. Binding them in Python, through ``*args`` and ``**kwargs``, would cost
each call that names an argument or leaves one out several microseconds.
"""

import inspect
import linecache
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch.compile_cache import as_graph_node
from fullgrad._dispatch.rules import Rules
from fullgrad._dispatch.state import current
from fullgrad._dispatch.torch_private import forward_ad, transforms_active

# Names of its own begin with two underscores, so that parameters may have any name.
_SOURCE = """\
def __make({names}):
    def apply({parameters}):
{shortcut}\
        return __in_graph({arguments}) if __is_compiling() else __call({packed})

    return apply
"""

# For a pure forward of plain tensors that require no gradient: without it a small operation takes half as long again.
_SHORTCUT = """\
        if (
            not __is_compiling()
{all_plain}
            and __forward_ad._current_level < 0
            and not __active()
            and __operator.forward is __pure
        ):
            return {value}
"""

# The first argument is most often a tensor, the others seldom are.
_FIRST_IS_PLAIN = "({0}.__class__ is __Tensor and not {0}.requires_grad or {0}.__class__ in __SCALAR_TYPES)"
_OTHER_IS_PLAIN = "({0}.__class__ in __SCALAR_TYPES or {0}.__class__ is __Tensor and not {0}.requires_grad)"


def make_apply(
    operator: Any, call: Callable[[Any], Any], call_in_graph: Callable[[Any], Any], *, shortcut: bool = False
) -> Callable[..., Any]:
    """A function with the signature of ``forward`` that passes the tuple of its arguments on, in a graph to ``call_in_graph``.

    With the shortcut it computes the value of a `pure` forward at once where no derivative is wanted.
    """
    forward = operator.forward
    signature = list(inspect.signature(forward).parameters.values())
    variadic = any(p.kind is p.VAR_POSITIONAL for p in signature)
    parameters = [f"*{p.name}" if p.kind is p.VAR_POSITIONAL else p.name for p in signature]
    arguments = ", ".join(parameters)
    positional_only = sum(p.kind is p.POSITIONAL_ONLY for p in signature)
    if positional_only:
        parameters.insert(positional_only, "/")
    names: dict[str, Any] = {
        "__Tensor": Tensor,
        "__SCALAR_TYPES": Rules.SCALAR_TYPES,
        "__active": transforms_active,
        "__call": call,
        "__forward_ad": forward_ad,
        "__in_graph": as_graph_node(operator, call_in_graph),
        "__is_compiling": torch.compiler.is_dynamo_compiling,
        "__operator": operator,
        "__current": current,
        "__pure": forward,
    }
    text = _SOURCE.format(
        names=", ".join(names),
        parameters=", ".join(parameters),
        arguments=arguments,
        packed=f"({arguments},)",
        shortcut=_shortcut(forward, signature, arguments) if shortcut and hasattr(forward, "is_pure") and not variadic else "",
    )
    file = f"<{operator.__module__}.{operator.__qualname__}.apply>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    # Its globals are those of forward, in which its annotations have a meaning.
    made: dict[str, Any] = {}
    exec(compile(text, file, "exec"), getattr(inspect.unwrap(forward), "__globals__", {}), made)
    apply = made["__make"](**names)
    apply.__defaults__ = tuple(p.default for p in signature if p.default is not p.empty)
    annotations = next((name for name in ("__annotate__", "__annotations__") if hasattr(forward, name)), None)
    if annotations is not None:  # the first since Python 3.14: evaluated when they are looked at
        setattr(apply, annotations, getattr(forward, annotations))
    return apply


def _shortcut(forward: Any, signature: list[inspect.Parameter], arguments: str) -> str:
    """The first lines of ``apply``, for a forward that is marked as pure."""
    first, *others = [p.name for p in signature]
    tests = [_FIRST_IS_PLAIN.format(first), *map(_OTHER_IS_PLAIN.format, others)]
    # What `alias` does, without the calls that lead there.
    alias = f"{first}.clone() if __current.inside_transform else {first}.detach()"
    value = alias if hasattr(forward, "is_identity") else f"__pure({arguments})"
    return _SHORTCUT.format(all_plain="\n".join(f"            and {test}" for test in tests), value=value)
