"""The unit vectors of a structure of tensors, or random directions, one at a time or in chunks."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._dispatch import is_tracing, pytree
from fullgrad._engine.random_states import restore_random_states, untraced_random_states
from fullgrad._engine.replay import NoDraw
from fullgrad.forward._context import right_derivatives
from fullgrad.forward._curve import is_too_large

_REASON = "a trace cannot draw the same ones for each chunk of `chunk_size` directions"
DISTRIBUTIONS = ("rademacher", "normal")


class Point:
    """The tensors of a structure, such as a dict of parameters, at which a function is differentiated."""

    def __init__(self, name: str, argument: str, tree: Any) -> None:
        self.tensors, self.spec = pytree.tree_flatten(tree)
        for t in self.tensors:
            checks.floating_tensor(name, argument, t)
        self.counts = [t.numel() for t in self.tensors]
        self.is_written = False
        if not sum(self.counts):
            raise ValueError(f"{name}: `{argument}` must have elements, got the shapes {[tuple(t.shape) for t in self.tensors]}.")

    def tree(self, leaves: Sequence[Any]) -> Any:
        """The structure with other leaves."""
        return pytree.tree_unflatten(list(leaves), self.spec)

    def function(self, f: Callable[..., Any], constants: Sequence[Any], keywords: Mapping[str, Any]) -> Callable[..., Any]:
        """``f`` of the tensors alone."""
        return lambda *tensors: f(self.tree(tensors), *constants, **keywords)

    def indices(self) -> Tensor:
        """The numbers of all elements."""
        return torch.arange(sum(self.counts), device=self.tensors[0].device)

    def unit(self, index: Tensor) -> tuple[Tensor, ...]:
        """The tensors that are 1 at one element and 0 elsewhere."""
        found, first = [], 0
        for t, count in zip(self.tensors, self.counts, strict=True):
            places = torch.arange(first, first + count, device=t.device).reshape(t.shape)
            found.append((places == index.to(t.device)).to(t.dtype))
            first += count
        return tuple(found)

    def units(self, first: int, end: int) -> list[Tensor]:
        """The tensors that are 1 at an element and 0 elsewhere, of these elements, with their number in front."""
        like = self.tensors[0]
        rows = torch.arange(first, end, device=like.device).unsqueeze(1) == torch.arange(sum(self.counts), device=like.device)
        parts = zip(rows.split(self.counts, 1), self.tensors, strict=True)
        return [p.to(t.device, t.dtype).reshape(end - first, *t.shape) for p, t in parts]

    def tangents(self, directions: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Directions for forward mode, each with the samples of its tensor if the function writes in place."""
        pairs = zip(directions, self.tensors, strict=True)
        return tuple([d + torch.zeros_like(t) if self.is_written else d for d, t in pairs])

    def by_element(self, found: Tensor) -> Any:
        """The structure, from numbers whose last dimension counts all elements."""
        parts = found.split(self.counts, -1)
        return self.tree([p.reshape([*p.shape[:-1], *t.shape]) for p, t in zip(parts, self.tensors, strict=True)])

    def probes(self, probes: "Probes") -> tuple[Tensor, ...]:
        """Random tensors, with the number of the draw in front."""
        return tuple([probes.draw(t) for t in self.tensors])


def positive_or_none(name: str, argument: str, value: int | None) -> None:
    """Refuse what is neither a positive integer nor None."""
    if value is not None and (isinstance(value, bool) or (checks.as_integer(value) or 0) < 1):
        raise ValueError(f"{name}: `{argument}` must be a positive integer or None, got {value!r}.")


def returned(name: str, value: Any) -> Tensor:
    """A result, which must be a tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: the function must return a tensor, got a value of type {type(value).__name__}.")
    return value


def in_chunks(name: str, run: Callable[[int, int], Any], count: int, chunk_size: int | None) -> list[Any]:
    """The results of ``run(first, end)`` for each chunk of a count of directions, which all draw the same random numbers.

    The chunks of `torch.func.vmap` share the draws of the CPU alone.
    """
    size = chunk_size or count
    before = untraced_random_states() if size < count else []
    found = []
    for first in range(0, count, size):
        if first:
            restore_random_states(before)
        with NoDraw(name, _REASON) if first and is_tracing() else contextlib.nullcontext():
            found.append(run(first, min(count, first + size)))
    return found


def mapped(name: str, function: Callable[..., Any], directions: Sequence[Tensor], chunk_size: int | None) -> Any:
    """The function of each direction, the results in front; all directions share random numbers."""
    run = torch.func.vmap(function, randomness="same")
    found = in_chunks(name, lambda first, end: run(*[d[first:end] for d in directions]), len(directions[0]), chunk_size)
    return found[0] if len(found) == 1 else pytree.tree_map(lambda *parts: torch.cat(parts), *found)


class Probes:
    """The settings of the makers: how many directions, of which kind, in which chunks. Without a number, all unit vectors."""

    def __init__(
        self,
        name: str,
        probes: int | None,
        distribution: str,
        generator: torch.Generator | None,
        chunk_size: int | None,
        standard_error: bool,
    ) -> None:
        checks.choice(name, "distribution", distribution, DISTRIBUTIONS)
        checks.flag(name, "standard_error", standard_error)
        positive_or_none(name, "probes", probes)
        positive_or_none(name, "chunk_size", chunk_size)
        if standard_error and (probes is None or probes < 2):
            raise ValueError(f"{name}: `standard_error` needs at least 2 probes, got {probes}.")
        if probes is None and generator is not None:
            raise ValueError(f"{name}: `generator` is for probes, of which there are none.")
        self.name, self.count, self.distribution, self.generator = name, probes, distribution, generator
        self.chunk_size, self.standard_error = chunk_size, standard_error

    def draw(self, like: Tensor) -> Tensor:
        """Random numbers of mean 0 and variance 1, of the shape of a tensor, with the number of the draw in front."""
        kind: Any = {"size": [self.count, *like.shape], "device": like.device, "generator": self.generator}
        if self.distribution == "normal":
            return torch.randn(dtype=like.dtype, **kind)
        return torch.randint(0, 2, **kind).to(like.dtype) * 2 - 1

    def map(self, point: Point, function: Callable[..., Any], *directions: Any) -> Any:
        """The function of each direction, the results in front."""
        before = untraced_random_states()
        with right_derivatives():
            try:
                return mapped(self.name, function, directions, self.chunk_size)
            except RuntimeError as error:
                if not is_too_large(error):
                    raise
            point.is_written = True
            restore_random_states(before)
            return mapped(self.name, function, directions, self.chunk_size)

    def mean(self, found: Any) -> Any:
        """The mean over the draws, with its standard error if that is asked for."""
        mean = pytree.tree_map(lambda v: v.mean(0), found)
        if not self.standard_error:
            return mean
        return mean, pytree.tree_map(lambda v: v.std(0) / v.shape[0] ** 0.5, found)
