"""`Batched`: a call under ``vmap``, as one call with the whole batch."""

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import active_transforms
from fullgrad.adoption._below import Maybe, WithoutNone, check_loop, warn_of_loop
from fullgrad.adoption._randomness import Draws
from fullgrad.adoption._tensors import NO_ARGUMENT

_looped: Any = weakref.WeakSet()  # classes whose forward is known not to run inside vmap


class Batched:
    """A call under ``vmap``, as one call with the whole batch: what it returns has the batch in front.

    The class's code runs inside ``torch.vmap``, or where it cannot, since it looks at numbers, once for each sample.
    """

    def __init__(self, inner: Any, in_dims: tuple[int | None, ...], size: int, randomness: str, level: int) -> None:
        self.inner, self.in_dims, self.size, self.randomness, self.level = inner, in_dims, size, randomness, level

    def __getattr__(self, name: str) -> Any:
        """Everything else is that of the call of one sample."""
        return getattr(self.inner, name)

    def anew(self) -> "Batched":
        """The same call, to be run again."""
        return Batched(self.inner.anew(), self.in_dims, self.size, self.randomness, self.level)

    # --- Forward ----------------------------------------------------------------------------------------------------------

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The outputs, and then what else the context keeps."""
        if self.cls not in _looped:
            try:
                return self._vmap(self.inner.forward, self.in_dims, tensors)
            except Exception as error:
                check_loop(self, error)
                warn_of_loop(self, error)
            _looped.add(self.cls)
        draws = Draws(self.name, self.randomness, tensors)
        results, layouts = [], []
        self.inner.keep_numbers_as_tensors()  # they may differ between samples
        for b in range(self.size):
            results.append(draws.sample(self.inner.forward, *_select(tensors, self.in_dims, b)))
            layouts.append(self.inner.layout)
        parts = list(zip(*results, strict=False))
        if any(layout != layouts[0] for layout in layouts) or any(len({t.shape for t in part}) > 1 for part in parts):
            raise NotImplementedError(f"{self.name}.forward returns or keeps something else for each sample of a batch.")
        return tuple(torch.stack(part) for part in parts)

    def _vmap(self, function: Any, in_dims: tuple[int | None, ...], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """``vmap`` at the level of the user's own, so that a batched tensor that the class closes over means what it did.

        Below other transforms, levels in which nothing is batched stand in for them.
        """
        if len(active_transforms()) >= self.level - 1:
            return torch.vmap(function, in_dims, 0, self.randomness)(*tensors)
        outs = torch.vmap(lambda _: self._vmap(function, in_dims, tensors), randomness=self.randomness)(torch.empty(1))
        if any(len(o) != 1 for o in outs):
            raise NotImplementedError(NO_ARGUMENT.format(self.name))
        return tuple(o[0] for o in outs)

    # --- Derivatives ------------------------------------------------------------------------------------------------------

    def over(self, method: str, flat: Maybe, more: Maybe, dims: list[int | None]) -> list[Tensor | None]:
        """A method of the call of one sample for all samples: whatever a call has returned has the batch in front."""
        n, both = len(flat), [*flat, *more]
        all_dims: list[int | None] = [*self.in_dims, *[0] * (n - len(self.in_dims)), *dims]
        body = WithoutNone(lambda *all: getattr(self.inner, method)(all[:n], all[n:]), both)
        given = tuple(d for d, t in zip(all_dims, both, strict=True) if t is not None)
        return body.restore(self._vmap(body, given, body.tensors))

    def backward(self, flat: Maybe, cotangents: Maybe) -> list[Tensor | None]:
        """A gradient or None for each input: of what all samples share, the sum."""
        grads = self.over("backward", flat, cotangents, [0] * len(cotangents))
        return [g if g is None else g.sum(0) if d is None else g.movedim(0, d) for g, d in zip(grads, self.in_dims, strict=True)]

    def jvp(self, flat: Maybe, tangents: Maybe) -> list[Tensor | None]:
        """A tangent for each output, by the ``jvp`` that the class declares."""
        return self.over("jvp", flat, tangents, list(self.in_dims))


def _select(tensors: Any, dims: Any, b: int) -> list[Tensor | None]:
    return [t if d is None or t is None else t.select(d, b) for t, d in zip(tensors, dims, strict=True)]
