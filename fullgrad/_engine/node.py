"""`one_node`: functions that take a function of the user, as one node of compiled code."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from fullgrad._core.records import function_for_graph, function_of
from fullgrad._dispatch import is_exporting, is_tracing, pytree, traced_below
from fullgrad._engine.guard import guard
from fullgrad._engine.operator import NOTHING, with_nothing

F = TypeVar("F", bound=Callable[..., Any])


def one_node(function: F) -> F:
    """The function of positional arguments, of which compiled code has one node, with names in the places of functions."""

    def run(*args: Any) -> Any:
        # Where the graph breaks at the node, nobody unflattens what was made for it.
        found = [None if v is None else function_of(v) for v in pytree.tree_map(lambda v: v, args)]
        guard(*[v for v in found if callable(v)])
        return with_nothing(function(*found)) if is_tracing() else function(*found)

    node = traced_below(run)

    @functools.wraps(function)
    def called(*args: Any) -> Any:
        in_graph = is_dynamo_compiling() and not value_alone()
        return node[0](*[_for_graph(v) for v in args]) if in_graph else function(*args)

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
