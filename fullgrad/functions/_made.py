"""`PicklablePartial`: the result of a decorator, which can be pickled and copied."""

import functools
import operator
import sys
from collections.abc import Callable
from types import MethodType
from typing import Any


class PicklablePartial(functools.partial[Any]):
    """A function that pickles as its name, or else as the call ``maker(*made_of)`` that made it.

    The result of a module-level decorator has a name, and pickles by it as a function does. Any other, such as an attribute of a
    module, is made again from ``made_of``, which must be picklable. A partial object is called from C, so a call costs less than
    with a class that has ``__call__``.
    """

    function: Callable[..., Any]
    maker: Callable[..., Any]
    made_of: tuple[Any, ...]

    def __reduce__(self) -> Any:
        name = getattr(self, "__qualname__", "")
        try:
            found = operator.attrgetter(name)(sys.modules[self.__module__])
        except (AttributeError, KeyError, TypeError):
            found = None
        return name if found is self else (self.maker, self.made_of)

    def __set_name__(self, owner: type, name: str) -> None:
        # A method has a name already, and Dynamo compiles methods that are functions alone.
        setattr(owner, name, self.function)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self.function, instance)

    def __repr__(self) -> str:
        return f"<{self.maker.__name__} of {', '.join(getattr(f, '__qualname__', repr(f)) for f in self.made_of)}>"


def made(function: Any, maker: Any, *made_of: Any) -> Any:
    """``function`` as a `PicklablePartial` that ``maker`` made of ``made_of``, with its name, signature and docstring."""
    result: Any = functools.update_wrapper(PicklablePartial(function), function)
    result.function, result.maker, result.made_of = function, maker, made_of
    return result
