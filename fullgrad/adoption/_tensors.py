"""`Refused`, and what is asked about tensors: whether they may have a gradient, which ones an object hides."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import clone_if_view, get_unwrapped, is_alias_of, is_batched, is_wrapped
from fullgrad._engine.differentiated import is_floating

Maybe = Sequence[Tensor | None]
_OF_AUTOGRAD = ("requires_grad_()", "does not require grad")  # torch's messages about autograd inside of a transform
_NOT_DIFFERENTIABLE = (
    "{}.backward cannot be differentiated once more ({}); grad, vjp and jacrev work once, and all with adopt(cls, reference=...)"
)
_CALLS_AUTOGRAD = (
    "it calls autograd itself about tensors that it has detached: torch.func.vjp, or asking about those that it keeps, works"
)
NO_ARGUMENT = "{} uses a batched tensor that is none of its arguments; pass it as one."


class Refused(NotImplementedError):
    """A case that cannot be right, and that running sample by sample would not fix."""


def not_differentiable(name: str, error: Exception) -> str:
    """Why a backward has no derivative, by the error that it raises."""
    if isinstance(error, Refused):  # of a class that it calls
        return str(error)
    is_autograd = any(sign in str(error) for sign in _OF_AUTOGRAD)
    return _NOT_DIFFERENTIABLE.format(name, _CALLS_AUTOGRAD if is_autograd else f"{error!s:.80}")


class Drew(RuntimeError):
    """Code that drew numbers from a generator of Python or numpy, which `torch.vmap` does not know."""


def may_differ(tensor: Tensor | None) -> bool:
    """Whether a tensor may have a gradient."""
    return tensor is not None and is_floating(tensor.dtype)


def attributes(tensor: Tensor) -> dict[str, Any]:
    """The attributes set on a tensor, as ``tensor.name = value``."""
    own = vars(tensor)
    if not own or type(tensor) in (Tensor, torch.nn.Parameter):
        return dict(own)
    return {name: value for name, value in own.items() if name not in vars(tensor.detach())}  # a subclass has its own


def separate(name: str, out: Tensor, tensors: Maybe) -> Tensor:
    """A result of a forward below all transforms, sharing no memory with the inputs, not a view, and without a graph.

    A result that belongs to a transform comes from a tensor that is not an argument: it is constant if differentiated, as in
    eager autograd, and refused if batched.
    """
    while is_wrapped(out):
        if is_batched(out):
            raise Refused(NO_ARGUMENT.format(name))
        out = get_unwrapped(out)
    return clone_if_view(out.clone() if any(t is not None and is_alias_of(out, t) for t in tensors) else out).detach()
