"""The scopes of the current thread or task, which decide which classes are adopted."""

import contextvars
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from fullgrad._dispatch import defined_operator, intercept, intercept_checkpoints, intercept_operators


class Options(NamedTuple):
    """The options of `adopt` and `adopting`."""

    strict: bool = False
    allow_loop: bool = True
    checkpoint: bool = False


# The open scopes: names to adopt (all classes if empty), names to leave alone, and the options.
_open: dict[object, tuple[tuple[str, ...], tuple[str, ...], Options]] = {}
# Garbage collection may close a scope of this thread at any line, also while another one is opened or closed.
_lock = threading.RLock()
# A context variable, so that threads and asynchronous tasks have their own scopes; those of generators close in any order.
_entered: contextvars.ContextVar[tuple[object, ...]] = contextvars.ContextVar("fullgrad.adopting", default=())


class _State:
    """The value on which compiled code is guarded."""

    @property
    def key(self) -> str:
        """A text that differs where other classes are adopted."""
        return repr(_of_here())


state = _State()


def _of_here() -> list[tuple[tuple[str, ...], tuple[str, ...], Options]]:
    """The open scopes of the current thread or task, outermost first. Any of them may close meanwhile."""
    return [found for found in map(_open.get, _entered.get()) if found is not None]


def options_for(cls: type, in_transform: bool) -> Options | None:
    """The options of the innermost scope that adopts a class, or None. Outside of transforms only strict scopes adopt."""
    options = _options_for([f"{cls.__module__}.{cls.__qualname__}"])
    return options if options is not None and (in_transform or options.strict) else None


def options_of_operator(op: Any) -> Options | None:
    """The options of the innermost scope that adopts an operator of torch.library: by its name, or that of its function."""
    overload = op if hasattr(op, "_schema") else getattr(op, op.overloads()[0])
    name, defined = overload._schema.name.replace("::", "."), defined_operator(overload)
    return _options_for([name] if defined is None else [name, f"{defined.__module__}.{defined.__qualname__}"])


def _options_for(own: Sequence[str]) -> Options | None:
    def inside(names: tuple[str, ...]) -> bool:
        return any(f"{one}.".startswith(f"{name}.") for one in own for name in names)

    for packages, exclude, options in reversed(_of_here()):
        if (not packages or inside(packages)) and not inside(exclude):
            # Never torch's own Functions (checkpoint, FSDP, DDP, compiled code): they are made for the level that they run at.
            return options if not inside(("torch", "fullgrad")) else None
    return None


def adopts_checkpoints() -> bool:
    """Whether a scope of the current thread or task adopts checkpoints."""
    return any(options.checkpoint for *_, options in _of_here())


def _intercept() -> None:
    """Catch the calls that the open scopes adopt, which may become others meanwhile."""
    scopes = None
    while scopes != (scopes := list(_open)):
        options = [options for *_, options in list(_open.values())]
        intercept(bool(options), any(o.strict for o in options))
        intercept_operators("adopting", bool(options))
        intercept_checkpoints(any(o.checkpoint for o in options))


@contextmanager
def scope(options: Options, packages: tuple[str, ...] = (), exclude: tuple[str, ...] = ()) -> Iterator[None]:
    """A context in which classes are adopted; rules of adopted classes run in one too, for the Functions that they call."""
    entered = object()
    _entered.set((*[s for s in _entered.get() if s in _open], entered))
    with _lock:
        _open[entered] = packages, exclude, options
        _intercept()
    try:
        yield
    finally:
        with _lock:
            del _open[entered]
            _intercept()
