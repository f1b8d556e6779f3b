"""`Call`: the arguments of a call as a list of tensors, and back. Arguments and results are any pytree."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fullgrad._dispatch import pytree


class Call:
    """The arguments of a call. ``tensors`` are the tensors in them, with the parameters and buffers of modules; everything else
    is constant.
    """

    def __init__(self, args: Sequence[Any]) -> None:
        self.parts = [_Argument(a) for a in args]
        self.tensors: list[Tensor] = [t for part in self.parts for t in part.tensors]

    def run(self, function: Callable[..., Any], tensors: Sequence[Tensor], *more: Any) -> Any:
        """``function(*arguments, *more)`` with other tensors in the arguments, those of modules among them."""
        states: list[tuple[nn.Module, dict[str, Tensor]]] = []
        args = [part.filled(own, states) for part, own in zip(self.parts, self.split(tensors), strict=True)]
        if not states:
            return function(*args, *more)
        holder = _Holder([module for module, _ in states])
        state = {f"held.{i}.{name}": t for i, (_, named) in enumerate(states) for name, t in named.items()}
        return torch.func.functional_call(holder, state, (lambda: function(*args, *more),))

    def beside(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments with values in the places of the tensors: a module is a dict by name, a number 0, all else None."""
        return tuple([part.beside(own) for part, own in zip(self.parts, self.split(values), strict=True)])

    def split(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        """The values of each argument, from those of all."""
        found, position = [], 0
        for part in self.parts:
            found.append(values[position : position + len(part.tensors)])
            position += len(part.tensors)
        return found


class _Argument:
    """One argument: a tensor, a structure of tensors, modules and constants, or a constant."""

    def __init__(self, value: Any) -> None:
        if isinstance(value, Tensor):
            self.leaves, self.spec, self.tensors = (value,), None, (value,)
            return
        self.leaves, self.spec = pytree.tree_flatten(value)
        self.tensors = tuple(
            [
                t
                for leaf in self.leaves
                for t in ((leaf,) if isinstance(leaf, Tensor) else state_of(leaf).values() if isinstance(leaf, nn.Module) else ())
            ]
        )

    def filled(self, tensors: Sequence[Tensor], states: list[Any]) -> Any:
        """The argument with other tensors. Those of modules are noted, as they are replaced while the function runs."""
        if self.spec is None:
            return tensors[0]
        rest, leaves = iter(tensors), []
        for leaf in self.leaves:
            if isinstance(leaf, nn.Module):
                states.append((leaf, {name: next(rest) for name in state_of(leaf)}))
            leaves.append(next(rest) if isinstance(leaf, Tensor) else leaf)
        return pytree.tree_unflatten(leaves, self.spec)

    def flattened(self, value: Any, label: str) -> list[Any]:
        """What a structure like `beside` has in the places of the tensors; None stands for any part of it."""
        n = len(self.tensors)
        if value is None:
            return [None] * n
        if self.spec is None:
            return [value]
        marks, spec = pytree.tree_flatten(self.beside([Ellipsis] * n))
        leaves = broadcast_prefix(value, spec)
        if leaves is None:
            raise TypeError(f"{label} must have its structure, {spec}, got {pytree.tree_structure(value)}.")
        return [leaf for leaf, mark in zip(leaves, marks, strict=True) if mark is Ellipsis]

    def beside(self, values: Sequence[Any]) -> Any:
        """The argument with values in the places of its tensors."""
        if self.spec is None:
            return values[0]
        rest, leaves = iter(values), []
        for leaf in self.leaves:
            if isinstance(leaf, nn.Module):
                leaves.append({name: next(rest) for name in state_of(leaf)})
            else:
                is_number = isinstance(leaf, (int, float, complex)) and not isinstance(leaf, bool)
                leaves.append(next(rest) if isinstance(leaf, Tensor) else 0.0 if is_number else None)
        return pytree.tree_unflatten(leaves, self.spec)


class _Holder(nn.Module):
    """Modules whose parameters `torch.func.functional_call` replaces while a function runs."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        self.held = nn.ModuleList(modules)

    def forward(self, run: Callable[[], Any]) -> Any:
        return run()


def state_of(module: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of a module, by name."""
    return dict(module.named_parameters()) | dict(module.named_buffers())


class Result:
    """A result as a list of its tensors, and back."""

    def __init__(self, result: Any) -> None:
        self.is_tensor = isinstance(result, Tensor)
        self.leaves, self.spec = ([result], None) if self.is_tensor else pytree.tree_flatten(result)
        self.tensors = [v for v in self.leaves if isinstance(v, Tensor)]

    def tree(self, tensors: Sequence[Any], *constant: Any) -> Any:
        """The result with other values in the places of its tensors, and of all else, if another value is given."""
        if self.is_tensor:
            return tensors[0]
        rest = iter(tensors)
        leaves = [next(rest) if isinstance(v, Tensor) else constant[0] if constant else v for v in self.leaves]
        return pytree.tree_unflatten(leaves, self.spec)


def broadcast_prefix(value: Any, spec: Any) -> list[Any] | None:
    """The leaves of a structure in which None may stand for a part, or None if it has another structure."""
    leaves = pytree._broadcast_to_and_flatten(value, spec)
    if leaves is None or sum([v is not None for v in leaves]) != sum([v is not None for v in pytree.tree_leaves(value)]):
        return None
    return leaves
