"""``python -m fullgrad audit``: problems of declared gradients in other code, and their replacements."""

import argparse
import dataclasses
from collections import Counter
from typing import Any

from fullgrad.audit import Finding
from fullgrad.audit._find import audit_tree
from fullgrad.audit._probe import PROBES, probe
from fullgrad.audit._sources import sources, tree
from fullgrad.audit._torch import Found, add_operators
from fullgrad.cli._errors import UsageError, extra
from fullgrad.cli._output import Stoppable, console, write_json


def run(options: argparse.Namespace) -> int:
    """Print the findings; the exit status is 1 if there are any."""
    found: list[Finding] = []
    of_torch: Found = {}
    probed: dict[int, dict[str, str]] = {}
    try:
        files = [(path, label, label == target) for target in options.targets for path, label in sources(target)]
        if not files:
            raise UsageError(f"no file of Python in {', '.join(options.targets)}.")
        with Stoppable(len(files), "files") as work:
            for path, label, is_named in files:
                module = tree(path, is_named)
                if module is not None:
                    found += audit_tree(module, label)
                    add_operators(module, label, of_torch)
                work.count()
    except (FileNotFoundError, SyntaxError) as error:
        raise UsageError(str(error)) from None
    functions = [i for i, finding in enumerate(found) if finding.kind == "Function"]
    if options.probe and not work.stopped:
        with Stoppable(len(functions), "probes") as work:
            for i in functions:
                probed[i] = probe(found[i])
                work.count()
    if options.json != "-":
        _print(found, probed)
        if not work.stopped:
            _print_torch(of_torch)
    write_json(
        options, [{**dataclasses.asdict(f), **({"probes": probed[i]} if i in probed else {})} for i, f in enumerate(found)]
    )
    return work.status(int(bool(found)))


def _print(found: list[Finding], probed: dict[int, dict[str, str]]) -> None:
    table_module, shown = extra("rich.table", "cli"), console(wrap=False)
    if not found:
        shown.print("Nothing found.")
        return
    table = table_module.Table("place", "what", "breaks", "write", box=None, pad_edge=False)
    for finding in found:
        what = finding.name if finding.kind == "Function" else f"{finding.kind}: {finding.name}"
        cells = (f"{finding.file}:{finding.line}", what, ", ".join(finding.breaks), finding.replacement)
        table.add_row(*[_plain(cell) for cell in cells])
    shown.print(table)
    if probed:
        shown.print()
        shown.print(_probes(found, probed, table_module))
    counts = Counter(finding.kind for finding in found)
    shown.print(", ".join(f"{kind}: {number}" for kind, number in counts.most_common()))


def _print_torch(found: Found) -> None:
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
