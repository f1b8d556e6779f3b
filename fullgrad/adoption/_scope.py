"""Which classes are adopted where: the scopes that this thread, or this task, is in."""

import contextvars
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from fullgrad.adoption import _interception


class Options(NamedTuple):
    """What a user may ask of adopted classes."""

    strict: bool = False
    allow_loop: bool = True


class Scope:
    """An open context: the names of what it adopts, everything if there are none, and of what it leaves alone."""

    def __init__(self, packages: tuple[str, ...], exclude: tuple[str, ...], options: Options) -> None:
        self.packages, self.exclude, self.options, self.is_open = packages, exclude, options, True

    def has(self, cls: type) -> bool:
        """Whether it adopts a class."""
        return self.is_open and (not self.packages or _inside(cls, self.packages)) and not _inside(cls, self.exclude)

    def key(self) -> tuple[Any, ...]:
        """What decides."""
        return self.packages, self.exclude, self.options


# Never adopted: torch's own Functions (checkpoint, FSDP, DDP, compiled code) are made for the level that they run at.
_OURS = ("torch", "fullgrad")

# A context variable, so that threads and asynchronous tasks have their own. The scopes are told apart by identity and not by
# their order: those of generators close in any.
_scopes: contextvars.ContextVar[tuple[Scope, ...]] = contextvars.ContextVar("fullgrad.adopting", default=())
_lock, _open = threading.Lock(), 0


def _inside(cls: type, names: tuple[str, ...]) -> bool:
    path = f"{cls.__module__}.{cls.__qualname__}."
    return any(path.startswith(f"{name}.") for name in names)


def options_for(cls: type) -> Options | None:
    """How a class is adopted here, by the innermost scope that has it; None if it is not."""
    for scope in reversed(_scopes.get()):
        if scope.has(cls):
            return None if _inside(cls, _OURS) else scope.options
    return None


class _State:
    """What compiled code is guarded on."""

    @property
    def key(self) -> str:
        """A text that differs where other classes are adopted."""
        return repr([scope.key() for scope in _scopes.get() if scope.is_open])


state = _State()


@contextmanager
def scope(packages: tuple[str, ...], exclude: tuple[str, ...], options: Options) -> Iterator[None]:
    """The part of the program in which classes are adopted."""
    entered = Scope(packages, exclude, options)
    _scopes.set((*_scopes.get(), entered))
    _count(1, options)
    try:
        yield
    finally:
        entered.is_open = False
        _scopes.set(tuple(s for s in _scopes.get() if s.is_open))
        _count(-1, options)


def following(options: Options) -> Any:
    """The scope in which the rules of an adopted class run: the classes that they call are adopted, too."""
    return scope((), (), options)


def _count(change: int, options: Options) -> None:
    """Note that a scope opens or closes, anywhere in the process; the first and the last one exchange torch's code."""
    global _open
    with _lock:
        _open += change
        _interception.strict_scopes += change * options.strict
        if _open == (change == 1):
            _interception.intercept(_open == 1)
