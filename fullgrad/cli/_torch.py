"""``python -m fullgrad torch``: torch's own operators, wrong, missing and completed, for the torch that is installed."""

import argparse
import functools
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch

from fullgrad._suite.torch_operators import WRONG, Found, issues, judged
from fullgrad._suite.torch_samples import Operator, operators
from fullgrad.cli._errors import UsageError, check_names, extra
from fullgrad.cli._output import Stoppable, console, write_json

# So many operators take less time than to start a process.
_FEW = 8


def run(options: argparse.Namespace) -> int:
    """Measure with a progress bar, and print a table; the exit status is 1 if something is wrong inside of `completing`."""
    progress_module, console_module = extra("rich.progress", "cli"), extra("rich.console", "cli")
    try:
        every = operators()
    except ImportError as error:
        raise UsageError(f"torch's samples need {error.name}: pip install {error.name}") from None
    check_names(
        options.names,
        [op.name for op in every],
        "operator of the samples",
        "torch.testing._internal.common_methods_invocations has them, and fullgrad/_suite/torch_samples.py",
    )
    chosen = [op for op in every if not options.names or op.name in options.names]
    found: dict[str, Found] = {}
    columns = (progress_module.BarColumn(), progress_module.TimeRemainingColumn(), "{task.description}")
    with progress_module.Progress(*columns, console=console_module.Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(chosen))
        with Stoppable(len(chosen), "operators") as work:
            for name, result in _results(chosen, options.samples, options.jobs):
                progress.update(task, description=name)
                found[name] = result
                work.count()
                progress.advance(task)
    report = summary(found)
    _print(report)
    write_json(options, report)
    return work.status(int(any(is_wrong(row["inside"]) for row in report["rows"].values())))


def _results(chosen: list[Operator], samples: int, jobs: int) -> Iterator[tuple[str, Found]]:
    """The name and the results of each operator, in the order of the list."""
    if jobs == 1 or len(chosen) < _FEW:
        yield from ((op.name, judged(op, samples)) for op in chosen)
        return
    names = [op.name for op in chosen]
    with ProcessPoolExecutor(jobs, get_context("spawn"), _on_one_thread) as pool:
        yield from zip(names, pool.map(functools.partial(_judged, samples=samples), names), strict=True)


def _on_one_thread() -> None:
    torch.set_num_threads(1)


def _judged(name: str, samples: int) -> Found:
    return next(judged(op, samples) for op in operators() if op.name == name)


def is_wrong(results: dict[str, str]) -> bool:
    """Whether one of the results is a wrong number."""
    return any(result.startswith(WRONG) for result in results.values())


def summary(found: dict[str, Found]) -> dict[str, Any]:
    """The version, the samples of each operator that was judged, and the operators of which something is wrong or missing."""
    rows = {
        name: {"alone": result.alone, "inside": result.inside, "issue": issues().get(name)}
        for name, result in found.items()
        if result.alone or result.inside
    }
    judged_ = {name: result.samples for name, result in found.items()}
    return counted({"torch": torch.__version__.split("+")[0], "judged": judged_, "rows": rows})


def counted(report: dict[str, Any]) -> dict[str, Any]:
    """A report with the number of its operators and samples, and the operators without a sample."""
    samples = report["judged"]
    return {
        **report,
        "operators": sum(map(bool, samples.values())),
        "samples": sum(samples.values()),
        "without": [name for name, count in samples.items() if not count],
    }


def says(results: dict[str, str]) -> str:
    """The ways that are wrong, else those that raise, in one line."""
    wrong, missing = [[w for w, r in results.items() if r.startswith(WRONG) is kind] for kind in (True, False)]
    parts = [
        f"{what} in {ways[0]}{f' and {len(ways) - 1} more' if len(ways) > 1 else ''}"
        for what, ways in (("wrong", wrong), ("raises", missing))
        if ways
    ]
    return "; ".join(parts) or "right"


def counts(report: dict[str, Any]) -> str:
    """The summary of both columns."""
    parts = []
    for where, title in (("alone", "torch alone"), ("inside", "inside completing")):
        wrong = sum(is_wrong(row[where]) for row in report["rows"].values())
        missing = sum(bool(row[where]) and not is_wrong(row[where]) for row in report["rows"].values())
        parts.append(f"{title} {wrong} wrong without an error, {missing} raise")
    return f"torch {report['torch']}: {report['operators']} operators on {report['samples']} samples: {'; '.join(parts)}."


def _print(report: dict[str, Any]) -> None:
    table_module = extra("rich.table", "cli")
    table = table_module.Table("operator", "torch alone", "inside completing", "issue", box=None, pad_edge=False)
    for name, row in report["rows"].items():
        issue = f"pytorch#{row['issue']}" if row["issue"] else ""
        table.add_row(name, says(row["alone"]), says(row["inside"]), issue)
    shown = console()
    if report["rows"]:
        shown.print(table)
    shown.print(counts(report))
