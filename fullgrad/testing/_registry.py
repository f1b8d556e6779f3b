"""The list of checks. A check is a function of a `Subject` that raises when the operator is wrong; its docstring says what
it proves.
"""

from collections.abc import Callable

from fullgrad.testing._subject import Subject

Check = Callable[[Subject], None]

CHECKS: dict[str, Check] = {}
GROUPS: dict[str, list[str]] = {}
# Public threads about the checks that torch's own autograd.Function fails, or cannot run.
UPSTREAM_ISSUES: dict[str, str] = {}


def check(group: str, issue: int | None = None) -> Callable[[Check], Check]:
    """Register a check under its own name, in a group; ``issue`` is the number of torch's issue about it."""

    def register(function: Check) -> Check:
        CHECKS[function.__name__] = function
        GROUPS.setdefault(group, []).append(function.__name__)
        if issue:
            UPSTREAM_ISSUES[function.__name__] = f"https://github.com/pytorch/pytorch/issues/{issue}"
        return function

    return register
