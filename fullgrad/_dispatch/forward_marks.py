"""Marks by which an author declares properties of ``forward`` and ``setup_context`` that make calls faster."""

from typing import Any

from torch import Tensor

from fullgrad._dispatch.state import current
from fullgrad._dispatch.torch_private import forward_ad, is_legacy_batched


def saves_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """The ``setup_context`` of an operator whose rules need neither inputs nor output. It is not called."""


def pure(forward: Any) -> Any:
    """Mark a ``forward`` that computes one tensor from its arguments alone: it closes over no tensor, makes no view but by
    `alias`, and does not look at the grad mode. Where no derivative is needed, grad mode is not switched off for it, which saves
    a tenth of a small operation.
    """
    forward.is_pure = True
    return forward


def is_identity(forward: Any) -> Any:
    """Mark a `pure` ``forward`` whose value is the `alias` of its first argument, so that it need not be called."""
    forward.is_identity = True
    return pure(forward)


def alias(x: Tensor) -> Tensor:
    """``x`` as a view, for a ``forward`` whose value is its input; autograd refuses in-place operations on the view.

    Transforms and forward mode have no such guard: the change would silently reach ``x`` but not its derivative. They get a copy.
    Where ``x`` has no derivative there is nothing to guard, and ``detach`` is the cheapest view.
    """
    if current.inside_transform or forward_ad._current_level >= 0:
        return x.clone()
    return x.view_as(x) if x.requires_grad or is_legacy_batched(x) else x.detach()  # torch's legacy vmap cannot detach
