"""The command line: ``python -m fullgrad check | audit | adopt | fuzz | list | plot | bench | torch``."""

import argparse
import sys

from fullgrad import __version__
from fullgrad._suite.cli import _adopt, _audit, _bench, _check, _fuzz, _list, _plot, _torch
from fullgrad._suite.cli._errors import UsageError

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run a command; the exit status is 1 when a check fails and 2 when the command cannot be run."""
    parser = argparse.ArgumentParser(prog="python -m fullgrad", description="Declared gradients, proved on this machine.")
    parser.add_argument("--version", action="version", version=f"fullgrad {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (_adopt, _audit, _bench, _check, _fuzz, _list, _plot, _torch):
        module.register(commands)
    options = parser.parse_args(arguments)
    try:
        return options.run(options)
    except UsageError as error:
        print(f"python -m fullgrad: {error}", file=sys.stderr)
        return 2
