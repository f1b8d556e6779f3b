"""`guard`: compiled code follows the numbers that functions read from variables, globals and attributes.

Compiled code takes an operator made of functions as it is, and would not see that they change.
"""

from typing import Any

from fullgrad._dispatch import guard_on, has_data, innermost, is_compiling
from fullgrad._engine.changes import in_graph
from fullgrad._engine.held import content, held, places

_NUMBERS = (int, float, complex, str, type(None))
_MOST = 64  # elements of an array at which a guard looks


class Reads:
    """The places that functions read."""

    def __init__(self, *functions: Any) -> None:
        self._places = places(*functions)

    @property
    def now(self) -> str:
        """The numbers there, and the identities and lengths of other objects."""
        return repr([_shown(content(place)) for place in self._places])


def guard(*functions: Any) -> None:
    """Compile again if functions read other numbers than now, where Dynamo traces a call of them."""
    if is_compiling():
        guard_on(lambda: Reads(*functions), "now")


def follow_in_graphs(name: str, argument: str, function: Any) -> None:
    """In compiled code: guard the numbers that a function reads, and refuse the tensors that it holds."""
    if is_compiling():
        guard(function)
        refuse_in_graphs(name, argument, function)


def refuse_in_graphs(name: str, argument: str, function: Any) -> None:
    """Refuse a function that holds tensors, if code is traced, in whose graph they would be constants."""
    if not in_graph():
        return
    modules, tensors = held(function)
    if any(has_data(innermost(t)) for t in [*tensors, *[t for m in modules for t in (*m.parameters(), *m.buffers())]]):
        raise NotImplementedError(
            f"{name}: `{argument}` uses a tensor that is not its argument, which compiled code cannot follow. Use numbers, make "
            f"the tensor inside `{argument}`, or call {name} outside of what is compiled."
        )


def _shown(value: Any) -> Any:
    if isinstance(value, _NUMBERS):
        return value
    if isinstance(value, (list, dict, set)):  # in which an entry may be new
        return id(value), len(value)
    is_array = type(value).__module__ == "numpy" and hasattr(value, "tobytes") and value.size <= _MOST
    return value.tobytes() if is_array else id(value)  # an array may change in place
