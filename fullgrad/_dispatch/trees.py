"""Nested structures of tensors, as torch.func takes and returns them."""

from collections import OrderedDict, defaultdict
from typing import Any

from fullgrad._dispatch.torch_private import pytree


def tree_map_with_path(function: Any, tree: Any) -> Any:
    """The structure with ``function(path, leaf)`` for every leaf; the path is Python code, such as ``[0]``."""
    return pytree.tree_map_with_path(lambda path, leaf: function(pytree.keystr(path), leaf), tree)


_DICTS: tuple[Any, ...] = (dict, OrderedDict, defaultdict)


def ordered(tree: Any, like: Any) -> Any:
    """The structure with the entries of its dicts in the order of another's: torch counts leaves in that order, not by key."""
    kind: Any = type(tree)
    if kind in _DICTS and isinstance(like, dict) and tree.keys() == like.keys():
        items = {key: ordered(tree[key], like[key]) for key in like}
        return defaultdict(tree.default_factory, items) if kind is defaultdict else kind(items)
    if isinstance(tree, (tuple, list)) and isinstance(like, (tuple, list)) and len(tree) == len(like):
        parts = [ordered(a, b) for a, b in zip(tree, like, strict=True)]
        return kind(*parts) if hasattr(tree, "_fields") else kind(parts)
    if kind is type(like) and kind in pytree.SUPPORTED_NODES and not isinstance(tree, dict):  # a deque, or a registered type
        parts, spec = pytree.tree_flatten(tree, lambda v: v is not tree)
        others = pytree.tree_leaves(like, lambda v: v is not like)
        if len(parts) == len(others):
            return pytree.tree_unflatten([ordered(a, b) for a, b in zip(parts, others, strict=True)], spec)
    return tree


def tree_map_pairs(function: Any, first: Any, second: Any, name: str) -> Any:
    """``function`` of the pairs of leaves of two equal structures."""
    leaves, structure = pytree.tree_flatten(first)
    others, other = pytree.tree_flatten(ordered(second, first))
    if structure != other:
        raise ValueError(f"{name}: the two outputs must have one structure, got {structure} and {other}.")
    return pytree.tree_unflatten([function(a, b) for a, b in zip(leaves, others, strict=True)], structure)
