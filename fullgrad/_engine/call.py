"""`Call`: the arguments of a call as a list of tensors, and back. Arguments and results are any pytree."""

import gc
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fullgrad._dispatch import ordered, pytree
from fullgrad._engine.modules import check_modes, modes_of, run_with_states, state_of
from fullgrad._engine.symbols import SYMBOLS, concrete
from fullgrad._engine.watching import seen


class _Tensor:
    """The place of a tensor among the leaves of a structure."""


_PLAIN = (int, float, complex, bool, str, bytes, type(None), type, torch.dtype, torch.device, *SYMBOLS)


class _Flat(NamedTuple):
    """The structure of a tuple or list of tensors and constants, or of no keywords, the most frequent ones; torch's takes ten
    times as long.
    """

    kind: type
    length: int


def flattened(tree: Any) -> tuple[list[Any], Any]:
    """The leaves of a structure, and its description, from which `unflattened` makes it again."""
    if tree.__class__ in (tuple, list) and all(isinstance(v, (Tensor, float, int, str, type(None))) for v in tree):
        return list(tree), _Flat(tree.__class__, len(tree))
    if tree.__class__ is dict and not tree:
        return [], _Flat(dict, 0)
    return pytree.tree_flatten(tree)


def unflattened(leaves: list[Any], spec: Any) -> Any:
    """The structure of some leaves."""
    return spec.kind(leaves) if spec.__class__ is _Flat else pytree.tree_unflatten(leaves, spec)


class Call:
    """The arguments of a call. ``tensors`` are the tensors in them, with the parameters and buffers of modules; everything else
    is constant.
    """

    def __init__(self, args: Sequence[Any]) -> None:
        self.tensors: list[Tensor] = []
        self.parts = [_Argument(a, self.tensors) for a in args]
        self.tensors = list(seen(self.tensors))

    def objects(self) -> list[Any]:
        """The constants that may hold tensors, as an object with attributes does: a function meets these tensors as captured."""
        leaves = [leaf for part in self.parts for leaf in part.leaves or ()]
        return [v for v in leaves if v is not _Tensor and not isinstance(v, (nn.Module, *_PLAIN))]

    def symbols(self) -> list[Any]:
        """The numbers among the constants that change from call to call of compiled code."""
        return [leaf for part in self.parts for leaf in part.leaves or () if leaf.__class__ in SYMBOLS]

    def release(self) -> list[Tensor]:
        """The tensors, which the call forgets, so that autograd alone keeps them."""
        tensors, self.tensors = self.tensors, []
        return tensors

    def run(self, function: Callable[..., Any], tensors: Sequence[Tensor], *more: Any) -> Any:
        """``function(*arguments, *more)`` with other tensors in the arguments, those of modules among them."""
        states: list[tuple[nn.Module, dict[str, Tensor]]] = []
        args = [part.filled(own, states) for part, own in zip(self.parts, self.split(tensors), strict=True)]
        return run_with_states(states, lambda: function(*args, *more))

    def beside(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments with values in the places of the tensors: a module is a dict by name, a number 0, all else None."""
        return tuple([part.beside(own) for part, own in zip(self.parts, self.split(values), strict=True)])

    def split(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        """The values of each argument, from those of all."""
        found, position = [], 0
        for part in self.parts:
            found.append(values[position : position + part.count])
            position += part.count
        return found


class _Argument:
    """One argument: a tensor, a structure of tensors, modules and constants, or a constant. Its tensors go to a list."""

    __slots__ = ("count", "leaves", "modes", "spec")

    def __init__(self, value: Any, tensors: list[Tensor]) -> None:
        self.modes: list[tuple[nn.Module, bool]] = []
        if isinstance(value, Tensor):
            self.leaves, self.spec, self.count = None, None, 1
            tensors.append(value)
            return
        self.leaves, self.spec = flattened(value)
        before = len(tensors)
        for i, leaf in enumerate(self.leaves):
            if isinstance(leaf, Tensor):
                tensors.append(leaf)
                self.leaves[i] = _Tensor
            elif leaf.__class__ is torch.SymBool:
                self.leaves[i] = bool(leaf)  # of which compiled code has a graph each
            elif isinstance(leaf, nn.Module):
                tensors += state_of(leaf).values()
                self.modes += modes_of(leaf)
        self.count = len(tensors) - before

    def filled(self, tensors: Sequence[Tensor], states: list[Any]) -> Any:
        """The argument with tensors. Those of modules are noted, as they are replaced while the function runs."""
        if self.leaves is None:
            return tensors[0]
        check_modes(self.modes)
        rest, leaves = iter(tensors), []
        for leaf in self.leaves:
            if isinstance(leaf, nn.Module):
                states.append((leaf, {name: next(rest) for name in state_of(leaf)}))
            leaves.append(next(rest) if leaf is _Tensor else concrete(leaf) if leaf.__class__ in SYMBOLS else leaf)
        return unflattened(leaves, self.spec)

    def flattened(self, value: Any, label: str) -> list[Any]:
        """The leaves of a structure like that of `beside` in the places of the tensors; None stands for any part of it."""
        if value is None:
            return [None] * self.count
        if self.leaves is None:
            return [value]
        like = self.beside([_Tensor] * self.count)
        value, (marks, spec) = ordered(value, like), pytree.tree_flatten(like)
        leaves = pytree._broadcast_to_and_flatten(value, spec)
        # Only None may stand for several leaves.
        if leaves is None or sum([v is not None for v in leaves]) != sum([v is not None for v in pytree.tree_leaves(value)]):
            raise TypeError(f"{label} must have its structure, {spec}, got {pytree.tree_structure(value)}.")
        return [leaf for leaf, mark in zip(leaves, marks, strict=True) if mark is _Tensor]

    def beside(self, values: Sequence[Any]) -> Any:
        """The argument with values in the places of its tensors."""
        if self.leaves is None:
            return values[0]
        rest, leaves = iter(values), []
        for leaf in self.leaves:
            if isinstance(leaf, nn.Module):
                leaves.append({name: next(rest) for name in state_of(leaf)})
            else:
                is_number = isinstance(leaf, (int, float, complex, torch.SymInt, torch.SymFloat)) and not isinstance(leaf, bool)
                leaves.append(next(rest) if leaf is _Tensor else 0.0 if is_number else None)
        return unflattened(leaves, self.spec)


def hidden_tensors(value: Any, depth: int = 6, but: tuple[type, ...] = ()) -> Iterator[Tensor]:
    """The tensors that an object refers to in attributes, closures and containers, but not in types and packages, nor in objects
    of some other types.
    """
    if isinstance(value, Tensor):
        yield value
    elif depth and not isinstance(value, (type, types.ModuleType, *but)):
        is_array = getattr(getattr(value, "dtype", None), "hasobject", False)  # of numpy, which tells nothing of its objects
        for item in value.flat if is_array else gc.get_referents(value):
            if not (isinstance(item, dict) and ("__builtins__" in item or "__spec__" in item)):  # the globals of a function
                yield from hidden_tensors(item, depth - 1, but)


def refuse_hidden(label: str, leaves: Sequence[Any], but: tuple[type, ...] = (nn.Module,)) -> None:
    """Refuse objects among the leaves of a structure that hold tensors: no derivative would reach them."""
    for leaf in leaves:
        if isinstance(leaf, (Tensor, *but, *_PLAIN)):
            continue
        # A generator may make tensors later.
        if isinstance(leaf, types.GeneratorType) or any(True for _ in hidden_tensors(leaf, but=but)):
            raise TypeError(
                f"{label} a value of type {type(leaf).__name__}, which holds tensors that would lose their derivatives. Pass "
                "tensors, or where structures are taken a tuple, list or dict of them, or a type that is registered by "
                "torch.utils._pytree.register_dataclass or register_pytree_node."
            )


class Result:
    """A result as a list of its tensors, and back."""

    def __init__(self, result: Any, label: str = "An operator made of functions") -> None:
        if isinstance(result, Tensor):
            self.leaves, self.spec, self.tensors = None, None, [result]
            return
        self.leaves, self.spec = flattened(result)
        refuse_hidden(f"{label} returns", self.leaves)
        self.tensors = [v for v in self.leaves if isinstance(v, Tensor)]
        self.leaves = [_Tensor if isinstance(v, Tensor) else v for v in self.leaves]

    def symbols(self) -> list[Any]:
        """The numbers in it that change from call to call of compiled code."""
        return [leaf for leaf in self.leaves or () if leaf.__class__ in SYMBOLS]

    def constants(self) -> list[Any]:
        """The leaves in it that are no tensors."""
        return [leaf for leaf in self.leaves or () if leaf is not _Tensor]

    def release(self) -> list[Tensor]:
        """The tensors, which the result forgets."""
        tensors, self.tensors = self.tensors, []
        return tensors

    def whole(self) -> Any:
        """The result itself, of which nothing is kept."""
        return self.tree(self.release())

    def tree(self, tensors: Sequence[Any], *constant: Any) -> Any:
        """The result with values in the places of its tensors, and of all else, if another value is given."""
        if self.leaves is None:
            return tensors[0]
        rest = iter(tensors)
        leaves = [
            next(rest) if v is _Tensor else constant[0] if constant else concrete(v) if v.__class__ in SYMBOLS else v
            for v in self.leaves
        ]
        return unflattened(leaves, self.spec)

    def flattened(self, tree: Any, label: str) -> list[Any]:
        """The leaves of another structure in the places of the tensors."""
        if self.leaves is None:
            return [tree]
        leaves, spec = flattened(tree)
        if spec != self.spec:
            like = self.tree([0.0] * len(self.leaves), None)
            leaves, spec = flattened(ordered(tree, like))
            if spec != self.spec:
                wanted, found = (pytree.tree_structure(t) for t in (like, tree))
                raise TypeError(f"{label} must have the structure of the result, {wanted}, got {found}.")
        return [leaf for leaf, mark in zip(leaves, self.leaves, strict=True) if mark is _Tensor]


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in what a function returned: in any structure, or in the parts into which it was taken."""
    if isinstance(value, (Tensor, Result)):
        return [value] if isinstance(value, Tensor) else value.tensors
    leaves = value if isinstance(value, list) else pytree.tree_leaves(value)
    return [
        t
        for leaf in leaves
        if isinstance(leaf, (Tensor, Call, Result))
        for t in ([leaf] if isinstance(leaf, Tensor) else leaf.tensors)
    ]
