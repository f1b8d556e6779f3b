"""`Along`: the object that the makers of derivatives along curves return."""

from collections.abc import Callable
from typing import Any

from fullgrad._core import checks
from fullgrad._dispatch import is_tracing, outside_dynamo_later
from fullgrad._engine.operator import Made
from fullgrad.completion._completing import install
from fullgrad.forward._curve import is_curve, leaves_of


class Along(Made[..., Any]):
    """A function that computes derivatives of another one; compiled code takes it as one node."""

    positional = 1  # how many arguments have places of their own

    def __init__(self, kind: str, f: Callable[..., Any], compute: Callable[..., Any], *settings: Any) -> None:
        checks.function(kind, "f", f)
        if not is_tracing():
            install()  # before compiled code, in which the dispatcher must not change
        self.kind, self.compute, self.settings = kind, compute, settings
        super().__init__(kind, f)
        self.made_of = kind, f, compute, *settings

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # A curve of a call outside is a value like any other.
        return self.run(args, kwargs) if any(map(is_curve, leaves_of((args, kwargs)))) else super().__call__(*args, **kwargs)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return _computed[0](self, args, kwargs)


def _compute(along: Along, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) < along.positional:
        raise TypeError(
            f"{along.kind}: pass the first {'argument' if along.positional == 1 else 'two arguments'} by position, "
            f"got {len(args)} positional arguments and the keywords {list(kwargs)}."
        )
    return along.compute(along.function, along.settings, args, kwargs)


_computed = outside_dynamo_later(_compute)  # also of an object that is made in compiled code, where the graph breaks
