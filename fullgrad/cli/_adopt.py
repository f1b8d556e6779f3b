"""``python -m fullgrad adopt``: published Functions of the installed packages, before and after `fullgrad.adopt`."""

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import Any

from fullgrad._suite.published import PUBLISHED, Published, page_table, results_of
from fullgrad.cli._arguments import OF_YOUR_OWN
from fullgrad.cli._errors import UsageError, check_names
from fullgrad.cli._output import Stoppable, write_json


def run(options: argparse.Namespace) -> int:
    """Run the checks of each Function, and print the table."""
    known = [name for published in PUBLISHED for name in (published.package, published.name)]
    check_names(
        options.names,
        known,
        "package or class of the list",
        f"known are {', '.join(sorted({*known}))}; {OF_YOUR_OWN}",
    )
    is_file = options.json not in (None, "-")
    kept: dict[str, Any] = json.loads(Path(options.json).read_text()) if is_file and Path(options.json).exists() else {}
    chosen = [p for p in PUBLISHED if not options.names or {p.package, p.name} & {*options.names}]
    with Stoppable(len(chosen), "Functions") as work:
        for published in chosen if not options.table else ():
            _measure(published, kept)
            work.count()
            if is_file:
                write_json(options, kept)
    if options.json == "-":
        write_json(options, kept)
    if not kept and not work.stopped:
        raise UsageError(
            "none of the packages of the list is installed: `pip install --group adopting` in a clone brings them; "
            f"{OF_YOUR_OWN}."
        )
    print(page_table(kept))
    return work.status(0)


def _measure(published: Published, kept: dict[str, Any]) -> None:
    """Add the results of a Function to those that are kept, if its package is installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            published.load()
    except ImportError as error:
        print(f"{published.package}: not installed, left out ({error})", file=sys.stderr)
        return
    key = f"{published.path}.{published.method}" if published.method else published.path
    kept[key] = results_of(published)
    counts = kept[key]
    print(f"{key}: {counts['before']} -> {counts['after']} of {counts['checks']}", file=sys.stderr, flush=True)
