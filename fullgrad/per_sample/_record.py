"""One run over a batch, in which each parameter learns what its uses contribute.

A parameter enters the loss through `Entry`, an operator whose value is the parameter and whose backward, which the engine calls
when all uses are done, takes the gradient of each sample and forgets it. So every loss that `vmap(grad(loss))` can differentiate
gets the right numbers, one parameter at a time. The calls of `_calls` deliver the factors of their part of that gradient instead
of computing it. The gradient is the sum of its parts, so nothing need be known about the other uses of the parameter: the parts
of all are added when the entry's backward is called.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullgrad._core.autocast import without_autocast
from fullgrad._core.function import Function
from fullgrad._dispatch import MISSING, current_level, forward_mode_is_on, running_backward
from fullgrad.per_sample._contributions import Contribution, Dense, combined


class Record:
    """The record of one run: the nodes of the parameters in the graph, and what was delivered.

    Args:
        shapes: Those of the parameters.
        marker: A number of each sample, by which the batch is found.
        is_forward: Whether forward mode is on around the run.
        finish: Called with the index of a parameter and the contribution of all of its uses.
    """

    def __init__(
        self, shapes: Sequence[torch.Size], marker: Tensor, is_forward: bool, finish: Callable[[int, Contribution], None]
    ) -> None:
        self.shapes, self.is_forward = shapes, is_forward
        self.marker: Any = marker
        self.finish: Any = finish
        self.level, self.taken = 0, 0  # in bytes
        self.is_open, self.backward = False, None
        self.entries: dict[Any, int] = {}
        self.hooked: set[Any] = set()  # nodes of tensors with hooks, which must see the gradient
        self.parts: dict[int, list[Contribution]] = {}
        sizes: list[int] = []
        self.deliver(lambda marker: sizes.append(marker.size), marker)
        self.size = sizes[0]

    def is_here(self) -> bool:
        """Whether a call belongs to the level at which the record differentiates, and to no transform inside of the loss."""
        is_level = not MISSING and current_level() == self.level
        return is_level and torch.is_grad_enabled() and forward_mode_is_on() == self.is_forward

    @contextlib.contextmanager
    def delivering(self) -> Iterator[None]:
        """A context around the backward whose gradients are delivered."""
        self.is_open = True
        try:
            yield
        finally:
            self.is_open, self.backward = False, None

    def ends_in(self, value: Tensor) -> None:
        """Note which tensor is differentiated: its hook is the first thing that the backward calls."""

        def note(_: Tensor) -> None:
            if self.is_open and self.backward is None:
                self.backward = running_backward()

        if value.requires_grad:
            value.register_hook(note)

    def is_delivering(self) -> bool:
        """Whether the running backward is the run's, and not one of a hook in it, another transform's or a later one."""
        return self.is_open and self.backward == running_backward()

    def close(self) -> None:
        """Forget everything when the run is done: the graph, which has what further derivatives need, holds the record."""
        self.marker = self.finish = None
        for held in (self.entries, self.hooked, self.parts):
            held.clear()

    def enter(self, index: int, parameter: Tensor, way: Tensor) -> Tensor:
        """The parameter, as the loss gets it."""
        entered = Entry.apply(Delivery(self, index), parameter, way)
        self.entries[entered.grad_fn] = index
        return entered

    def add(self, index: int, part: Contribution) -> None:
        """Note what a use of a parameter contributes."""
        self.parts.setdefault(index, []).append(part)

    def deliver(self, take: Callable[..., None], *tensors: Tensor) -> None:
        """Call ``take`` with the tensors of the batch, each `Batched`."""
        Taken.apply(Delivery(self, take), self.marker, *tensors)


class Batched(NamedTuple):
    """A tensor of all samples together."""

    tensor: Tensor
    dim: int | None
    size: int

    def in_front(self) -> Tensor:
        """With the samples in the first dimension, also where they share the tensor."""
        return self.tensor.expand(self.size, *self.tensor.shape) if self.dim is None else self.tensor.movedim(self.dim, 0)


class Delivery:
    """A record and the receiver of a delivery: a constant of the operators."""

    def __init__(self, record: Record, what: Any) -> None:
        self.record, self.what = record, what


class Entry(Function):
    """The value is the parameter; the gradient of each sample is delivered and goes no further."""

    constant_types = (Delivery,)

    @staticmethod
    def forward(delivery: Delivery, parameter: Tensor, way: Tensor) -> Tensor:
        return parameter.clone()  # what the loss writes into it must not reach the caller's

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.set_materialize_grads(False)
        ctx.delivery = inputs[0]

    @staticmethod
    def vjp(ctx: Any, g: Tensor | None) -> tuple[None, Tensor | None, None]:
        record, index = ctx.delivery.record, ctx.delivery.what
        if not record.is_delivering():
            return None, g, None

        def take(*gradients: Batched) -> None:
            for v in gradients:
                record.add(index, Dense(v.in_front()))
            if index in record.parts:
                record.finish(index, combined(record.parts.pop(index)))

        record.deliver(take, *(() if g is None else (g,)))
        return None, None, None

    @staticmethod
    def jvp(ctx: Any, delivery: None, t: Tensor | None, way: Tensor | None) -> Tensor | None:
        return t

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], delivery: Delivery, parameter: Tensor, way: Tensor) -> Any:
        return parameter.clone(), in_dims[1]


class Taken(Function):
    """Hands the tensors of a batch over, as the rule of ``vmap`` sees them."""

    constant_types = (Delivery,)

    @staticmethod
    def forward(delivery: Delivery, marker: Tensor, *tensors: Tensor) -> Tensor:
        raise AssertionError("a delivery was made outside of its batch")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[None, ...]:
        return (None,) * len(ctx.needs_input_grad)

    @staticmethod
    def jvp(ctx: Any, delivery: None, marker: None, *tangents: Tensor | None) -> Tensor:
        return next(t for t in tangents if t is not None).new_zeros(())

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[int | None], delivery: Delivery, marker: Tensor, *tensors: Tensor) -> Any:
        delivery.record.taken += sum(
            [t.numel() * t.element_size() for t, d in zip(tensors, in_dims[2:], strict=True) if d is not None]
        )
        with without_autocast(marker.device.type):
            delivery.what(*[Batched(t, d, info.batch_size) for t, d in zip(tensors, in_dims[2:], strict=True)])
        return marker, in_dims[1]
