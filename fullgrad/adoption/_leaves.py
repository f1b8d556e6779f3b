"""`with_leaves`: a backward that asks autograd for gradients, by `torch.autograd.grad`.

What its forward has kept is one graph: autograd would follow the path from one kept tensor to another, which the rest of the
graph counts, too. And where a transform has ended, there is no graph. Such code runs once more, and from then on, at a level of
its own, in which each tensor is a leaf, so that its derivatives are right at every order.
"""

import contextvars
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad import _dispatch
from fullgrad.adoption._tensors import Maybe, may_differ

_asking: Any = weakref.WeakSet()  # classes whose backward is known to need this
_has_leaves: contextvars.ContextVar[bool] = contextvars.ContextVar("fullgrad.adoption.leaves", default=False)


class NeedsLeaves(BaseException):
    """Code that asks autograd about tensors that are no leaves; it must not handle this itself."""


def with_leaves(cls: Any, run: Callable[..., Maybe], tensors: Maybe, known: Sequence[int]) -> Maybe:
    """``run(*tensors)``, where the known ones and all that are differentiated are leaves if the code asks autograd about them."""
    token = _has_leaves.set(False)
    try:
        if cls not in _asking:
            try:
                return run(*tensors)
            except NeedsLeaves:
                pass
        _has_leaves.set(True)
        return _run(cls, run, tensors, known)
    finally:
        _has_leaves.reset(token)


def _run(cls: Any, run: Callable[..., Maybe], tensors: Maybe, known: Sequence[int]) -> Maybe:
    floating = {i: t for i, t in enumerate(tensors) if t is not None and may_differ(t)}
    differentiated = dict(zip(floating, _dispatch.are_differentiated([*floating.values()]), strict=True))
    chosen = {i: t for i, t in floating.items() if differentiated[i] or i in known}
    found: list[int] = []

    def of_leaves(*leaves: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(chosen, leaves, strict=True))
        grads = run(*[given.get(i, t) for i, t in enumerate(tensors)])
        found[:] = len(grads), *[i for i, g in enumerate(grads) if g is not None]
        return tuple(g for g in grads if g is not None)

    if any(differentiated.values()) or _dispatch.transforms_active():
        grads = _dispatch.vjp(of_leaves, *chosen.values())[0]
        _asking.add(cls)
    else:  # without a level the code may call `requires_grad_`, too
        grads = [g.detach() for g in of_leaves(*map(_dispatch.leaf_of, chosen.values()))]
    given = dict(zip(found[1:], grads, strict=True))
    return [given.get(i) for i in range(found[0])]


class Asked:
    """The questions of a backward to autograd, and whether the tensors that it has kept can answer them."""

    def __init__(self, kept: Maybe, known: Sequence[Tensor]) -> None:
        self.has_leaves, self.kept, self.known = _has_leaves.get(), kept, known

    def gradients(self, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """`torch.autograd.grad`."""
        if self.has_leaves:
            # Without a graph the gradient would be a constant to the transforms below, too.
            return torch.autograd.grad(outputs, inputs, *args, **{**kwargs, "create_graph": True})
        asked = [inputs] if isinstance(inputs, Tensor) else list(inputs)
        is_own = not any(t is kept for t in asked for kept in self.kept) or all(t is None or t.is_leaf for t in self.kept)
        if not (is_own and all(isinstance(t, Tensor) and t.requires_grad and t.is_leaf for t in asked)):
            raise NeedsLeaves
        return torch.autograd.grad(outputs, inputs, *args, **kwargs)

    def requires_grad(self, computed: Tensor) -> bool:
        """Whether a tensor that is not known requires a gradient, which is false of all that is computed without a graph."""
        is_one = _without_batch(computed).requires_grad
        if is_one or self.has_leaves or any(computed is t for t in self.kept) or not torch.is_grad_enabled():
            return is_one
        if not all(t.requires_grad for t in self.known):
            raise NeedsLeaves
        return False


def _without_batch(tensor: Tensor) -> Tensor:
    """The tensor inside batches, which say nothing about its gradient."""
    while _dispatch.is_batched(tensor):
        tensor = _dispatch.get_unwrapped(tensor)
    return tensor
