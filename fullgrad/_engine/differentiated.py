"""Which tensors may have a derivative, which are differentiated now, and the leaves of their graphs."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from fullgrad._dispatch import are_differentiated, forward_mode_is_on, is_tracing, transforms_active


def is_floating(dtype: torch.dtype) -> bool:
    """Whether a dtype has derivatives."""
    return dtype.is_floating_point or dtype.is_complex


def may_differ(tensor: Tensor) -> bool:
    """Whether a tensor may have a derivative."""
    return is_floating(tensor.dtype)


def is_differentiated(tensors: Sequence[Tensor]) -> bool:
    """Whether one of some tensors requires a gradient or has a tangent, at any level."""
    # Compiled autograd lets Dynamo trace a backward, in which torch's state cannot be asked.
    if not is_dynamo_compiling() and (transforms_active() or forward_mode_is_on() or is_tracing()):
        return any(are_differentiated(tensors))
    return torch.is_grad_enabled() and any([t.requires_grad for t in tensors])  # noqa: C419  # on the hot path


def is_differentiated_by_others(tensors: Sequence[Tensor], given: Sequence[Tensor]) -> bool:
    """Whether one of some tensors has a derivative by others than the given ones, which code may have made require a gradient."""
    if not is_differentiated(tensors):
        return False
    return transforms_active() or forward_mode_is_on() or is_tracing() or not leaves_of(tensors) <= {id(t) for t in given}


def leaves_of(tensors: Sequence[Tensor]) -> set[int]:
    """The identities of the leaf tensors of graphs."""
    found, seen, stack = set(), set(), [t.grad_fn for t in tensors]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        found.add(id(getattr(node, "variable", None)))
        stack += [next_node for next_node, _ in node.next_functions]
    return (found | {id(t) for t in tensors if t.is_leaf and t.requires_grad}) - {id(None)}
