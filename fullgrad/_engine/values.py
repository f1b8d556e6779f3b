"""`values_by`: what code of the user returns, without a derivative, called as its ``vmap_method`` says.

Torch's own code is called where it stands, so that torch's rules batch it; other code by `opaque_values`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from fullgrad._dispatch import (
    Moving,
    active_transforms,
    in_legacy_vmap,
    legacy_detach,
    repeatable,
    with_memory,
)
from fullgrad._engine.call import Result, tensors_of
from fullgrad._engine.changes import CHANGED, versions_of
from fullgrad._engine.closure import Closure, Refusing
from fullgrad._engine.differentiated import is_differentiated_by_others
from fullgrad._engine.opaque import Function_, Tensors, opaque_values

METHODS = ("map", "sequential", "broadcast")


def values_by(
    closure: Closure | Refusing,
    method: str,
    function: Function_,
    like: Function_,
    tensors: Tensors,
    symbols: Sequence[Any] = (),
) -> Result:
    """``function(*tensors)``, a `Result` whose tensors have no derivative; what it uses besides is noted in the closure."""
    if method == "map":
        return values_of(closure.name, lambda *given: closure.first(function, given), tensors, closure.message)
    return opaque_values(closure, method, function, like, tensors, closure.hold(), symbols=symbols)


def plain_values(closure: Closure, function: Callable[..., Any], tensors: Tensors) -> Any:
    """``function(*tensors)`` without a derivative, of torch's own code that is called in no other way and changes nothing."""
    with closure.unchanged():
        first = lambda *given: closure.first(function, given)  # noqa: E731
        return values_of(closure.name, first, tensors, closure.message, has_methods=False)


def values_of(
    name: str, function: Callable[..., Any], tensors: Sequence[Tensor], message: Callable[[], str], has_methods: bool = True
) -> Any:
    """``function(*tensors)`` without a derivative. A function that changes a tensor in place, or whose result has a derivative
    by another tensor, which would be lost, is refused. ``has_methods`` says whether there are other ways to batch than vmap.
    """
    versions = versions_of(tensors)
    # torch's legacy vmap cannot detach. It batches a backward, or tangents.
    given = [legacy_detach(t) for t in tensors] if in_legacy_vmap() else [with_memory(t.detach()) for t in tensors]
    try:
        with repeatable():
            result = function(*given)
    except RuntimeError as error:
        if "does not require grad" in str(error):
            raise RuntimeError(
                f"{name} takes a derivative by a tensor that has none where the function is called for its value. Use "
                "torch.func.grad or vjp inside it, as the pullback of a call outside has no graph there, or x.requires_grad_() "
                "before."
            ) from error
        if not has_methods or "Vmap" not in active_transforms() or str(error).startswith(name):
            raise
        raise RuntimeError(
            f"{name} cannot be batched by torch.func.vmap: {str(error).partition('. ')[0]}. Code that is not torch's is called "
            'sample by sample with vmap_method="sequential", or for the whole batch with "broadcast".'
        ) from error
    if versions_of(tensors) != versions:
        raise RuntimeError(CHANGED.format(name))
    results = tensors_of(result)
    if any(isinstance(t, Moving) for t in results):
        raise RuntimeError(message())
    if is_differentiated_by_others(results, given):
        raise RuntimeError(message())
    return result
