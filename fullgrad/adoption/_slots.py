"""`Slot`: a place for a tensor in what ``ctx`` keeps and in the arguments of a call."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import pytree
from fullgrad.adoption._tensors import Maybe

_EXACT = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


class Slot(int):
    """A placeholder for a tensor of a call: its position among inputs, outputs and other kept tensors, in this order."""


class NumberSlot(Slot):
    """A placeholder for a number, kept as a tensor."""


class ArraySlot(Slot):
    """A placeholder for an array or a number of numpy, kept as a tensor."""


def is_array(value: Any) -> bool:
    """Whether a value is an array or a number of numpy."""
    return type(value).__module__ == "numpy" and hasattr(value, "dtype")


def number_as_tensor(value: Any) -> Tensor | None:
    """A number or an array as a tensor of its own memory; None for all else."""
    if type(value) in _EXACT:
        return torch.tensor(value, dtype=_EXACT[type(value)])
    try:
        return torch.as_tensor(value).clone() if is_array(value) else None
    except TypeError:  # an array of objects, or of a dtype that torch lacks
        return None


def comparable(tree: Any) -> Any:
    """A structure that `==` compares, though there are arrays in it."""
    return replaced(tree, lambda leaf: (str(leaf.dtype), leaf.shape, leaf.tobytes()) if is_array(leaf) else leaf)


def replaced(tree: Any, replace: Callable[[Any], Any]) -> Any:
    """A structure with replaced leaves; the same object if no leaf changes, since a class may write to it."""
    leaves, structure = pytree.tree_flatten(tree)
    others = [replace(leaf) for leaf in leaves]
    return tree if all(a is b for a, b in zip(others, leaves, strict=True)) else pytree.tree_unflatten(others, structure)


def filled(tree: Any, tensors: Maybe) -> Any:
    """A structure with tensors for slots."""

    def fill(leaf: Any) -> Any:
        if not isinstance(leaf, Slot):
            return leaf
        t: Any = tensors[leaf]
        return t.item() if isinstance(leaf, NumberSlot) else t.numpy()[()] if isinstance(leaf, ArraySlot) else t

    return replaced(tree, fill)
