"""`AdoptedFunction`, what `adopt` returns: it pickles by the name of its class or operator."""

import functools
import importlib
import pickle
import sys
from collections.abc import Callable
from typing import Any

import torch

from fullgrad._dispatch import defined_operator, is_operator
from fullgrad._engine.operator import PicklablePartial, is_cloudpickle, name_in_module, own_name

_LOCAL = """adopt: {0} cannot be pickled, since its module {1} has no class of this name. Define the class at the top level of \
a module, where pickle finds it, or pickle with cloudpickle."""
_UNKNOWN = "adopt: the pickled operator {}::{} is not defined here; import the module that defines it first."


class _CopiedAsFunctions:
    """A copy is the object itself, as it is of a function."""

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self


class AdoptedFunction(_CopiedAsFunctions, PicklablePartial):
    """An adopted class or operator. It is made again from the name of that, or found by it where it has taken the name itself."""

    @classmethod
    def of(cls, function: Callable[..., Any], maker: Callable[..., Any], adopted: Any, options: Any) -> "AdoptedFunction":
        """The object that calls a function, which has its name; ``maker(adopted, options)`` finds it again."""
        result: Any = functools.update_wrapper(cls(function), function)
        del result.__wrapped__
        result.function, result.maker, result.made_of = function, maker, (adopted, options)
        if isinstance(adopted, type):
            result.__module__ = adopted.__module__
        return result

    def parts(self) -> list[Any]:
        """The function that it calls."""
        return [self.function]

    def __reduce__(self) -> Any:
        adopted, options = self.made_of
        if is_operator(adopted):
            return _operator_again, (*_names(adopted), self.maker, options)
        own = own_name(self, adopted.__qualname__)
        if own is None:
            _check_picklable(adopted, sys._getframe(1).f_globals)
        return own or (self.maker, self.made_of)

    def __repr__(self) -> str:
        return f"<adopt of {getattr(self.made_of[0], '__qualname__', self.made_of[0])}>"


class OfClass(_CopiedAsFunctions, functools.partial[Any]):
    """A function of a class, ``function(cls, …)``, that has its name and pickles if it does."""

    def __init__(self, _: Callable[..., Any], cls: type) -> None:
        self.__name__ = cls.__name__

    def parts(self) -> list[Any]:
        """The function and the class."""
        return [self.func, *self.args]

    def __reduce__(self) -> Any:
        _check_picklable(self.args[0], sys._getframe(1).f_globals)
        return type(self), (self.func, *self.args)


def _check_picklable(cls: Any, pickler: dict[str, Any]) -> None:
    if name_in_module(cls) is None and not is_cloudpickle(pickler):
        raise pickle.PicklingError(_LOCAL.format(cls.__qualname__, cls.__module__))


def _names(op: Any) -> tuple[Any, ...]:
    """The module that defines an operator, if it is known, its namespace and name, and its overload, if it is one."""
    one = op if hasattr(op, "_schema") else getattr(op, op.overloads()[0])
    namespace, name = one._schema.name.split("::")
    return getattr(defined_operator(one), "__module__", None), namespace, name, one._overloadname if one is op else None


def _operator_again(module: str | None, namespace: str, name: str, overload: str | None, maker: Any, options: Any) -> Any:
    try:
        if module is not None and not hasattr(getattr(torch.ops, namespace), name):
            importlib.import_module(module)
        packet = getattr(getattr(torch.ops, namespace), name)
    except (AttributeError, ImportError) as error:
        raise pickle.UnpicklingError(_UNKNOWN.format(namespace, name)) from error
    return maker(packet if overload is None else getattr(packet, overload), options)
