"""What is written out for the parameters of each operator: its ``apply``, and the ``forward`` that autograd calls.

It is the one piece of generated text. Python binds the arguments itself, to the signature of the author's ``forward``;
`linecache` knows the text, so that tracebacks and ``inspect.getsource`` show it. Binding through ``inspect.signature`` costs several
microseconds for each call that names an argument or leaves one out.
"""

import inspect
import linecache
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch.compile_cache import as_graph_node
from fullgrad._dispatch.forward_marks import saves_nothing
from fullgrad._dispatch.rules import Rules
from fullgrad._dispatch.state import current
from fullgrad._dispatch.torch_private import forward_ad, transforms_active

# Names of its own begin with two underscores, so that parameters may have any name.
_APPLY = """\
def apply({parameters}):
{shortcut}\
    return __in_graph({arguments}) if __is_compiling() else __call(({arguments},))
"""

# The old style of a Function, one forward(ctx, …), saves a second trip from C++ to Python.
_FORWARD = """\
def forward_and_setup(__ctx, {parameters}):
    __output = __operator.forward({arguments})
    if not isinstance(__output, __Tensor):
        __check_output(__output)
{setup}\
    return __output
"""
_SETUP = """\
    __operator.setup_context(__ctx, ({arguments},), __output)
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
    shortcut = shortcut and hasattr(forward, "is_pure") and not variadic
    names = {
        "__SCALAR_TYPES": Rules.SCALAR_TYPES,
        "__active": transforms_active,
        "__call": call,
        "__current": current,
        "__forward_ad": forward_ad,
        "__in_graph": as_graph_node(operator, call_in_graph),
        "__is_compiling": torch.compiler.is_dynamo_compiling,
        "__pure": forward,
    }
    text = _APPLY.replace("{shortcut}", _shortcut(forward, [p.name for p in signature]) if shortcut else "")
    apply = _define("apply", text, operator, names)
    apply.__defaults__ = tuple(p.default for p in signature if p.default is not p.empty)
    annotations = next((name for name in ("__annotate__", "__annotations__") if hasattr(forward, name)), None)
    if annotations is not None:  # the first since Python 3.14: evaluated when they are looked at
        setattr(apply, annotations, getattr(forward, annotations))
    return apply


def make_forward(rules: Rules) -> Callable[..., Any]:
    """The ``forward`` of an autograd.Function in the old style: the author's, its output checked, and ``setup_context``."""
    setup = "" if rules.operator.setup_context is saves_nothing else _SETUP
    names = {"__check_output": rules.check_output}
    return _define("forward_and_setup", _FORWARD.replace("{setup}", setup), rules.operator, names)


def _define(name: str, text: str, operator: Any, names: dict[str, Any]) -> Any:
    """The function that the text defines, written out for the parameters of the operator's ``forward``."""
    signature = inspect.signature(operator.forward).parameters.values()
    parameters = [f"*{p.name}" if p.kind is p.VAR_POSITIONAL else p.name for p in signature]
    arguments = ", ".join(parameters)
    positional_only = sum(p.kind is p.POSITIONAL_ONLY for p in signature)
    if positional_only and name == "apply":
        parameters.insert(positional_only, "/")
    text = text.format(parameters=", ".join(parameters), arguments=arguments)
    file = f"<{operator.__module__}.{operator.__qualname__}.{name}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    # The globals of forward give its annotations their meaning, but it is no module: Dynamo would look it up by its ``__name__``.
    # Globals are faster than a closure, which is copied at each call.
    given = {key: value for key, value in getattr(operator.forward, "__globals__", {}).items() if key[:2] != "__"}
    namespace = {**given, **names, "__operator": operator, "__Tensor": Tensor}
    exec(compile(text, file, "exec"), namespace)
    return namespace[name]


def _shortcut(forward: Any, parameters: list[str]) -> str:
    """The first lines of ``apply``, for a forward that is marked as pure."""
    first, *others = parameters
    tests = [_FIRST_IS_PLAIN.format(first), *map(_OTHER_IS_PLAIN.format, others)]
    # What `alias` does, without the calls that lead there.
    alias = f"{first}.clone() if __current.inside_transform else {first}.detach()"
    value = alias if hasattr(forward, "is_identity") else "__pure({arguments})"
    return _SHORTCUT.replace("{all_plain}", "\n".join(f"        and {test}" for test in tests)).replace("{value}", value)
