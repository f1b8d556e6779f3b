"""The operator's ``apply``: a function with the signature of ``forward``, whose arguments Python binds itself.

It is generated text, a few lines for each operator, in `linecache`, so that tracebacks and ``inspect.getsource`` show it. Binding
through ``inspect.signature`` costs microseconds for each call that names an argument or leaves one out, and without the shortcut
of a `pure` forward `round` of 16 elements takes 1.6 times as long where no gradient is needed. The rest of the dispatch is plain
Python: forward and backward take at most 1% longer than with all of it written out.
"""

import inspect
import linecache
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch.compile_cache import as_graph_node
from fullgrad._dispatch.rules import Rules
from fullgrad._dispatch.state import current, watchers
from fullgrad._dispatch.torch_private import forward_ad, transforms_active

# The text's own names begin with two underscores, so that parameters may have any name.
_APPLY = """\
def apply({parameters}):
    if __is_compiling():
        return __in_graph({arguments})
{watched}{shortcut}\
    return __call(({arguments},))
"""

_WATCHED = """\
    if __watchers:
        return __watchers[-1](__call, ({arguments},))
"""

# For a pure forward of plain tensors that require no gradient.
_SHORTCUT = """\
    if (
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

    With the shortcut it computes the value of a `pure` forward at once where no derivative is needed.
    """
    forward = operator.forward
    signature = list(inspect.signature(forward).parameters.values())
    variadic = any(p.kind is p.VAR_POSITIONAL for p in signature)
    shortcut = shortcut and hasattr(forward, "is_pure") and not variadic
    text = _APPLY.replace("{shortcut}", _shortcut(forward, [p.name for p in signature]) if shortcut else "")
    text = text.replace("{watched}", _WATCHED if getattr(operator, "is_watched", False) else "")
    arguments = [f"*{p.name}" if p.kind is p.VAR_POSITIONAL else p.name for p in signature]
    parameters, positional_only = arguments.copy(), sum(p.kind is p.POSITIONAL_ONLY for p in signature)
    if positional_only:
        parameters.insert(positional_only, "/")
    text = text.format(parameters=", ".join(parameters), arguments=", ".join(arguments))
    file = f"<{operator.__module__}.{operator.__qualname__}.apply>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    # Globals are faster than a closure, which is copied at each call. Of the globals of forward only those that its annotations
    # name are taken: the others would be kept alive.
    names = {n for a in getattr(forward, "__annotations__", {}).values() if isinstance(a, str) for n in re.findall(r"\w+", a)}
    namespace = {n: v for n, v in getattr(forward, "__globals__", {}).items() if n in names and n[:2] != "__"}
    namespace |= {
        "__SCALAR_TYPES": Rules.SCALAR_TYPES,
        "__Tensor": Tensor,
        "__active": transforms_active,
        "__call": call,
        "__current": current,
        "__forward_ad": forward_ad,
        "__in_graph": as_graph_node(operator, call_in_graph),
        "__is_compiling": torch.compiler.is_dynamo_compiling,
        "__operator": operator,
        "__pure": forward,
        "__watchers": watchers,
    }
    exec(compile(text, file, "exec"), namespace)
    apply = namespace["apply"]
    apply.__defaults__ = tuple(p.default for p in signature if p.default is not p.empty)
    annotations = next((name for name in ("__annotate__", "__annotations__") if hasattr(forward, name)), None)
    if annotations is not None:  # the first since Python 3.14: evaluated when they are looked at
        setattr(apply, annotations, getattr(forward, annotations))
    return apply


def _shortcut(forward: Any, parameters: list[str]) -> str:
    """The first lines of ``apply`` for a forward that is marked as pure."""
    first, *others = parameters
    tests = [_FIRST_IS_PLAIN.format(first), *map(_OTHER_IS_PLAIN.format, others)]
    # The steps of `alias`, without the calls around it.
    alias = f"{first}.clone() if __current.inside_transform else {first}.detach()"
    value = alias if hasattr(forward, "is_identity") else "__pure({arguments})"
    return _SHORTCUT.replace("{all_plain}", "\n        and ".join(tests)).replace("{value}", value)
