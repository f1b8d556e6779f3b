"""``python -m fullgrad bench``: operators next to their rivals, side by side, on this machine."""

import argparse
import functools
import shlex
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fullgrad._suite.bench._comparison import Comparison
from fullgrad._suite.bench._comparison import run as measure
from fullgrad._suite.bench._fast import SIZES as FAST_SIZES
from fullgrad._suite.bench._fast import fast_table, gains
from fullgrad._suite.bench._growth import draw, exponents
from fullgrad._suite.bench._limits import TooMuch, limited
from fullgrad._suite.bench._operators import chosen, comparisons
from fullgrad._suite.bench._peers import load
from fullgrad._suite.bench._report import as_dict, environment, facts_table, noise, operators_table, targets_table
from fullgrad._suite.bench._softtorch import INSTALL, NAMES, softtorch
from fullgrad._suite.bench._words import COMPILED, FAST, NO_GRADIENT, SOFTTORCH, TARGETS, WAYS
from fullgrad._suite.cases import CASES
from fullgrad.cli._arguments import GROUPS, MOST_GIB, MOST_SECONDS, QUICK_MOST_SECONDS, SIZES
from fullgrad.cli._errors import UsageError, check_names, extra
from fullgrad.cli._output import Stoppable, console, write_json

FACTS, OPERATORS = "facts", "operators"
QUICK_SIZES, QUICK_WAYS = (16, 65_536), (NO_GRADIENT, "forward+backward")


def run(options: argparse.Namespace) -> int:
    """Measure with a progress bar, print tables. The exit status is 0 whatever the times are."""
    progress_module, console_module = extra("rich.progress", "cli"), extra("rich.console", "cli")
    pyplot = None
    if options.plot:
        extra("matplotlib", "plot").use("Agg")
        pyplot = extra("matplotlib.pyplot", "plot")
    known = [name for case in CASES for name in (*case.covers, case.name)]
    check_names(options.names, [*known, *GROUPS], f"public operator, nor one of {', '.join(GROUPS)}")
    if SOFTTORCH in options.names and load("softtorch:sort") is None:
        raise UsageError(f"softtorch is not installed: {INSTALL}")
    if options.device != "cpu" and not torch.cuda.is_available():
        raise UsageError(f"the device {options.device} cannot be used: torch finds no GPU.")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows: dict[str, list[dict[str, Any]]] = {TARGETS: [], FACTS: [], FAST: [], OPERATORS: []}
    failures: list[str] = []
    skipped: list[str] = []
    most = options.most_seconds or (QUICK_MOST_SECONDS if options.quick else MOST_SECONDS), options.most_memory or MOST_GIB
    bar = ("{task.percentage:>3.0f}%", progress_module.BarColumn(), progress_module.TimeElapsedColumn(), "{task.description}")
    plan = _plan(options)
    with progress_module.Progress(*bar, console=console_module.Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(plan))
        with Stoppable(len(plan), "comparisons") as work:
            for name, kind, make in plan:
                progress.update(task, description=name)
                try:
                    # The targets are one line, of known work.
                    with limited(None if kind == TARGETS else most[0], most[1]):
                        rows[kind] += make()
                except TooMuch as error:
                    skipped.append(f"{name}: {error}")
                except Exception as error:  # a piece that cannot run is reported, and the rest is measured
                    failures.append(f"{name}: {type(error).__name__}: {str(error).strip().splitlines()[0]}")
                work.count()
                progress.advance(task)
    _print(rows, failures, skipped)
    if options.json is not None:
        where = environment(options.device, shlex.join(["python", "-m", "fullgrad", *sys.argv[1:]]))
        write_json(
            options,
            {"environment": where, **rows, "growth": exponents(rows[OPERATORS]), "failures": failures, "skipped": skipped},
        )
    if options.plot:
        draw(rows[OPERATORS], options.plot, pyplot)
        print(f"wrote {options.plot}")
    return work.status(0)


def _plan(options: argparse.Namespace) -> list[tuple[str, str, Callable[[], list[dict[str, Any]]]]]:
    """The small pieces that the progress bar counts: a name, the table of the rows, and the function that measures them."""
    seconds = options.seconds or (0.01 if options.quick else 0.2)

    def measured(make: Callable[[], Iterator[Comparison]]) -> Callable[[], list[dict[str, Any]]]:
        # Rows hold numbers alone: the tensors of a comparison are freed when it is measured.
        return lambda: [as_dict(result) for result in measure(list(make()), seconds, options.device)]

    plan: list[tuple[str, str, Callable[[], list[dict[str, Any]]]]] = []
    if not options.names or TARGETS in options.names:
        # Imported late, as it imports torch's compilers, for which other commands need not wait.
        from fullgrad._suite.bench._targets import facts, targets

        plan.append((TARGETS, TARGETS, measured(lambda: targets(options.device, options.quick))))
        if not options.quick:
            plan.append((FACTS, FACTS, lambda: list(facts(options.device))))
    if SOFTTORCH in options.names:
        ways = [way for way in options.ways or WAYS if way != NO_GRADIENT]
        plan += [(name, OPERATORS, measured(functools.partial(softtorch, name, ways))) for name in NAMES]
    if FAST in options.names:
        for n, dtype in [(n, dtype) for n in options.sizes or FAST_SIZES for dtype in options.dtypes]:
            make = functools.partial(gains, n, getattr(torch, dtype), options.device, seconds)
            plan.append((f"{FAST}, n = {n:,}, {dtype}", FAST, make))
    names = [name for name in options.names if name not in GROUPS]
    if options.names and not names:
        return plan
    sizes = options.sizes or (QUICK_SIZES if options.quick else SIZES)
    ways = options.ways or (QUICK_WAYS if options.quick else WAYS)
    for case in chosen(names, options.variants):
        for n, dtype in [(n, dtype) for n in sizes for dtype in options.dtypes]:
            # Compiling takes seconds; compiled code matters most at the largest size.
            asked = [w for w in ways if w != COMPILED or n == max(sizes)]
            how = options.device, asked, options.memory, options.one_row
            make = functools.partial(comparisons, case, n, getattr(torch, dtype), *how)
            plan.append((f"{case.name}, n = {n:,}, {dtype}", OPERATORS, measured(make)))
    return plan


def _print(rows: dict[str, list[dict[str, Any]]], failures: list[str], skipped: list[str]) -> None:
    table_module, box = extra("rich.table", "cli"), extra("rich.box", "cli").SIMPLE
    shown = console()
    for kind, title, make in (
        (TARGETS, "targets", targets_table),
        (FACTS, "what is no time", facts_table),
        (FAST, "faster versions: the time of the formula over theirs", fast_table),
        (OPERATORS, "operators: our time, and its ratio to each rival's (minimal times / medians)", operators_table),
    ):
        if not rows[kind]:
            continue
        head, *lines = make(rows[kind])
        table = table_module.Table(*head, title=title, box=box)
        for line in lines:
            table.add_row(*line)
        shown.print(table, highlight=False)
        for warning in noise(rows[kind]):
            shown.print(f"[yellow]{warning}[/]", highlight=False)
    verdicts = [rival["holds"] for r in rows[TARGETS] for rival in r["rivals"].values() if "holds" in rival]
    verdicts += [r["holds"] for r in rows[FACTS]]
    if verdicts:
        words = ((True, "hold"), (False, "do not hold"), (None, "unclear"))
        shown.print(f"targets: {', '.join(f'{verdicts.count(v)} {word}' for v, word in words)}.", highlight=False)
    for failure in failures:
        shown.print(f"[red]could not be measured[/] {failure}", highlight=False)
    for line in skipped:
        shown.print(f"[yellow]skipped[/] {line}; allow more by --most-seconds, --most-memory", highlight=False)
