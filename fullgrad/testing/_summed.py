"""`summed_gradient`: a gradient of a larger shape than its input, of which torch takes the sum without a word."""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from fullgrad._core.elementwise import Elementwise
from fullgrad._dispatch import output_metadata
from fullgrad.testing._subject import Subject, close, scalar


def summed_gradient(s: Subject) -> str | None:
    """The gradient that a backward of the operator returns for torch to sum, if the sum is wrong; None without one."""
    found: list[str] = []
    leaves = s.leaves()
    y = scalar(s.op)(*leaves)
    with contextlib.ExitStack() as patches:
        for kind in {type(node) for node in _nodes(y.grad_fn) if _returns_more(node)}:
            patches.enter_context(mock.patch.object(kind, "apply", _watched(kind, found)))
        gradients = torch.autograd.grad(y, leaves, materialize_grads=True)
    if not found:
        return None
    try:
        if s.surrogate is not None:
            close(gradients, s.gradients(s.reference))
        elif s.has_tangent and s.linear:
            tangents = s.tangents()
            forward = torch.func.jvp(scalar(s.op), s.tensors, tangents)[1]
            backward = [(g * t).sum() for g, t in zip(gradients, tangents, strict=True)]
            close(torch.stack(backward).sum(), forward)
    except AssertionError as wrong:
        return f"{found[0]}, which torch sums: {wrong}"
    return None


def _nodes(last: Any) -> Iterator[Any]:
    waiting, seen = [last], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting += [following for following, _ in node.next_functions]


def _returns_more(node: Any) -> bool:
    """Whether a node has a backward of the user; `Elementwise` itself leaves sums of broadcast inputs to torch."""
    operator = getattr(getattr(node, "_forward_cls", None), "operator", object)
    return isinstance(node, BackwardCFunction) and not issubclass(operator, Elementwise)


def _watched(kind: Any, found: list[str]) -> Any:
    """The backward of a class of nodes, which notes the shapes that differ."""
    backward = kind.apply

    def apply(node: Any, *cotangents: Any) -> Any:
        gradients = backward(node, *cotangents)
        several = gradients if isinstance(gradients, tuple) else (gradients,)
        needed = [(i, g) for i, (g, asked) in enumerate(zip(several, node.needs_input_grad, strict=False)) if asked]
        edges = [edge for edge in node.next_functions if edge[0] is not None]
        for (i, g), (before, position) in zip(needed, edges, strict=False):
            shape = _shape(before, position)
            if isinstance(g, Tensor) and g.shape != shape:
                name = kind.__name__.removesuffix("Backward")
                found.append(f"{name} returns a gradient of shape {tuple(g.shape)} for input {i} of shape {tuple(shape)}")
        return gradients

    return apply


def _shape(node: Any, position: int) -> torch.Size:
    """The shape of the tensor that an edge leads to."""
    leaf = getattr(node, "variable", None)
    return torch.Size(output_metadata(node)[position].shape) if leaf is None else leaf.shape
