"""Functions whose rule of tangents is being transposed.

A rule may call its own function on a tangent, as the rule of a linear function does: ``(f(x), f(t))``. The transpose of that call
would be the transpose of the rule again, without end. As in JAX, the call is then the function's own code, which is linear in the
tangent, so that its derivative is itself; the trial of the rule shows whether torch finds it.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from fullgrad._dispatch import current_level, innermost, level_of, requires_grad_at, sequence_number


class _Now(threading.local):
    """The functions that are transposed in this thread, outermost first, each with the variables of its transposes."""

    def __init__(self) -> None:
        self.stack: list[tuple[Any, Any, list[_Variables]]] = []


class _Variables:
    """Tensors with respect to which a rule is transposed."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.level, self.start = current_level(), sequence_number()
        self.tensors = [t for t in tensors if requires_grad_at(t, self.level)]

    def reach(self, tensors: Sequence[Tensor]) -> bool:
        """Whether one of some tensors depends on the variables."""
        if not self.tensors or level_of(self.tensors[0]) != self.level:  # the transform has ended
            return False
        if self.level:  # of which these are the only variables
            return any(requires_grad_at(t, self.level) for t in tensors)
        leaves, seen, stack = {id(t) for t in self.tensors}, set(), []
        for t in map(innermost, tensors):
            if id(t) in leaves:
                return True
            stack.append(t.grad_fn)
        while stack:
            node = stack.pop()
            if node is None or node in seen or node._sequence_nr() < self.start:  # an older node; leaves have the highest number
                continue
            if id(getattr(node, "variable", None)) in leaves:
                return True
            seen.add(node)
            stack += [next_node for next_node, _ in node.next_functions]
        return False


_now = _Now()


@contextlib.contextmanager
def transposing(owner: Any, constants: Any) -> Iterator[Callable[[Sequence[Tensor]], None]]:
    """A context in which the rule of a function is transposed, and what notes the variables of the transpose."""
    variables: list[_Variables] = []
    _now.stack.append((owner, constants, variables))
    try:
        yield lambda tensors: variables.append(_Variables(tensors))
    finally:
        _now.stack.pop()


def constants_of_transposes(owner: Any, tensors: Sequence[Tensor]) -> list[Any]:
    """The constants of the calls of a function that are being transposed with respect to something on which some tensors depend.

    The rule of another function, called by the rule of this one, may be transposed meanwhile.
    """
    if not _now.stack:
        return []
    where = [i for i, (other, _, _) in enumerate(_now.stack) if other is owner]
    if not where or not any(v.reach(tensors) for _, _, variables in _now.stack[where[0] :] for v in variables):
        return []
    return [_now.stack[i][1] for i in where]
