"""Questions about tensors, and what the outputs of an adopted class have to be."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullgrad._dispatch import clone_if_view, get_unwrapped, is_alias_of, is_batched, is_wrapped


class Like(NamedTuple):
    """What zeros are made from."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: Tensor) -> "Like":
        """Of a tensor."""
        return cls(tensor.shape, tensor.dtype, tensor.device)

    def zeros(self) -> Tensor:
        """Zeros."""
        return torch.zeros(self.shape, dtype=self.dtype, device=self.device)


def is_differentiable(tensor_or_dtype: Any) -> bool:
    """Whether a tensor, or one of a dtype, may have a gradient."""
    dtype = getattr(tensor_or_dtype, "dtype", tensor_or_dtype)
    return dtype.is_floating_point or dtype.is_complex


def innermost(tensor: Tensor) -> Tensor:
    """The tensor below all transforms."""
    while is_wrapped(tensor):
        tensor = get_unwrapped(tensor)
    return tensor


def unwrapped_constant(name: str, tensor: Tensor) -> Tensor:
    """A result of ``forward`` below all transforms.

    One that belongs to a transform comes from a tensor that is no argument: constant in a differentiated one, as in eager
    autograd, and lost in a batched one.
    """
    while is_wrapped(tensor):
        if is_batched(tensor):
            raise NotImplementedError(NO_ARGUMENT.format(name))
        tensor = get_unwrapped(tensor)
    return tensor


NO_ARGUMENT = "{} uses a batched tensor that is none of its arguments; pass it as one."


def separate(outs: Iterable[Tensor], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Results that share no memory with the inputs, are no views and have no graph."""
    copies = [clone_if_view(o.clone() if any(is_alias_of(o, t) for t in tensors) else o) for o in outs]
    return tuple(o.detach() if o.requires_grad else o for o in copies)


def writable(tensor: Tensor | None) -> Tensor | None:
    """A class may change a gradient in place; autograd's symbolic zeros refuse that."""
    return tensor.clone() if tensor is not None and innermost(tensor)._is_zerotensor() else tensor


_PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size, range, type)


def hidden_tensors(value: Any, depth: int = 4) -> Iterator[Tensor]:
    """The tensors in the attributes and closures of an object, which no tree of containers shows."""
    if isinstance(value, Tensor):
        yield value
    elif depth and not isinstance(value, _PLAIN):
        if isinstance(value, dict):
            inside: Iterable[Any] = list(value.values())
        elif isinstance(value, (list, tuple, set, frozenset)):
            inside = list(value)
        else:
            cells = [c for c in getattr(value, "__closure__", None) or () if _is_filled(c)]
            slots = [s for c in type(value).__mro__ for s in _as_tuple(c.__dict__.get("__slots__", ()))]
            inside = [
                *getattr(value, "__dict__", {}).values(),
                *[c.cell_contents for c in cells],
                *[getattr(value, s) for s in slots if hasattr(value, s)],
            ]
        for item in inside:
            yield from hidden_tensors(item, depth - 1)


def _as_tuple(names: Any) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _is_filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True
