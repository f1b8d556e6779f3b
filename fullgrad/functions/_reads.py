"""`guard`: compiled code follows the numbers that functions read from variables, globals and attributes.

Compiled code takes an operator made of functions as it is, and would not see that they change.
"""

from typing import Any

from fullgrad._dispatch import guard_on, is_compiling
from fullgrad._engine.held import content, places

_NUMBERS = (int, float, complex, str, type(None))


class Reads:
    """The places that functions read."""

    def __init__(self, *functions: Any) -> None:
        self._places = places(*functions)

    @property
    def now(self) -> str:
        """The numbers there, and the identities of other objects."""
        return repr([v if isinstance(v, _NUMBERS) else id(v) for v in map(content, self._places)])


def guard(*functions: Any) -> None:
    """Compile again where functions read other numbers than now, if Dynamo traces a call of them."""
    if is_compiling():
        guard_on(lambda: Reads(*functions), "now")
