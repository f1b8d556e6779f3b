"""`Surroundings`: the tensors, modules and variables around functions, which must be the same in a call and in its derivative."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from fullgrad._dispatch import innermost, is_differentiating, is_recorded, is_tracing, transforms_active
from fullgrad._engine.held import Place, content, places

CHANGED = "{} changes an argument in place, which would be lost or wrong; return a new tensor instead."

_PLAIN = (int, float, complex, str, type(None))


class Surroundings:
    """The objects that functions hold at the time of a call: which they are, and how often each tensor was changed in place.

    A derivative calls the functions again, or rules that hold the same objects, and `check` refuses it if the surroundings are
    others. Numbers are looked at in variables; in attributes and globals they are Python's state, as in torch's own checkpoint.
    ``but`` has tensors that are inputs of the derivative, which finds those of modules by name.
    """

    def __init__(self, label: str, *functions: Any, but: Sequence[Tensor] | None = None) -> None:
        self.label = label
        self.variables: list[Place] = []
        self.versions: list[tuple[weakref.ref[Tensor], int]] = []
        if in_graph():
            return
        found = places(*functions)
        modules = (
            [v for v in (*functions, *[value for *_, value in found]) if isinstance(v, nn.Module)] if but is not None else ()
        )
        by_name = {id(space) for m in modules for space in (m._parameters, m._buffers)}
        for holder, key, value in found:
            if isinstance(value, (Tensor, nn.Module)) and id(holder) not in by_name:
                self.variables.append((holder, key, weakref.ref(value)))
            elif key is None and value.__class__ in _PLAIN:
                self.variables.append((holder, key, value))
        known = {id(t) for t in but or ()}
        tensors = [value for *_, value in found if isinstance(value, Tensor) and id(value) not in known]
        self.versions = [(weakref.ref(t), t._version) for t in tensors if not t.is_inference()]

    def check(self) -> None:
        """Refuse a derivative after a change."""
        for ref, version in self.versions:
            tensor = ref()
            if tensor is not None and tensor._version != version:
                raise changed(self.label, tensor)
        for holder, key, before in self.variables:
            now = content((holder, key, None))
            if now is not (before() if isinstance(before, weakref.ref) else before):
                raise exchanged(self.label, now)

    def guarded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, which refuses to be called after a change."""
        if not self.versions and not self.variables:
            return function

        def checked(*args: Any) -> Any:
            self.check()
            return function(*args)

        return checked


def in_graph() -> bool:
    """Whether calls are recorded for a graph. Other dispatch modes, such as a counter of operations, see numbers."""
    return is_dynamo_compiling() or is_recorded()


def surroundings_of(label: str, function: Any) -> Surroundings | None:
    """The surroundings of a function that a derivative will call; None if no derivative follows, or code is compiled."""
    return None if is_dynamo_compiling() or not is_differentiating() else Surroundings(label, function)


def changed(label: str, tensor: Tensor) -> RuntimeError:
    """The error for a tensor with other numbers."""
    return RuntimeError(
        f"{label} uses a tensor of shape {tuple(tensor.shape)} that was changed in place after the call, so that its derivative "
        "would be of other numbers. Pass a clone of it, or change it after the derivative is taken."
    )


def exchanged(label: str, now: Any) -> RuntimeError:
    """The error for a variable that is another object."""
    found = f"a tensor of shape {tuple(now.shape)}" if isinstance(now, Tensor) else f"a value of type {type(now).__name__}"
    return RuntimeError(
        f"{label} uses {found} in its derivative that was not used in the call: a variable or an attribute has another value "
        "now, as at the end of a loop. Pass the value as an argument, or as a default, `lambda x, k=k: …`."
    )


def versions_of(tensors: Sequence[Tensor]) -> list[int]:
    """How often each tensor was changed in place. Inference mode does not count changes."""
    if transforms_active():
        tensors = [innermost(t) for t in tensors]
    return [] if is_tracing() else [t._version for t in tensors if not t.is_inference()]
