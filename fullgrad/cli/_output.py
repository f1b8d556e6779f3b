"""Where the tables and the JSON of commands go, and what Ctrl-C leaves."""

import argparse
import contextlib
import importlib
import json
import math
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from fullgrad.cli._errors import UsageError, extra

# The exit status of a command that Ctrl-C ended, as that of a shell.
INTERRUPTED = 130
# The seconds until a terminal shows what a long work does, and those between two lines without rich.
_QUIET, _BETWEEN = 2.0, 10.0
# The width of tables that are not shown in a terminal.
_WIDTH = 160


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``--json FILE``, which means the same in every command."""
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help=f"write {what} to a file; - is the standard output, without tables"
    )


@contextlib.contextmanager
def tables_beside_json(options: argparse.Namespace) -> Iterator[None]:
    """A context in which tables go to the standard error if the standard output is for JSON."""
    options.standard_output, file = sys.stdout, getattr(options, "json", None)
    if file is not None and not Path(file).parent.is_dir():
        raise UsageError(f"{file} cannot be written: there is no folder {Path(file).parent}.")
    with contextlib.redirect_stdout(sys.stderr) if file == "-" else contextlib.nullcontext():
        yield


def write_json(options: argparse.Namespace, content: Any) -> None:
    """Write what ``--json`` asks for, if it is given."""
    if options.json is None:
        return
    text = json.dumps(_standard(content), indent=1, allow_nan=False) + "\n"
    if options.json == "-":
        options.standard_output.write(text)
    else:
        Path(options.json).write_text(text)


def _standard(content: Any) -> Any:
    """The content with NaN and infinity, which are no numbers in JSON, as strings that Python and JavaScript convert."""
    if isinstance(content, dict):
        return {key: _standard(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_standard(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return "NaN" if math.isnan(content) else "Infinity" if content > 0 else "-Infinity"
    return content


def console(wrap: bool = True) -> Any:
    """A console of rich; without ``wrap`` no line is broken where the output is not shown in a terminal."""
    width = None if sys.stdout.isatty() else _WIDTH if wrap else 1_000_000
    return extra("rich.console", "cli").Console(width=width)


class Signs:
    """A context of work without a known length; called with words about what is done now.

    In a terminal, the standard error shows the words from two seconds on: in one line that changes if rich is installed, or
    else in a line every ten seconds.
    """

    def __init__(self, title: str) -> None:
        self.title, self.words = title, ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True) if sys.stderr.isatty() else None

    def __call__(self, *words: str) -> None:
        self.words = ": ".join(words)

    def __enter__(self) -> "Signs":
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _show(self) -> None:
        if self._ended.wait(_QUIET):
            return
        try:
            console = importlib.import_module("rich.console").Console(stderr=True)
        except ImportError:
            while not self._ended.is_set():
                print(f"{self.title}: {self.words}", file=sys.stderr, flush=True)
                self._ended.wait(_BETWEEN)
            return
        with console.status("") as status:
            while not self._ended.wait(0.1):
                status.update(f"{self.title}: {self.words}".replace("[", r"\["))  # no markup


class Stoppable:
    """A context in which Ctrl-C ends the work and keeps what is done; ``done`` of ``total`` pieces are counted by the work."""

    def __init__(self, total: int, pieces: str) -> None:
        self.done, self.total, self.pieces, self.stopped = 0, total, pieces, False
        self._is_asked, self._before, self._hook = False, None, sys.unraisablehook

    def __enter__(self) -> "Stoppable":
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._stop)
            sys.unraisablehook = self._dropped
        return self

    def _dropped(self, unraisable: Any) -> None:
        """Tell of an exception that Python drops, unless it is the one of Ctrl-C, which comes again at the next piece."""
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            self._hook(unraisable)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            sys.unraisablehook = self._hook
        self.stopped = kind is not None and issubclass(kind, KeyboardInterrupt)
        return self.stopped

    def _stop(self, *_: Any) -> None:
        self._is_asked = True
        raise KeyboardInterrupt

    def count(self) -> None:
        """Count a piece; end the work if Ctrl-C came where Python drops exceptions, as in a destructor or a callback."""
        self.done += 1
        if self._is_asked:
            raise KeyboardInterrupt

    def status(self, status: int) -> int:
        """The exit status, with one line if the work was stopped."""
        if not self.stopped:
            return status
        of = f" of {self.total:,}" if self.total else ""
        print(f"stopped after {self.done:,}{of} {self.pieces}", file=sys.stderr)
        return INTERRUPTED
