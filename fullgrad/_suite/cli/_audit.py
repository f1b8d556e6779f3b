"""``python -m fullgrad audit``: problems of declared gradients in other code, and their replacements."""

import argparse
import dataclasses
import json
from collections import Counter
from typing import Any

from fullgrad._suite.cli._errors import UsageError, extra
from fullgrad.audit import Finding, audit
from fullgrad.audit._probe import PROBES, probe
from fullgrad.audit._torch import torch_operators


def register(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "audit", help="what breaks in the Functions, detach tricks and gradient hooks of other code, and what replaces them"
    )
    parser.add_argument("targets", nargs="+", metavar="PACKAGE_OR_FILE", help="installed packages, folders or files")
    parser.add_argument("--json", action="store_true", help="print a list of findings instead of the table")
    parser.add_argument("--run", dest="probe", action="store_true", help="also import the Functions, and probe them")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the findings; the exit status is 1 if there are any."""
    try:
        found = audit(options.targets)
    except (FileNotFoundError, SyntaxError) as error:
        raise UsageError(str(error)) from None
    probed = {i: probe(finding) for i, finding in enumerate(found) if options.probe and finding.kind == "Function"}
    if options.json:
        told = [{**dataclasses.asdict(f), **({"probes": probed[i]} if i in probed else {})} for i, f in enumerate(found)]
        print(json.dumps(told, indent=1))
    else:
        _print(found, probed)
        _print_torch(torch_operators(options.targets))
    return int(bool(found))


def _print(found: list[Finding], probed: dict[int, dict[str, str]]) -> None:
    console_module, table_module = extra("rich.console", "cli"), extra("rich.table", "cli")
    console = console_module.Console()
    if not found:
        console.print("Nothing found.")
        return
    table = table_module.Table("place", "what", "breaks", "write", box=None, pad_edge=False)
    for finding in found:
        what = finding.name if finding.kind == "Function" else f"{finding.kind}: {finding.name}"
        cells = (f"{finding.file}:{finding.line}", what, ", ".join(finding.breaks), finding.replacement)
        table.add_row(*[_plain(cell) for cell in cells])
    console.print(table)
    if probed:
        console.print()
        console.print(_probes(found, probed, table_module))
    counts = Counter(finding.kind for finding in found)
    console.print(", ".join(f"{kind}: {number}" for kind, number in counts.most_common()))


def _print_torch(found: dict[str, tuple[str, list[str]]]) -> None:
    """A line for each of torch's own operators, which are no findings: they are right inside `completing`."""
    if found:
        print("\nof torch, right inside of fullgrad.completing():")
    for name, (lacks, places) in found.items():
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        print(f"{name} ({places[0]}{more}): {lacks}")


def _probes(found: list[Finding], probed: dict[int, dict[str, str]], table_module: Any) -> Any:
    """A table of the probes: each class as it is, and adopted."""
    table = table_module.Table("as it is -> adopted", *PROBES, box=None, pad_edge=False)
    for i, results in probed.items():
        cells = [results["not run"]] if "not run" in results else [results[name] for name in PROBES]
        table.add_row(*[_plain(cell) for cell in (found[i].name, *cells)])
    return table


def _plain(text: str) -> Any:
    return extra("rich.text", "cli").Text(text, overflow="fold")
