"""`Report`: the results of all checks of an operator."""

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fullgrad.testing._registry import GROUPS, UPSTREAM_ISSUES
from fullgrad.testing._subject import OF_THIS_CHECK

PASSED, FAILED, NOT_APPLICABLE = "passed", "failed", "not applicable"
# The beginning of the reason of a check that its author leaves out.
LEFT_OUT = "left out: "
# As many names stand before the message that they have in common.
_FEW = 4


@dataclass(frozen=True)
class Result:
    """The result of one check.

    Args:
        status: ``"passed"``, ``"failed"`` or ``"not applicable"``.
        message: The reason if it did not pass, in one line: the kind of the error, how it begins, and the place in your code.
        seconds: The time it took.
        details: The whole error, with where it was raised.
    """

    status: str
    message: str = ""
    seconds: float = 0.0
    details: str = ""


class Report(Mapping[str, Result]):
    """The results by the names of the checks. Its text is a table with a line for each check that failed, and for each property
    in ``not_checked``, which maps a missing argument to what was not checked.

    Example:
        >>> from fullgrad.testing import Report, Result
        >>> print(Report("mine", {"func_grad": Result("passed"), "adjoint": Result("failed", "expected 1, got 2")}))
        mine: 1 passed, 1 failed, 0 not applicable
          reverse  1/1
          forward  0/1
        failed adjoint: expected 1, got 2
    """

    def __init__(self, name: str, results: Mapping[str, Result], not_checked: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.not_checked = dict(not_checked or {})
        self._results = dict(results)

    def __getitem__(self, check: str) -> Result:
        return self._results[check]

    def __iter__(self) -> Iterator[str]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    @property
    def failures(self) -> dict[str, str]:
        """The message of each check that failed."""
        return {name: r.message for name, r in self.items() if r.status == FAILED}

    def count(self, status: str, group: str | None = None) -> int:
        """The number of checks, of a group or of all, with a status."""
        names = self if group is None else [n for n in GROUPS[group] if n in self]
        return sum(self[n].status == status for n in names)

    def __str__(self) -> str:
        lines = [f"{self.name}: " + ", ".join(f"{self.count(status)} {status}" for status in (PASSED, FAILED, NOT_APPLICABLE))]
        groups = [g for g in GROUPS if any(n in self for n in GROUPS[g])]
        width = max((len(g) for g in groups), default=0)
        for group in groups:
            applicable = self.count(PASSED, group) + self.count(FAILED, group)
            lines.append(f"  {group:<{width}}  {self.count(PASSED, group)}/{applicable}")
        lines += self.explanations()
        return "\n".join(lines + self.gaps)

    @property
    def gaps(self) -> list[str]:
        """One line about each property that was not checked, with the missing argument, and about checks that were left out."""
        reasons: dict[str, list[str]] = {}
        for name, result in self.items():
            if result.message.startswith(LEFT_OUT):
                reasons.setdefault(result.message.removeprefix(LEFT_OUT), []).append(name)
        lines = [f"{LEFT_OUT}{', '.join(names)}: {reason}" for reason, names in reasons.items()]
        return [gap(what, argument) for argument, what in self.not_checked.items()] + lines

    def explain(self, name: str) -> str:
        """One line about a check that failed, with the public thread where torch's own Function is known to fail it."""
        return self._line([name])

    def explanations(self, verbose: bool = False) -> list[str]:
        """One line about each error, with all checks that failed by it; with ``verbose`` also the whole error."""
        alike: dict[str, list[str]] = {}
        for name, message in self.failures.items():
            alike.setdefault(message.partition(OF_THIS_CHECK)[0], []).append(name)
        whole = [f"\n{textwrap.indent(self[names[0]].details, '    ')}" if verbose else "" for names in alike.values()]
        return [self._line(names) + details for names, details in zip(alike.values(), whole, strict=True)]

    def _line(self, names: list[str]) -> str:
        """The line about checks that failed by the same error."""
        threads = {UPSTREAM_ISSUES.get(name) for name in names}
        thread = f" (torch's own autograd.Function fails here: {threads.pop()})" if len(threads) == 1 and all(threads) else ""
        first, others = (names, []) if len(names) <= _FEW else (names[:1], names[1:])
        alike = f"\n  and by the same error {', '.join(others)}" if others else ""
        return f"failed {', '.join(first)}: {self[names[0]].message}{thread}{alike}"


def gap(what: str, argument: str) -> str:
    """A line about a property that was not checked."""
    told = f"not checked: {what}"
    return told if argument in ("draws", "inputs", "constant") else f"{told} (no `{argument}` was given)"


class OperatorError(AssertionError):
    """At least one check failed; ``report`` has them all."""

    def __init__(self, report: Report) -> None:
        super().__init__(f"{len(report.failures)} of {len(report)} checks failed.\n{report}")
        self.report = report
