"""`repeatable`: code that changes its temporaries in place, in a graph whose constants are computed once.

`torch.func.linearize` computes constants once, and does not see that an operation changes one in place, or a view of one: it does
that at each call, after all that was computed of the constant. `torch.func.jacrev` writes its basis so. Such a temporary is made
anew at each call of the graph, with all that follows from it.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch.torch_private import aliases_first, dispatch_modes, is_operator, recorded_graph, written_by

_is_compiling, _AS_IT_IS = torch.compiler.is_dynamo_compiling, contextlib.nullcontext()


def repeatable() -> contextlib.AbstractContextManager[Any]:
    """A context for code that may write in place, which a tracer may record."""
    if _is_compiling() or not dispatch_modes():
        return _AS_IT_IS
    graph = recorded_graph()
    return _AS_IT_IS if graph is None else _Repeatable(graph)


class _Repeatable(contextlib.AbstractContextManager[None]):
    def __init__(self, graph: Any) -> None:
        self.graph, self.last = graph, next(iter(reversed(graph.nodes)), None)

    def __exit__(self, *error: object) -> None:
        if error == (None, None, None):
            _renew(self.graph, self.last)


def renewed(tensor: Tensor) -> Tensor:
    """A copy, which is never a constant."""
    return tensor.clone()


@functools.cache
def _known() -> None:
    torch.fx.has_side_effect(renewed)


def _renew(graph: Any, last: Any) -> None:
    """Make temporaries anew that operations behind a node of a graph write, and that depend on constants alone."""
    found: dict[Any, bool] = {}
    for node in [*_behind(graph, last)]:
        for written in _written(node):
            base = _base(written)
            if base.op == "call_function" and _is_constant(base, found):
                _known()
                with graph.inserting_before(base):
                    made = graph.call_function(base.target, base.args, base.kwargs)
                made.meta = dict(base.meta)
                # The node itself stays, by which the tracer knows the tensor.
                base.target, base.args, base.kwargs = renewed, (made,), {}
                found.clear()


def _behind(graph: Any, last: Any) -> Iterator[Any]:
    if last is None:
        yield from graph.nodes
        return
    while (last := last.next).op != "root":
        yield last


def _written(node: Any) -> list[Any]:
    """The nodes of tensors that the operation of a node writes."""
    given = written_by(node.target, node.args, node.kwargs) if node.op == "call_function" else []
    return [n for v in given for n in (v if isinstance(v, (list, tuple)) else [v]) if isinstance(n, torch.fx.Node)]


def _base(node: Any) -> Any:
    """The node that made the memory of a tensor."""
    while node.op == "call_function" and node.args and isinstance(node.args[0], torch.fx.Node):
        if is_operator(node.target):
            if not aliases_first(node.target):
                break
        elif not (_is_item(node) and _base(node.args[0]) is not node.args[0]):  # a part of a list of views
            break
        node = node.args[0]
    return node


def _is_item(node: Any) -> bool:
    return getattr(node.target, "__name__", "") == "getitem"


def _is_constant(node: Any, found: dict[Any, bool]) -> bool:
    """Whether a node depends on no input of the graph, and on nothing that is computed at each call."""
    waiting = [node]
    while waiting:
        n = waiting[-1]
        inputs = [] if n.op == "get_attr" else [m for m in n.all_input_nodes if m not in found]
        if n in found or not inputs:
            found[n] = n.op == "get_attr" or (not n.is_impure() and all(found[m] for m in n.all_input_nodes))
            waiting.pop()
        waiting += inputs
    return found[node]


def renew_written(module: Any) -> None:
    """Let a recorded graph make all anew, at each call, that it writes in place."""
    _renew(module.graph, None)
    repair_folded(module)
    module.recompile()


def repair_folded(module: Any) -> None:
    """Let a function that `torch.func.linearize` returned leave its constants alone: what its graph changes of one in place,
    such as the shape that `squeeze_` gives it in a batched product, is that of a copy.
    """
    changed = False
    for node in [*module.graph.nodes]:
        for written in _written(node):
            base = _base(written)
            if base.op == "get_attr" or (_is_item(base) and base.args[0].op == "get_attr"):
                _known()
                with module.graph.inserting_after(base):
                    copy = module.graph.call_function(renewed, (base,))
                base.replace_all_uses_with(copy, lambda user, copy=copy: user is not copy)
                changed = True
    if changed:
        module.recompile()
