"""The command line: ``python -m fullgrad check | audit | diagnose | adopt | fuzz | list | plot | bench | torch``."""

import argparse
import os
import sys

from fullgrad import __version__
from fullgrad.cli import _adopt, _audit, _bench, _check, _diagnose, _fuzz, _list, _plot, _torch
from fullgrad.cli._errors import UsageError, check_names
from fullgrad.cli._output import INTERRUPTED, tables_beside_json

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run a command; the exit status is 1 when a check fails, 2 when the command cannot be run, and 130 when Ctrl-C ends it."""
    parser = argparse.ArgumentParser(prog="python -m fullgrad", description="Declared gradients, proved on this machine.")
    parser.add_argument("--version", action="version", version=f"fullgrad {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (_adopt, _audit, _bench, _check, _diagnose, _fuzz, _list, _plot, _torch):
        module.register(commands)
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        named = [a for a in arguments[:1] if not a.startswith("-")]
        check_names(named, commands.choices, "command", f"the commands are {', '.join(commands.choices)}")
        options = parser.parse_args(arguments)
        with tables_beside_json(options):
            status = options.run(options)
            sys.stdout.flush()
            return status
    except UsageError as error:
        print(f"python -m fullgrad: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # as of `| head`, which has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPTED
