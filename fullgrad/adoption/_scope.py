"""Which classes are adopted where: the scopes that this thread, or this task, is in."""

import contextvars
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from fullgrad._dispatch import intercept


class Options(NamedTuple):
    """What a user may ask of adopted classes."""

    strict: bool = False
    allow_loop: bool = True


# What the open scopes adopt, everything if there are no names, what they leave alone, and how.
_open: dict[object, tuple[tuple[str, ...], tuple[str, ...], Options]] = {}
_lock = threading.Lock()
# A context variable, so that threads and asynchronous tasks have their own scopes; those of generators close in any order.
_entered: contextvars.ContextVar[tuple[object, ...]] = contextvars.ContextVar("fullgrad.adopting", default=())


class _State:
    """What compiled code is guarded on."""

    @property
    def key(self) -> str:
        """A text that differs where other classes are adopted."""
        return repr([_open[s] for s in _entered.get() if s in _open])


state = _State()


def options_for(cls: type, in_transform: bool) -> Options | None:
    """How a class is adopted here, by the innermost scope that has it; None if it is not. Plain code is for strict ones alone."""

    def inside(names: tuple[str, ...]) -> bool:
        return any(f"{cls.__module__}.{cls.__qualname__}.".startswith(f"{name}.") for name in names)

    for packages, exclude, options in [_open[s] for s in reversed(_entered.get()) if s in _open]:
        if (not packages or inside(packages)) and not inside(exclude):
            # Never torch's own Functions (checkpoint, FSDP, DDP, compiled code): they are made for the level that they run at.
            return options if (in_transform or options.strict) and not inside(("torch", "fullgrad")) else None
    return None


@contextmanager
def scope(options: Options, packages: tuple[str, ...] = (), exclude: tuple[str, ...] = ()) -> Iterator[None]:
    """The part of the program in which classes are adopted; also each rule of an adopted class, for what that calls."""
    entered = object()
    _entered.set((*[s for s in _entered.get() if s in _open], entered))
    with _lock:
        _open[entered] = packages, exclude, options
        intercept(True, any(options.strict for *_, options in _open.values()))
    try:
        yield
    finally:
        with _lock:
            del _open[entered]
            intercept(bool(_open), any(options.strict for *_, options in _open.values()))
