"""Nested structures of tensors, as torch.func takes and returns them."""

from typing import Any

from fullgrad._dispatch.torch_private import pytree


def tree_map_with_path(function: Any, tree: Any) -> Any:
    """The structure with ``function(path, leaf)`` for every leaf; the path is Python code, such as ``[0]``."""
    return pytree.tree_map_with_path(lambda path, leaf: function(pytree.keystr(path), leaf), tree)


def tree_map_pairs(function: Any, first: Any, second: Any, name: str) -> Any:
    """``function`` of the pairs of leaves of two equal structures."""
    leaves, structure = pytree.tree_flatten(first)
    others, other = pytree.tree_flatten(second)
    if structure != other:
        raise ValueError(f"{name}: the two outputs must have one structure, got {structure} and {other}.")
    return pytree.tree_unflatten([function(a, b) for a, b in zip(leaves, others, strict=True)], structure)
