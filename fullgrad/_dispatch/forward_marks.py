"""What an author declares about a ``forward`` and a ``setup_context``, so that their calls are shorter."""

from typing import Any

from torch import Tensor

from fullgrad._dispatch.state import current
from fullgrad._dispatch.torch_private import forward_ad


def saves_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """The ``setup_context`` of an operator whose rules need neither inputs nor output. It is not called."""


def pure(forward: Any) -> Any:
    """Marks a ``forward`` that computes one tensor from its arguments alone: it closes over no tensor, makes no view but by
    `alias`, and does not look at the grad mode. Where no derivative is needed, the grad mode need not be switched
    off for it, which costs a tenth of a small operation.
    """
    forward.is_pure = True
    return forward


def is_identity(forward: Any) -> Any:
    """Marks a `pure` ``forward`` whose value is the `alias` of its first argument: then it need not be called."""
    forward.is_identity = True
    return pure(forward)


def alias(x: Tensor) -> Tensor:
    """For a ``forward`` whose value is its input: ``x`` as a view, on which autograd refuses in-place operations.

    Transforms and forward mode have no such guard: there the change would silently reach ``x`` and not its derivative. They
    get a copy. Where ``x`` has no derivative there is nothing to guard, and to detach it is the cheapest view.
    """
    if current.inside_transform or forward_ad._current_level >= 0:
        return x.clone()
    return x.view_as(x) if x.requires_grad else x.detach()
