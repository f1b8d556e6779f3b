"""`search`: draw programs up to a number or a time, and shrink those that break their law."""

import collections
import functools
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from fullgrad._suite.fuzz._draw import laws_by_weight, programs
from fullgrad._suite.fuzz._laws import Rejected, check
from fullgrad._suite.fuzz._program import Program

# Programs that Hypothesis draws from one seed; a failure ends a round.
_ROUND = 300
_ALL: Any = list(HealthCheck)  # a round may be slow, and may drop what it draws


@dataclass
class Found:
    """The results of a search: counts by law and by case, of programs that prove nothing too, and the smallest failures."""

    laws: collections.Counter[str] = field(default_factory=collections.Counter)
    cases: collections.Counter[str] = field(default_factory=collections.Counter)
    rejected: collections.Counter[str] = field(default_factory=collections.Counter)
    failures: list[tuple[Program, str]] = field(default_factory=list)

    @property
    def count(self) -> int:
        """The number of programs that ran."""
        return self.laws.total()


def search(
    names: Sequence[str],
    laws: Sequence[str],
    *,
    first_seed: int = 0,
    count: int | None = None,
    minutes: float | None = None,
    device: str = "cpu",
    advance: Callable[[Found], None] = lambda found: None,
    found: Found | None = None,
) -> Found:
    """Search with cases and laws. Each case and law reports one failure; ``advance`` is called after each program. The results
    are added to ``found``, which has them also if Ctrl-C ends the search.
    """
    number, start = 0, time.monotonic()
    found = Found() if found is None else found
    known: set[tuple[str, str]] = set()

    def spent() -> bool:
        return (count is not None and found.count >= count) or (minutes is not None and time.monotonic() - start > 60 * minutes)

    def run(program: Program, failed: list[tuple[Program, Exception]]) -> None:
        # A failed program runs again while it shrinks, whatever time is left.
        if (program.case, program.law) in known or (spent() and not failed):
            return
        found.laws[program.law] += 1
        found.cases[program.case] += 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                check(program)
        except Rejected:
            found.rejected[program.law] += 1
        except Exception as error:
            failed.append((program, error))
            raise
        finally:
            advance(found)

    strategy = programs(names, laws_by_weight(laws), device)
    before = -1
    while not spent() and found.count > before:  # else everything has failed
        before = found.count
        failed: list[tuple[Program, Exception]] = []
        try:
            _round(functools.partial(run, failed=failed), strategy, 1_000_003 * first_seed + number)
        except Exception:
            if not failed:
                raise
        finally:
            if failed:
                program, error = failed[-1]
                known.add((program.case, program.law))
                found.failures.append((program, f"{type(error).__name__}: {error}"))
        number += 1
    return found


def _round(run: Callable[[Program], None], strategy: SearchStrategy[Program], number: int) -> None:
    """Some programs from one seed, up to the first that fails, which comes last in its smallest form."""

    @seed(number)
    @settings(
        max_examples=_ROUND,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=_ALL,
        report_multiple_bugs=False,
    )
    @given(strategy)
    def each(program: Program) -> None:
        run(program)

    each()
