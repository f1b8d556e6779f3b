"""Questions about tensors and structures of them."""

import gc
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import clone_if_view, get_unwrapped, is_alias_of, is_batched, is_tracing, is_wrapped, pytree

Maybe = Sequence[Tensor | None]
NO_ARGUMENT = "{} uses a batched tensor that is none of its arguments; pass it as one."


class Refused(NotImplementedError):
    """What cannot be right, and what running sample by sample would not mend."""


class Slot(int):
    """Stands for a tensor of a call: its place among the inputs, the outputs and what else a context keeps, in this order."""


class NumberSlot(Slot):
    """Stands for a number, kept as a tensor."""


def may_differ(tensor: Tensor | None) -> bool:
    """Whether it may have a gradient."""
    return tensor is not None and (tensor.is_floating_point() or tensor.is_complex())


def separate(name: str, out: Tensor, tensors: Maybe) -> Tensor:
    """A result of a forward below all transforms: no memory in common with the inputs, no view, no graph.

    One that belongs to a transform comes from a tensor that is no argument: constant in a differentiated one, as in eager
    autograd, and lost in a batched one.
    """
    while is_wrapped(out):
        if is_batched(out):
            raise Refused(NO_ARGUMENT.format(name))
        out = get_unwrapped(out)
    return clone_if_view(out.clone() if any(t is not None and is_alias_of(out, t) for t in tensors) else out).detach()


def versions(tensors: Maybe) -> list[int]:
    """How often each was changed in place. Inference mode does not count."""
    return [] if is_tracing() else [t._version for t in tensors if t is not None and not t.is_inference()]


def replaced(tree: Any, replace: Callable[[Any], Any]) -> Any:
    """A structure with other leaves; the very same object where all stay, since a class may write to it."""
    leaves, structure = pytree.tree_flatten(tree)
    others = [replace(leaf) for leaf in leaves]
    return tree if all(a is b for a, b in zip(others, leaves, strict=True)) else pytree.tree_unflatten(others, structure)


def filled(tree: Any, tensors: Maybe) -> Any:
    """A structure with tensors for slots."""

    def fill(leaf: Any) -> Any:
        if not isinstance(leaf, Slot):
            return leaf
        return tensors[leaf].item() if isinstance(leaf, NumberSlot) else tensors[leaf]  # pyright: ignore

    return replaced(tree, fill)


def hidden_tensors(value: Any, depth: int = 6) -> Iterator[Tensor]:
    """The tensors that an object refers to: in its attributes, closures and containers, not in modules and types."""
    if isinstance(value, Tensor):
        yield value
    elif depth and not isinstance(value, (type, ModuleType)):
        for item in gc.get_referents(value):
            if not (isinstance(item, dict) and "__spec__" in item):  # the globals of a function
                yield from hidden_tensors(item, depth - 1)


def same_draws(tensors: Maybe) -> Any:
    """A context after which random numbers go on as if nothing had been drawn."""
    return torch.random.fork_rng(_devices(tensors))


def random_state(tensors: Maybe) -> Tensor:
    """That of the CPU, and of the devices of the tensors."""
    return torch.cat([torch.get_rng_state(), *map(torch.cuda.get_rng_state, _devices(tensors))])


def _devices(tensors: Maybe) -> set[torch.device]:
    """Those with a random state of their own."""
    return {t.device for t in tensors if t is not None and t.is_cuda}
