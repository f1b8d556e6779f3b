"""`Batched`: a call under ``vmap``, for the whole batch at once, or sample by sample."""

import functools
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from fullgrad import _dispatch
from fullgrad._engine.batch import sample_by_sample, vmap_with_nones
from fullgrad.adoption._call import Call
from fullgrad.adoption._slots import comparable
from fullgrad.adoption._tensors import NO_ARGUMENT, Maybe, Refused
from fullgrad.adoption._writes import with_writes

ESCAPED = ("may have escaped", "functorch/Interpreter")  # torch's messages about a tensor whose transform is not active
looped: Any = weakref.WeakSet()  # code that is known not to run inside vmap
_warned: Any = weakref.WeakSet()


class Batched(Call):
    """A call under ``vmap``, as one call with the whole batch; all its results have the batch in front.

    The code runs inside ``torch.vmap``, or once for each sample if it looks at numbers.
    """

    def __init__(self, inner: Call, in_dims: Sequence[int | None], info: Any, level: int) -> None:
        self.inner, self.in_dims, self.info, self.level = inner, in_dims, info, level
        self.sample = inner.sample  # the call of one sample, below all batches

    def __getattr__(self, name: str) -> Any:
        """An attribute of the call of one sample."""
        if name == "sample":  # Dynamo asks an object that has no attributes yet
            raise AttributeError(name)
        return getattr(self.sample, name)

    # --- Forward ----------------------------------------------------------------------------------------------------------

    def forward(self, *tensors: Tensor | None) -> Sequence[Tensor | None]:
        """All results. One warning for each class says why it is slow, once the loop has shown that the code is right."""
        reason = ""
        if self.code not in looped or not self.options.allow_loop:
            try:
                run = lambda: self.vmap(self.inner.forward, self.in_dims, tensors)  # noqa: E731
                return with_writes(self.cls, run, lambda error: not _is_final(error))
            except Exception as error:
                if _is_final(error):
                    raise
                reason = str(error).partition("\n")[0]
                if not self.options.allow_loop:
                    raise Refused(f"{self.name} cannot be batched, and allow_loop=False forbids a loop: {reason}") from error
        outs = self._loop(tensors)
        if self.code not in looped and self.cls not in _warned:
            _warned.add(self.cls)
            warnings.warn(f"{self.name} runs sample by sample under vmap, as it cannot be batched: {reason}", stacklevel=2)
        looped.add(self.code)
        return outs

    def _loop(self, tensors: Maybe) -> list[Tensor | None]:
        self.sample.numbers_are_tensors = True  # they may differ between samples
        records: list[Any] = []

        def run(*sample: Tensor | None) -> Sequence[Tensor | None]:
            found = self.inner.forward(*sample)
            records.append(comparable((self.record, [t if t is None else t.shape for t in found])))
            if records[-1] != records[0]:
                raise Refused(
                    f"{self.name}.forward returns or keeps something else for each sample of a batch; a loop over the samples "
                    "works."
                )
            return found

        randomness = "different" if _dispatch.is_tracing() else self.info.randomness
        return sample_by_sample(self.name, run, tensors, self.in_dims, self.info.batch_size, randomness)

    def vmap(self, function: Callable[..., Any], in_dims: Sequence[int | None], args: Maybe) -> list[Tensor | None]:
        """``torch.vmap`` at the level of the user's ``vmap``, so that a batched tensor that the class closes over keeps its
        meaning.

        Levels in which nothing is batched stand in for the transforms below.
        """
        run = lambda: vmap_with_nones(function, args, in_dims, self.info.batch_size, self.info.randomness)  # noqa: E731
        for _ in range(self.level - 1 - len(_dispatch.active_transforms())):
            run = functools.partial(self._stand_in, run)
        return run()

    def _stand_in(self, run: Callable[[], Maybe]) -> list[Tensor | None]:
        outs = vmap_with_nones(run, (), (), 1, "same")
        if any(o is not None and len(o) != 1 for o in outs):
            raise Refused(NO_ARGUMENT.format(self.name))
        return [None if o is None else o[0] for o in outs]

    # --- Derivatives ------------------------------------------------------------------------------------------------------

    def in_front(self, *tensors: Tensor) -> Maybe:
        """The inputs with the batch in front, as in the results."""
        return self.vmap(self.inner.in_front, self.in_dims, tensors)

    def backward(self, flat: Maybe, cotangents: Maybe, needs: Sequence[bool]) -> list[Tensor | None]:
        """A gradient or None for each input; inputs that all samples share get the sum."""
        backward = functools.partial(self.inner.backward, needs=needs)
        grads = self._over(backward, flat, cotangents, [0] * len(cotangents))
        return [g if g is None else g.sum(0) if d is None else g.movedim(0, d) for g, d in zip(grads, self.in_dims, strict=True)]

    def jvp(self, flat: Maybe, tangents: Maybe) -> list[Tensor | None]:
        """A tangent or None for each output."""
        return self._over(self.inner.jvp, flat, tangents, self.in_dims)

    def _over(self, rule: Callable[..., Any], flat: Maybe, more: Maybe, dims: Sequence[int | None]) -> list[Tensor | None]:
        n = len(flat)
        all_dims = [*self.in_dims, *[0] * (n - len(self.in_dims)), *dims]
        return self.vmap(lambda *all: rule(all[:n], all[n:]), all_dims, (*flat, *more))


def _is_final(error: Exception) -> bool:
    """Whether a loop would not help where an error has come."""
    return isinstance(error, Refused) or any(sign in str(error) for sign in ("randomness", *ESCAPED))
