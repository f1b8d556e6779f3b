"""Nested structures of tensors, as torch.func takes and returns them."""

from typing import Any

from fullgrad._dispatch.torch_private import pytree


def tree_map_with_path(function: Any, tree: Any) -> Any:
    """``function(path, leaf)`` of every leaf, the path as it would be written in Python, in the same structure."""
    return pytree.tree_map_with_path(lambda path, leaf: function(pytree.keystr(path), leaf), tree)


def tree_map_pairs(function: Any, first: Any, second: Any, name: str) -> Any:
    """``function`` of the leaves of two structures that are alike."""
    leaves, structure = pytree.tree_flatten(first)
    others, other = pytree.tree_flatten(second)
    if structure != other:
        raise ValueError(f"{name}: the two outputs must have one structure, got {structure} and {other}.")
    return pytree.tree_unflatten([function(a, b) for a, b in zip(leaves, others, strict=True)], structure)
