"""How an operator enters a compiled graph, what a compiled backward saves, and which graphs torch may cache."""

import functools
import hashlib
import os
import pathlib
import sys
import threading
import time
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.utils.checkpoint import CheckpointPolicy

from fullgrad._dispatch import torch_private
from fullgrad._dispatch.state import is_tracing

_PACKAGE = __name__.partition(".")[0]
_IMPORTED = time.time()
# The folders of the package that make no graph: an edit there leaves the graphs in torch's cache valid. Faster versions do not
# run in what is compiled.
_NOT_IN_GRAPHS = frozenset({"_fast", "_suite", "audit", "cli", "diagnosis", "nn", "testing"})
# The package's own operators, by the name of their node, and the rules that they were defined with.
_nodes: dict[str, tuple[Any, list[Any]]] = {}


def as_graph_node(operator: Any, call: Any) -> Any:
    """``call`` as one node of a graph, which Dynamo does not trace into.

    Dynamo traces a custom Function's forward as plain code and drops its rules in places
    (https://github.com/pytorch/pytorch/issues/192985, https://github.com/pytorch/pytorch/issues/193279), and refuses it in
    others (https://github.com/pytorch/pytorch/issues/180284). AOTAutograd traces what the node does and sees the real rules.
    """

    def node(*args: Any) -> Any:
        _mark_cacheable()
        return call(args)

    node.__name__ = node.__qualname__ = f"{operator.__name__}_in_graph"
    node.__module__ = operator.__module__
    # A class made by a function holds that function's arguments: code of users, which the fingerprint does not cover.
    if node.__module__.startswith(f"{_PACKAGE}.") and "<locals>" not in operator.__qualname__:
        # torch looks a function up by its name before it caches a graph with it.
        setattr(sys.modules[node.__module__], node.__name__, node)
        _nodes[f"{node.__module__}.{node.__name__}"] = operator, _rules_of(operator)
    return torch_private.mark_for_dynamo(torch.compiler.allow_in_graph, node)


def recomputed(function: Any, *args: Any, **kwargs: Any) -> Any:
    """``function(…)`` for use in a derivative rule: compiled code computes it in the backward and does not save its result.

    AOTAutograd's partitioner moves what depends on saved inputs alone into the forward, and would keep a mask or a float per
    element although the input is alive anyway. The mark is the one that ``torch.utils.checkpoint`` puts on its nodes.
    It is for the CPU, where memory is slow compared with arithmetic and compiled code stores bools one by one.
    """
    first = next((a for a in args if isinstance(a, Tensor)), None)
    if is_dynamo_compiling() or not is_tracing() or first is None or first.device.type != "cpu":
        return function(*args, **kwargs)
    notes, thread = torch_private.node_notes(), threading.get_ident()
    if thread in _marking:
        return function(*args, **kwargs)
    # torch keeps one dict for all threads: the marks of another thread at this moment must not be restored.
    before = {} if _marking else {key: notes[key] for key in ("recompute", "ac_graph_id") if key in notes}
    notes.update(recompute=CheckpointPolicy.MUST_RECOMPUTE, ac_graph_id=before.get("ac_graph_id", 0))
    _marking.add(thread)
    try:
        return function(*args, **kwargs)
    finally:
        _marking.discard(thread)
        if not _marking:
            for key in ("recompute", "ac_graph_id"):
                notes.pop(key, None)
            notes.update(before)


# The threads that mark what they trace.
_marking: set[int] = set()


def _rules_of(operator: Any) -> list[Any]:
    return [getattr(operator, rule) for rule in ("forward", "setup_context", "vjp", "jvp", "vmap")]


def _mark_cacheable() -> None:
    """Let torch cache compiled graphs of the package's own operators, under a key that no other code shares.

    A graph refers to an operator by name: a graph from the cache, of an operator that has changed since, would be silently wrong.
    The operators of users are not cached, since the extent of their code is not known.
    """
    key = _fingerprint()
    if key is None:
        return
    if any(_rules_of(operator) != rules for operator, rules in _nodes.values()):
        key = f"{os.getpid()} {_IMPORTED}"  # a rule was replaced, by a test for instance: valid in this process only
    torch_private.mark_cacheable(dict.fromkeys(_nodes, key))


@functools.cache
def _fingerprint() -> str | None:
    """A hash of the source that makes graphs, or None if the files may differ from the imported code."""
    digest, folder = hashlib.sha256(torch_private.DISPATCH.encode()), pathlib.Path(__file__).parents[1]
    files = sorted(f for f in folder.rglob("*.py") if f.relative_to(folder).parts[0] not in _NOT_IN_GRAPHS)
    for file in files:
        changed = file.stat()
        if max(changed.st_mtime, changed.st_ctime) > _IMPORTED - 2:  # seconds, for coarse clocks of file systems
            return None
        digest.update(f"\0{file.relative_to(folder).as_posix()}\0".encode() + file.read_bytes())
    return digest.hexdigest() if files else None
