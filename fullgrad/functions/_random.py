"""Functions that draw random numbers, called again with the same draw."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fullgrad._core.generators import random_states, restore_random_states, same_draws
from fullgrad._dispatch import TorchDispatchMode, is_tracing


class Draw:
    """The random numbers that a function draws when it is first called: `first` notes the generators' states, `again` restores
    them for another call of the function.
    """

    def __init__(self, name: str) -> None:
        self.name, self.states = name, None

    def first(self, function: Callable[[], Any]) -> Any:
        """The result of a function."""
        if is_tracing():
            return function()
        before = random_states()
        result = function()
        if not all(map(torch.equal, before, random_states())):
            self.states = before
        return result

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """A context in which the function draws what it drew."""
        if torch.compiler.is_dynamo_compiling():  # which traces no modes
            yield
        elif is_tracing():
            with _NoDraw(self.name):
                yield
        elif self.states is None:
            yield
        else:
            with same_draws():
                restore_random_states(self.states)
                yield


class _NoDraw(TorchDispatchMode):
    """Refuses random numbers in a call that a tracer records: it cannot draw what another call in the graph has drawn."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise NotImplementedError(
                f"{self.name} draws random numbers, and compiled code cannot draw the same ones in its derivative. Draw them "
                "outside, and pass them as an argument."
            )
        return func(*args, **(kwargs or {}))
