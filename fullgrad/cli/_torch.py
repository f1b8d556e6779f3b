"""``python -m fullgrad torch``: torch's own operators, wrong, missing and completed, for the torch that is installed."""

import argparse
from typing import Any

import torch

from fullgrad._suite.torch_operators import WRONG, Found, issues, measured, name_of, operators
from fullgrad.cli._errors import UsageError, check_names, extra
from fullgrad.cli._output import Stoppable, add_json, console, write_json


def register(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("torch", help="torch's own operators: derivatives that are wrong or missing, and completed")
    parser.add_argument("names", nargs="*", metavar="NAME", help="operators, as torch's tests name them (default: all)")
    parser.add_argument("--samples", type=int, default=8, metavar="N", help="the most of each operator (default: %(default)s)")
    add_json(parser, "what was found")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure with a progress bar, and print a table; the exit status is 1 if something is wrong inside of `completing`."""
    progress_module, console_module = extra("rich.progress", "cli"), extra("rich.console", "cli")
    try:
        every = operators()
    except ImportError as error:
        raise UsageError(f"torch's samples need {error.name}: pip install {error.name}") from None
    known = [name for op in every for name in (op.name, name_of(op))]
    check_names(
        options.names, known, "operator of torch's samples", "torch.testing._internal.common_methods_invocations has them"
    )
    chosen = [op for op in every if not options.names or op.name in options.names or name_of(op) in options.names]
    torch.manual_seed(0)
    found: dict[str, Found] = {}
    columns = (progress_module.BarColumn(), progress_module.TimeRemainingColumn(), "{task.description}")
    with progress_module.Progress(*columns, console=console_module.Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(chosen))
        with Stoppable(len(chosen), "operators") as work:
            for op in chosen:
                progress.update(task, description=name_of(op))
                found[name_of(op)] = measured(op, options.samples)
                work.count()
                progress.advance(task)
    report = summary(found)
    _print(report)
    write_json(options, report)
    return work.status(int(any(WRONG in row["inside"].values() for row in report["rows"].values())))


def summary(found: dict[str, Found]) -> dict[str, Any]:
    """The version, the counts, and the operators of which something is wrong or missing."""
    rows = {
        name: {"alone": result.alone, "inside": result.inside, "issue": issues().get(name)}
        for name, result in found.items()
        if result.alone or result.inside
    }
    judged = [result for result in found.values() if result.samples]
    return {
        "torch": torch.__version__.split("+")[0],
        "operators": len(judged),
        "samples": sum(result.samples for result in judged),
        "rows": rows,
    }


def says(results: dict[str, str]) -> str:
    """The ways that are wrong, else those that raise, in one line."""
    wrong, missing = [[w for w, result in results.items() if (result == WRONG) is is_wrong] for is_wrong in (True, False)]
    parts = [f"{what} in {', '.join(ways)}" for what, ways in (("wrong", wrong), ("raises", missing)) if ways]
    return "; ".join(parts) or "right"


def counts(report: dict[str, Any]) -> str:
    """The summary of both columns."""
    parts = []
    for where, title in (("alone", "torch alone"), ("inside", "inside completing")):
        wrong = sum(WRONG in row[where].values() for row in report["rows"].values())
        missing = sum(bool(row[where]) and WRONG not in row[where].values() for row in report["rows"].values())
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
