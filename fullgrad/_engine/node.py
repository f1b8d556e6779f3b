"""`one_node` and `run_as_node`: functions that take or hold a function of the user, as one node of compiled code."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from fullgrad._core.records import function_for_graph, function_of
from fullgrad._dispatch import is_exporting, is_tracing, mark_for_dynamo, pytree, traced_below
from fullgrad._engine.closure import captured
from fullgrad._engine.differentiated import is_differentiated
from fullgrad._engine.guard import guard
from fullgrad._engine.held import StandIns, held, tensors_held

F = TypeVar("F", bound=Callable[..., Any])


class _Nothing:
    """None, which torch takes for no argument of a node, and for no result."""


NOTHING = _Nothing()

# Why the graph breaks where compiled code makes an operator of functions; Dynamo reports it with `fullgraph=True`.
MADE_INSIDE = "compiled code calls an operator of functions, as `forward.laplacian(f)`, that it has made itself: make it outside"
# Unflattened it is None, also where Dynamo traces that.
pytree.register_pytree_node(_Nothing, lambda _: ((), None), lambda *_: None)


def with_nothing(tree: Any) -> Any:
    """A structure with `NOTHING` in the places of None."""
    return pytree.tree_map(lambda v: NOTHING if v is None else v, tree)


def one_node(function: F) -> F:
    """The function, of which compiled code has one node, with names in the places of functions."""

    def run(*args: Any, **kwargs: Any) -> Any:
        # Where the graph breaks at the node, nobody unflattens what was made for it.
        args, kwargs = pytree.tree_map(function_of, (args, kwargs))
        guard(*[v for v in (*args, *kwargs.values()) if callable(v)])
        found = function(*args, **kwargs)
        return with_nothing(found) if is_tracing() else found

    node = traced_below(run)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if not is_dynamo_compiling() or value_alone():
            return function(*args, **kwargs)
        return node[0](*[_for_graph(v) for v in args], **{name: _for_graph(v) for name, v in kwargs.items()})

    return called  # pyright: ignore[reportReturnType]


def value_alone() -> bool:
    """Whether a graph is exported, or traced by `torch.jit.trace`, which holds the value alone, of torch code."""
    return is_exporting() or torch.jit.is_tracing()


def _for_graph(value: Any) -> Any:
    if value is None:
        return NOTHING
    if isinstance(value, (tuple, list, dict)):
        return with_nothing(value)
    if isinstance(value, Tensor) or not callable(value):
        return value
    return f"{function_for_graph(value)}"  # a new string: Dynamo does not know the type of what an assumed constant returns


def refuse_inside(maker: str, instead: str = "") -> None:
    """Break the graph, by name, where compiled code calls a function that makes an operator of functions."""
    if is_dynamo_compiling():
        torch._dynamo.graph_break(msg=f"{maker} makes an operator of functions: call it outside of compiled code{instead}")


def captured_for_graph(function: Any) -> tuple[Tensor, ...]:
    """The tensors that an object's functions hold, as inputs of its node: to Dynamo, which reads them from the object, they are
    tensors like others. `guard` compiles again where a function holds another tensor.
    """
    _note(function)
    return tuple(function.captured)


def refusal_of(function: Any) -> str:
    """Why an object can be no node of compiled code, or an empty string. An error in the node Dynamo would report as another."""
    return f"{_refusal(function)}"


def _is_made(function: Any) -> bool:
    """Whether an object is there: Dynamo has an empty one for what compiled code makes, at whose node the graph breaks."""
    return "function" in vars(function)


def _refusal(function: Any) -> str:
    if not _is_made(function):
        return MADE_INSIDE
    below = function.called_below()
    return captured(function.label) if below and is_differentiated(held(*below)[1]) else ""


def _note(function: Any) -> int:
    found = tensors_held(*function.parts()) if _is_made(function) else []
    if [*map(id, found)] != [*map(id, function.captured)]:
        function.captured = found
    return len(found)


for _constant in (_refusal, _note):
    mark_for_dynamo(torch.compiler.assume_constant_result, _constant)


def _run(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: Sequence[Tensor]) -> Any:
    if not is_tracing():  # the graph breaks at the node, and nobody unflattens what was made for it
        args, kwargs = pytree.tree_map(lambda v: v, (args, kwargs))
        return function.run(args, kwargs)
    guard(*function.parts(), *[v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, nn.Module)])
    with StandIns(function.parts(), function.captured, tensors).standing():
        return with_nothing(function.run(args, kwargs))


run_as_node = traced_below(_run)
