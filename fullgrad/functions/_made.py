"""`Made` and `PicklablePartial`: results of decorators, which can be pickled and copied."""

import functools
import operator
import sys
from collections.abc import Callable
from types import MethodType
from typing import Any

from torch import nn
from torch.compiler import is_dynamo_compiling

from fullgrad._dispatch import STAYS_IN_INFERENCE_MODE, is_exporting, pytree, refuse_lost_derivatives, traced_below
from fullgrad.functions._reads import guard


class Made:
    """A function that a decorator made of others, as an object: it has its name and is a method where a class has it.

    It pickles by its name, or else by what it was made of. Compiled code takes it as it is, and what it does in `run` is one
    node, in and out of which any structure may go.
    """

    kind: str
    made_of: tuple[Any, ...] | None = None

    def __init_subclass__(cls) -> None:
        pytree.register_constant(cls)

    def __init__(self, kind: str, f: Callable[..., Any]) -> None:
        if not callable(f):
            raise TypeError(f"{kind}: `f` must be callable, got a value of type {type(f).__name__}.")
        self.function, self.name = f, getattr(f, "__name__", type(f).__name__)
        self.label = f"{kind}: {self.name}"
        functools.update_wrapper(self, f)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not is_dynamo_compiling():
            if STAYS_IN_INFERENCE_MODE:
                refuse_lost_derivatives(self.label)
            return self.run(args, kwargs)
        # An exported graph holds the value alone.
        if is_exporting():
            return self.function(*args, **kwargs)
        return _node[0](self, *pytree.tree_map(lambda v: NOTHING if v is None else v, (args, kwargs)))

    def parts(self) -> list[Any]:
        """The functions that it is made of."""
        return [self.function]

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call in eager code, or while a tracer records it."""
        raise NotImplementedError

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> Any:
        name = _own_name(self)
        if name is not None:
            return name
        if self.made_of is None:
            own = f"{self.__module__}.{getattr(self, '__qualname__', '')}"
            raise TypeError(f"{self.label} cannot be pickled, as it is not found as {own}.")
        return type(self), self.made_of

    def __repr__(self) -> str:
        return f"<{self.kind} of {self.name}>"


class _Nothing:
    """None, which torch takes for no argument of a node."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Nothing)

    def __hash__(self) -> int:
        return 0


NOTHING = _Nothing()
pytree.register_constant(_Nothing)


def without_nothing(tree: Any) -> Any:
    """A structure with None again in the places of `NOTHING`."""
    is_nothing = lambda v: isinstance(v, _Nothing)  # noqa: E731
    return pytree.tree_map(lambda v: None if is_nothing(v) else v, tree, is_leaf=is_nothing)


def _run(function: Made, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    args, kwargs = without_nothing((args, kwargs))
    guard(*function.parts(), *[v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, nn.Module)])
    return function.run(args, kwargs)


_node = traced_below(_run)


def _own_name(function: Any) -> str | None:
    """The name by which a function's module has it."""
    name = getattr(function, "__qualname__", "")
    try:
        found = operator.attrgetter(name)(sys.modules[function.__module__])
    except (AttributeError, KeyError, TypeError):
        return None
    return name if found is function else None


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
        return _own_name(self) or (self.maker, self.made_of)

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
