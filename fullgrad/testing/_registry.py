"""The list of checks. A check is a function of a `Subject` that raises when the operator is wrong; its docstring says what
it proves.
"""

from collections.abc import Callable

from fullgrad.testing._subject import Subject

Check = Callable[[Subject], None]

CHECKS: dict[str, Check] = {}
GROUPS: dict[str, list[str]] = {}


def check(group: str) -> Callable[[Check], Check]:
    """Register a check under its own name, in a group."""

    def register(function: Check) -> Check:
        CHECKS[function.__name__] = function
        GROUPS.setdefault(group, []).append(function.__name__)
        return function

    return register
