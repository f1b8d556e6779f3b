"""Writes in the code of a class that `torch.vmap` refuses: ``g[mask] = value``, and writes into a tensor that the code has made.

The first has a shape that depends on numbers; the second writes a batch into memory of one sample. Both have an
equivalent: a `torch.where`, and a new tensor of the whole batch. Code that fails in a batch is run once more with these.
"""

import contextlib
import contextvars
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import EllipsisType
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fullgrad._dispatch import current_level, is_wrapped
from fullgrad.adoption._tensors import Drew, Refused

T = TypeVar("T")
# Functions that make a tensor of new memory. None draws random numbers, which have a meaning of their own in a batch.
_NEW = {torch.zeros, torch.ones, torch.empty, torch.full, torch.eye, torch.clone, Tensor.clone}
_NEW |= {getattr(torch, f"{name}_like") for name in ("zeros", "ones", "empty", "full")}
_NEW |= {getattr(Tensor, f"new_{name}") for name in ("zeros", "ones", "empty", "full")}
_NUMBERS = (bool, int, float, complex)
_writers: Any = weakref.WeakSet()  # classes whose code is known to need this
# The mode of the code that runs. Other modes on torch's stack are those of classes that call its class.
_acting: contextvars.ContextVar["Writes | None"] = contextvars.ContextVar("fullgrad.adoption.writes", default=None)


class Writes(TorchFunctionMode):
    """Makes these writes possible for code of some tensors, some of which are batched."""

    def __init__(self, tensors: Sequence[Tensor | None]) -> None:
        super().__init__()
        self.level = current_level()
        with writing(None):
            ones = [t.new_ones((), dtype=torch.bool) for t in tensors if t is not None and is_wrapped(t)]
        self.one = functools.reduce(torch.logical_and, ones) if ones else None  # batched wherever one of the tensors is

    def batched(self, tensor: Tensor) -> Tensor:
        """A copy that has memory for each sample."""
        if self.one is None or current_level() != self.level:
            return tensor
        return torch.where(self.one, tensor, tensor)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _acting.get() is not self:
            return function(*args, **kwargs)
        if function in _NEW and not kwargs.get("requires_grad") and "out" not in kwargs:
            return self.batched(function(*args, **kwargs))
        if function is Tensor.__setitem__ and (masked := _masked(*args)) is not None:
            target, mask, value = masked
            return target.copy_(torch.where(mask, value, target))
        return function(*args, **kwargs)


def _masked(target: Tensor, index: Any, value: Any) -> tuple[Tensor, Tensor, Any] | None:
    """The part of a tensor that ``target[index] = value`` writes to, a mask and a value that broadcast with it; None for other
    indices than one mask among slices and numbers, and for values of one number for each place in the mask.
    """
    index = index if isinstance(index, tuple) else (index,)
    masks = [i for i, item in enumerate(index) if isinstance(item, Tensor)]
    known = (Tensor, slice, int, EllipsisType)
    if len(masks) != 1 or not all(isinstance(item, known) and not isinstance(item, bool) for item in index):
        return None
    mask, before, after = index[masks[0]], index[: masks[0]], index[masks[0] + 1 :]
    if mask.dtype != torch.bool or not mask.ndim:
        return None
    part = target[(*before, *[slice(None)] * mask.ndim, *after)]
    # The dimensions of the part before the mask, and those after it.
    consumed = mask.ndim + sum(item is not Ellipsis for item in (*before, *after))
    lead = sum(target.ndim - consumed if item is Ellipsis else isinstance(item, slice) for item in before)
    rest = part.ndim - lead - mask.ndim
    if mask.shape != part.shape[lead : lead + mask.ndim]:
        return None
    if isinstance(value, Tensor):
        if value.ndim == rest + 1 and value.shape[0] == 1 and not lead:
            value = value[0]
        if value.ndim > (0 if lead or len(index) > 1 else rest):
            return None
        value = value.to(part.dtype)
    elif not isinstance(value, _NUMBERS):
        return None
    return part, mask.reshape(*mask.shape, *[1] * rest), value


def writes_of(cls: Any, tensors: Sequence[Tensor | None]) -> Writes | None:
    """The mode for code of a class, if it is known to need it, or is tried with it."""
    return Writes(tensors) if cls in _writers else None


def writing(writes: Writes | None) -> contextlib.AbstractContextManager[Any]:
    """A context for the code of a class, with a mode or without."""
    return contextlib.nullcontext() if writes is None and _acting.get() is None else _writing(writes)


@contextlib.contextmanager
def _writing(writes: Writes | None) -> Iterator[None]:
    token = _acting.set(writes)
    try:
        with writes or contextlib.nullcontext():
            yield
    finally:
        _acting.reset(token)


def with_writes(cls: Any, run: Callable[[], T], is_worth_it: Callable[[Exception], bool]) -> T:
    """``run()``, and once more with `Writes` if it fails, and this is worth it."""
    try:
        return run()
    except Exception as error:
        if isinstance(error, (Refused, Drew)) or cls in _writers or not is_worth_it(error):
            raise
        _writers.add(cls)
        try:
            return run()
        except Exception as second:
            _writers.discard(cls)
            raise (second if isinstance(second, Refused) else error) from None
