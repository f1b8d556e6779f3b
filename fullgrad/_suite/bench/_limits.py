"""Limits of memory and time: a line of the benchmarks that would take more is left out, and the rest is measured."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class TooMuch(BaseException):
    """A line takes more than it may. No Exception: code that goes on after errors of rivals must not go on after this."""


@contextlib.contextmanager
def limited(seconds: float | None, gib: float) -> Iterator[None]:
    """A context that `TooMuch` ends after some seconds, if they are limited, or where the process would hold some GiB more.

    The time is looked at between two steps of Python, so that one operation of torch is not interrupted; not on Windows, nor
    outside the main thread. The memory is that of the process, on Linux alone: where an allocator gets no more, it raises.
    """
    with _alarm(seconds), _address_space(gib):
        try:
            yield
        except Exception as error:
            if _lacks_memory(error):
                raise TooMuch(f"takes more than {gib:g} GiB of memory") from error
            raise


@contextlib.contextmanager
def _alarm(seconds: float | None) -> Iterator[None]:
    if seconds is None or not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise TooMuch(f"takes more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    # Again and again: an exception is lost in a destructor.
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _address_space(gib: float) -> Iterator[None]:
    if sys.platform != "linux":
        yield
        return
    import resource

    before = soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = [held + int(gib * 2**30), *[n for n in (soft, hard) if n != resource.RLIM_INFINITY]]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _lacks_memory(error: BaseException | None) -> bool:
    """Whether an error, or one that it follows, says that there is no memory."""
    while error is not None:
        if isinstance(error, MemoryError) or "allocate memory" in str(error) or "bad_alloc" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
