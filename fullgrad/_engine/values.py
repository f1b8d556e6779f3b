"""`values_by`: what code of the user returns, without a derivative, called as its ``vmap_method`` says.

Torch's own code is called where it stands, so that torch's rules batch it; other code by `opaque_values`.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fullgrad._engine.closure import Closure
from fullgrad._engine.opaque import Function_, Tensors, opaque_values
from fullgrad._engine.rule import values_of

METHODS = ("map", "sequential", "broadcast")


def values_by(closure: Closure, method: str, function: Function_, like: Function_, tensors: Tensors) -> list[Tensor]:
    """``function(*tensors)``, a list of tensors without a derivative; what it uses besides is noted in the closure."""
    if method == "map":
        return values_of(closure.name, lambda *given: closure.first(function, given), tensors, closure.message)
    return opaque_values(closure, method, function, like, tensors, closure.hold())


def plain_values(closure: Closure, function: Callable[..., Any], tensors: Tensors) -> Any:
    """``function(*tensors)`` without a derivative, of torch's own code that is called in no other way and changes nothing."""
    with closure.unchanged():
        first = lambda *given: closure.first(function, given)  # noqa: E731
        return values_of(closure.name, first, tensors, closure.message, has_methods=False)
