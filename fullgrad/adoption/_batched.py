"""`Batched`: a call under ``vmap``, as one call with the whole batch."""

import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fullgrad.adoption._call import Call, Layout, Maybe, WithoutNone
from fullgrad.adoption._randomness import Draws
from fullgrad.adoption._tensors import NO_ARGUMENT

_looped: Any = weakref.WeakSet()  # classes whose forward is known not to run inside vmap
_warned: Any = weakref.WeakSet()


class Batched:
    """A call under ``vmap``, as one call with the whole batch: what it returns has the batch in front.

    The class's code runs inside ``torch.vmap``, or where it cannot, since it looks at numbers, once for each sample.
    """

    def __init__(self, inner: Any, in_dims: tuple[int | None, ...], size: int, randomness: str) -> None:
        self.inner, self.in_dims, self.size, self.randomness = inner, in_dims, size, randomness
        self.samples: list[Any] = []  # the calls, where they were made one by one
        call = next(inner.calls())
        self.cls, self.name, self.options, self.once, self.has_jvp = call.cls, call.name, call.options, call.once, call.has_jvp
        self.forward_mode, self.levelwise, self.constants = call.forward_mode, call.levelwise, call.constants

    @property
    def layout(self) -> Layout:
        """That of a sample, which is that of each."""
        return self.samples[0].layout if self.samples else self.inner.layout

    def anew(self) -> "Batched":
        """The same call, to be run again."""
        return Batched(self.inner.anew(), self.in_dims, self.size, self.randomness)

    def calls(self) -> Iterator[Call]:
        """The calls of the class that this one consists of."""
        for inner in self.samples or [self.inner]:
            yield from inner.calls()

    def output(self, tensors: Any) -> Any:
        """What the caller of the class gets."""
        return self.inner.output(tensors)

    # --- Forward ----------------------------------------------------------------------------------------------------------

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The outputs, and then what else the context keeps."""
        if self.cls not in _looped:
            try:
                return torch.vmap(self.inner.forward, self.in_dims, 0, self.randomness)(*tensors)
            except Exception as error:
                check_loop(self, error)
                reason = first_line(error)
            _looped.add(self.cls)
            warn_of_loop(self, reason)
        draws = Draws(self.name, self.randomness, tensors)
        self.samples = [self.inner.anew() for _ in range(self.size)]
        results = [draws.sample(call.forward, *_select(tensors, self.in_dims, b)) for b, call in enumerate(self.samples)]
        first = self.samples[0].layout
        for call in self.samples:
            if not _alike(call.layout, first):
                raise NotImplementedError(f"{self.name}.forward returns or keeps something else for each sample of a batch.")
        return tuple(torch.stack(parts) for parts in zip(*results, strict=True))

    # --- Derivatives ------------------------------------------------------------------------------------------------------

    def over(self, method: str, flat: Maybe, more: Maybe, dims: list[int | None]) -> list[Tensor | None]:
        """A method of the call of one sample for all samples: whatever a call has returned has the batch in front."""
        n, both = len(flat), [*flat, *more]
        all_dims: list[int | None] = [*self.in_dims, *[0] * (n - len(self.in_dims)), *dims]
        if self.samples:
            parts = [
                getattr(call, method)((own := _select(both, all_dims, b))[:n], own[n:]) for b, call in enumerate(self.samples)
            ]
            return [None if p[0] is None else torch.stack(p) for p in zip(*parts, strict=True)]
        body = WithoutNone(lambda *all: getattr(self.inner, method)(all[:n], all[n:]), both)
        given = tuple(d for d, t in zip(all_dims, both, strict=True) if t is not None)
        return body.restore(torch.vmap(body, given, 0, self.randomness)(*body.tensors))

    def backward(self, flat: Maybe, cotangents: Maybe) -> list[Tensor | None]:
        """A gradient or None for each input: of what all samples share, the sum."""
        grads = self.over("backward", flat, cotangents, [0] * len(cotangents))
        return [g if g is None else g.sum(0) if d is None else g.movedim(0, d) for g, d in zip(grads, self.in_dims, strict=True)]

    def jvp(self, flat: Maybe, tangents: Maybe) -> list[Tensor | None]:
        """A tangent for each output, by the ``jvp`` that the class declares."""
        return self.over("jvp", flat, tangents, list(self.in_dims))


def check_loop(call: Any, error: Exception) -> None:
    """Raise what running sample by sample does not mend, or if the user does not want that."""
    text = str(error)
    if any(sign in text for sign in ("may have escaped", "functorch/Interpreter")):
        raise NotImplementedError(NO_ARGUMENT.format(call.name)) from error
    if isinstance(error, NotImplementedError) and text.startswith(f"{call.name}"):
        raise error
    if "randomness" in text:
        raise error
    if not call.options.allow_loop:
        raise NotImplementedError(
            f"{call.name} cannot be batched, and allow_loop=False refuses to run it sample by sample: {first_line(error)}"
        ) from error


def warn_of_loop(call: Any, reason: str) -> None:
    """Once for each class."""
    if call.cls not in _warned:
        _warned.add(call.cls)
        warnings.warn(f"{call.name} runs sample by sample under vmap, as it cannot be batched: {reason}", stacklevel=2)


def first_line(error: BaseException) -> str:
    """What an error says, in short."""
    return (str(error).strip() or type(error).__name__).partition("\n")[0]


def _select(tensors: Any, dims: Any, b: int) -> list[Tensor | None]:
    return [t if d is None or t is None else t.select(d, b) for t, d in zip(tensors, dims, strict=True)]


def _alike(a: Layout, b: Layout) -> bool:
    """Whether two samples agree in everything that the caller sees, and in what the engine is told."""
    same = a._replace(state={}), b._replace(state={})
    return same[0] == same[1] and a.state.keys() == b.state.keys()
