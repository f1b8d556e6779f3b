"""Functions called again in a derivative: with the same random numbers, under the same autocast."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import (
    TorchDispatchMode,
    drawing_as_before,
    first_sample,
    is_tracing,
    pytree,
    transforms_active,
    vmaps_that_draw_differently,
)
from fullgrad._engine.call import tensors_of
from fullgrad._engine.random_states import random_states, restore_random_states, same_draws

_MOST = 64  # elements of a result that are kept
_AS_IT_IS = contextlib.nullcontext()


class Replay:
    """The state in which a function is called: `first` notes the states of the random generators, if it draws, and autocast;
    `again` restores them for another call of the function. ``own`` are generators of the user, which the function holds.
    """

    def __init__(self, name: str, own: Sequence[torch.Generator] = ()) -> None:
        self.own = own
        self.name, self.states, self.autocast, self.often, self.vmaps = name, None, {}, False, 0
        self.was_inside = False  # of transforms
        self.kept: list[Tensor] = []

    def noted(self) -> "Replay":
        """This object, which has noted autocast."""
        self.autocast = {} if torch.compiler.is_dynamo_compiling() else _autocast()
        return self

    def first(self, function: Callable[[], Any], is_right: Callable[[Any], bool] | None = None) -> Any:
        """The result of a function; or NotImplemented, as if it had not been called, if the result is not right."""
        self.noted()
        before = [] if is_tracing() else random_states(self.own)
        result = function()
        if is_right is not None and not is_right(result):
            restore_random_states(before, self.own)
            return NotImplemented
        if before and not all(map(torch.equal, before, random_states(self.own))):
            self.often = self.states is not None
            self.states, self.vmaps, self.was_inside = before, vmaps_that_draw_differently(), transforms_active()
            self.kept = [] if self.was_inside else _numbers(tensors_of(result))
        return result

    def check(self, results: Any) -> None:
        """Refuse the results of another call, inside of transforms, in which torch drew other numbers from the same states."""
        if not self.kept or not transforms_active() or is_tracing():
            return
        pairs = zip(self.kept, _numbers(pytree.tree_leaves(results)), strict=True)
        if not all(torch.allclose(a, b, rtol=0.01, atol=0.01, equal_nan=True) for a, b in pairs):
            raise NotImplementedError(
                f"{self.name} draws random numbers, and draws other ones inside of a transform than outside, where it was "
                "called: torch's dropout does so on a GPU, and for tensors that are not contiguous. Call it inside of a "
                "transform, as jacrev does, or draw outside, and pass the numbers as an argument."
            )

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """A context in which the function draws what it drew, and computes in the same precision."""
        if torch.compiler.is_dynamo_compiling():  # which traces no modes
            yield
            return
        with self.same_autocast(), self._same_draws():
            yield

    @contextlib.contextmanager
    def none(self) -> Iterator[None]:
        """A context in the same precision in which a function must not draw, for one that cannot draw what another one drew."""
        if torch.compiler.is_dynamo_compiling():
            yield
            return
        traced = is_tracing()
        before = [] if traced else random_states(self.own)
        with self.same_autocast(), NoDraw(self.name) if traced else contextlib.nullcontext():
            yield
        if not traced and not all(map(torch.equal, before, random_states(self.own))):
            restore_random_states(before, self.own)
            raise NotImplementedError(
                f"{self.name} draws random numbers, which cannot be those of other code. Draw them outside, and pass them as an "
                "argument."
            )

    def same_autocast(self) -> contextlib.AbstractContextManager[Any]:
        """A context, entered at once, in the precision of the call."""
        if not self.autocast or torch.compiler.is_dynamo_compiling() or (now := _autocast()) == self.autocast:
            return _AS_IT_IS
        stack = contextlib.ExitStack()
        for device, (enabled, dtype) in self.autocast.items():
            if now.get(device) != (enabled, dtype):
                stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled))
        return stack

    def cast(self, tensor: Any, dtype: torch.dtype) -> Any:
        """A tensor that autocast gave another dtype, as autograd casts gradients."""
        is_lowered = (
            isinstance(tensor, Tensor) and tensor.dtype != dtype and any(enabled for enabled, _ in self.autocast.values())
        )
        return tensor.to(dtype) if is_lowered and tensor.is_floating_point() and dtype.is_floating_point else tensor

    @contextlib.contextmanager
    def _same_draws(self) -> Iterator[None]:
        if self.often:
            raise NotImplementedError(
                f"{self.name} draws random numbers sample by sample, which cannot be drawn again for a batch. Draw them "
                "outside, and pass them as an argument."
            )
        if is_tracing():
            with NoDraw(self.name):
                yield
        elif self.states is None:
            yield
        elif vmaps_that_draw_differently() > self.vmaps:
            raise NotImplementedError(
                f"{self.name} draws random numbers, and its derivative is batched by a vmap that draws other ones for each "
                'sample. Pass randomness="same" to that vmap: a derivative draws what the function drew.'
            )
        else:
            with same_draws(self.own), drawing_as_before(self.was_inside):
                restore_random_states(self.states, self.own)
                yield


def _numbers(results: Any) -> list[Tensor]:
    """A few elements of each real tensor among results, from all over it."""
    plain = [first_sample(y) for y in results if isinstance(y, Tensor)]
    return [
        y.take(torch.arange(0, y.numel(), max(1, y.numel() // _MOST), device=y.device)).float()
        for y in plain
        if y.is_floating_point() and y.__class__ is Tensor and not y.is_sparse
    ]


def _autocast() -> dict[str, tuple[bool, torch.dtype]]:
    """Whether autocast is enabled, and its dtype, by device."""
    return {
        d: (torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _devices(torch.accelerator.current_accelerator())
    }


@functools.cache
def _devices(accelerator: torch.device | None) -> list[str]:
    """The kinds of devices that have autocast."""
    devices = ["cpu"] if accelerator is None else ["cpu", accelerator.type]
    return [d for d in devices if torch.amp.is_autocast_available(d)]


class NoDraw(TorchDispatchMode):
    """Refuses random numbers in a call that a tracer records: it cannot draw what another call in the graph has drawn."""

    def __init__(self, name: str, reason: str = "compiled code cannot draw the same ones in its derivative") -> None:
        super().__init__()
        self.name, self.reason = name, reason

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise NotImplementedError(
                f"{self.name} draws random numbers, and {self.reason}. Draw them outside, and pass them as an argument."
            )
        return func(*args, **(kwargs or {}))
