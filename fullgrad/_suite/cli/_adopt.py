"""``python -m fullgrad adopt``: published Functions of the installed packages, before and after `fullgrad.adopt`."""

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import Any

from fullgrad._suite.cli._errors import UsageError
from fullgrad._suite.published import PUBLISHED, page_table, results_of


def register(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("adopt", help="other packages' Functions, before and after fullgrad.adopt")
    parser.add_argument("names", nargs="*", metavar="NAME", help="packages or classes; by default all that are installed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the results in a file, next to those that are in it")
    parser.add_argument("--table", action="store_true", help="print the table of a file and run nothing")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the checks of each Function, and print the table."""
    known = {published.package for published in PUBLISHED} | {published.name for published in PUBLISHED}
    unknown = set(options.names) - known
    if unknown:
        raise UsageError(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(sorted(known))}.")
    if options.table and options.json is None:
        raise UsageError("--table needs --json FILE.")
    kept: dict[str, Any] = json.loads(options.json.read_text()) if options.json is not None and options.json.exists() else {}
    for published in PUBLISHED if not options.table else ():
        if options.names and not {published.package, published.name} & {*options.names}:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                published.load()
        except ImportError as error:
            print(f"{published.package}: not installed, left out ({error})", file=sys.stderr)
            continue
        key = f"{published.path}.{published.method}" if published.method else published.path
        kept[key] = results_of(published)
        counts = kept[key]
        print(f"{key}: {counts['before']} -> {counts['after']} of {counts['checks']}", file=sys.stderr, flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps(kept, indent=1) + "\n")
    print(page_table(kept))
    return 0
