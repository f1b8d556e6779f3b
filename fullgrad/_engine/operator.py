"""`Made` and `PicklablePartial`: results of decorators, which can be pickled and copied."""

import functools
import operator
import sys
from collections.abc import Callable, Sequence
from types import FunctionType, MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.overrides import handle_torch_function

from fullgrad._core import checks
from fullgrad._dispatch import STAYS_IN_INFERENCE_MODE, is_exporting, overrides_in, pytree, refuse_lost_derivatives
from fullgrad._engine.node import captured_for_graph, refusal_of, run_as_node, with_nothing

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R", covariant=True)
T = TypeVar("T")


class Made(Generic[P, R]):
    """A function that a decorator made of others, as an object: it has its name and is a method where a class has it.

    It pickles by its name, or else by what it was made of. Compiled code takes it as it is, and what it does in `run` is one
    node, in and out of which any structure may go.
    """

    kind: str
    made_of: tuple[Any, ...] | None = None
    captured: Sequence[Tensor] = ()  # in compiled code

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        pytree.register_constant(cls)

    def __init__(self, kind: str, f: Callable[P, R]) -> None:
        checks.callables(kind, f=f)
        functools.update_wrapper(self, f, updated=("__dict__",) if isinstance(f, FunctionType) else ())
        self.function: Callable[..., Any] = f
        self.name, self.label = name_of(f), label_of(kind, f)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if not is_dynamo_compiling():
            if STAYS_IN_INFERENCE_MODE:
                refuse_lost_derivatives(self.label)
            nodes = overrides_in(args, kwargs)  # a graph of torch.fx keeps the call, with its rules
            return handle_torch_function(self.target(), nodes, *args, **kwargs) if nodes else self.run(args, kwargs)
        # An exported graph holds the value alone.
        if is_exporting():
            return self.function(*args, **kwargs)
        reason = refusal_of(self)
        if reason:
            torch._dynamo.graph_break(msg=reason)
        return run_as_node[0](self, *with_nothing((args, kwargs)), captured_for_graph(self))

    def target(self) -> Callable[P, R]:
        """It as the target of a node of a graph, whose code needs a name."""
        if own_name(self) is not None:
            return self

        def target(*args: P.args, **kwargs: P.kwargs) -> R:
            return self(*args, **kwargs)

        name = "".join([c if c.isalnum() else "_" for c in f"{self.kind}_of_{self.name}"])
        target.__name__ = target.__qualname__ = name
        return target

    def parts(self) -> list[Any]:
        """The functions that it is made of."""
        return [self.function]

    def called_below(self) -> list[Any]:
        """The functions among them that are called when a graph runs, where no derivative can follow a tensor that they hold."""
        return []

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call in eager code, or while a tracer records it."""
        raise NotImplementedError

    @overload
    def __get__(self, instance: None, owner: Any = None) -> "Made[P, R]": ...
    @overload
    def __get__(self: "Made[Concatenate[T, Q], R]", instance: T, owner: Any = None) -> Callable[Q, R]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> Any:
        # Its state comes after it, since a rule may refer to the function whose rule it is.
        return own_name(self) or (object.__new__, (type(self),), self.state())

    def state(self) -> tuple[Any, ...]:
        """The arguments from which `__setstate__` makes it again."""
        return self.made_of or ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)

    def __repr__(self) -> str:
        return f"<{self.kind} of {self.name}>"


def name_of(f: Any) -> str:
    """The name of a function, or of the class of an object."""
    return getattr(f, "__name__", type(f).__name__)


def label_of(kind: str, f: Any) -> str:
    """An operator of a function in messages."""
    return f"{kind}: {name_of(f)}"


def own_name(function: Any, name: str | None = None) -> str | None:
    """The name by which a function's module has it, if it is pickled by name; another one than its own may be asked for."""
    pickler, module = sys._getframe(2).f_globals, function.__module__
    # Cloudpickle, which joblib and ray have copies of, takes functions of a script by value, for a process without the script.
    if is_cloudpickle(pickler) and (module == "__main__" or module in pickler.get("_PICKLE_BY_VALUE_MODULES", ())):
        return None
    return name_in_module(function, name)


def is_cloudpickle(pickler: dict[str, Any]) -> bool:
    """Whether the globals of the code that asks are those of cloudpickle, which offers no protocol for that."""
    return pickler.get("__name__", "").rpartition(".")[2] == "cloudpickle"


def name_in_module(value: Any, name: str | None = None) -> str | None:
    """The name by which the module of a function or a class has it: its own, or another one that is asked for."""
    name = name or getattr(value, "__qualname__", "")
    try:
        found = operator.attrgetter(name or "")(sys.modules[value.__module__])
    except (AttributeError, KeyError, TypeError):
        return None
    return name if found is value else None


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
        return own_name(self) or (self.maker, self.made_of)

    def __set_name__(self, owner: type, name: str) -> None:
        # A method has a name already, and Dynamo compiles methods that are functions alone.
        setattr(owner, name, self.function)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self.function, instance)

    def __repr__(self) -> str:
        return f"<{self.maker.__name__} of {', '.join(getattr(f, '__qualname__', repr(f)) for f in self.made_of)}>"


def made(function: Any, maker: Any, *made_of: Any, like: Any = None) -> Any:
    """``function`` as a `PicklablePartial` that ``maker`` made of ``made_of``, with its signature, and the name and docstring of
    it or of another one.
    """
    result: Any = functools.update_wrapper(PicklablePartial(function), function)
    if like is not None:
        result = functools.update_wrapper(result, like, ("__name__", "__qualname__", "__doc__"), ())
        result.__wrapped__ = function
    result.function, result.maker, result.made_of = function, maker, made_of
    return result
