"""The command line: ``python -m fullgrad check | audit | diagnose | adopt | fuzz | list | plot | bench | torch``."""

import importlib
import os
import sys

from fullgrad.cli import _arguments
from fullgrad.cli._errors import UsageError
from fullgrad.cli._output import INTERRUPTED, tables_beside_json

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run a command; the exit status is 1 when a check fails, 2 when the command cannot be run, and 130 when Ctrl-C ends it."""
    try:
        options = _arguments.parsed(sys.argv[1:] if arguments is None else arguments)
        with tables_beside_json(options):
            # Imported late: a command imports torch and its compilers, which takes seconds.
            status = importlib.import_module(f"fullgrad.cli._{options.command}").run(options)
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
