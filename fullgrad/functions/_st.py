"""`st` and `grad_replace`: the value of one call of a function with the derivative of another."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.overrides import handle_torch_function

from fullgrad._core import checks
from fullgrad._dispatch import is_differentiating, is_override, tree_map_pairs
from fullgrad._engine.call import refuse_hidden
from fullgrad._engine.node import refuse_inside
from fullgrad._engine.operator import made
from fullgrad.functions._replace_grad import of_pair, replace_grad

F = TypeVar("F", bound=Callable[..., Any])


def st(fn: F) -> F:
    r"""A function of a ``mode`` with the value of its hard mode and the derivative of the given mode.

    .. math::
        y = f(x;\ \text{hard}), \qquad D = f'(x;\ \text{mode}),

    at every order, exact in value. ``fn`` is called twice if its value may be differentiated, and only once, hard, under
    ``torch.no_grad``. All tensors that it uses get their gradients, those that it closes over and parameters of modules
    included. Random numbers in ``fn`` are drawn twice, and side effects happen twice.

    The result keeps the signature of ``fn``, and can be pickled and copied where ``fn`` can. The outputs may be any structure;
    leaves that are not floating tensors, such as integers and None, are those of the hard call. Saved: the tensors that the soft
    call saves.

    Args:
        fn: A function, method, ``functools.partial`` or other callable with a parameter ``mode``, positional or by keyword, or
            with ``**kwargs``; the mode is then ``"smooth"`` by default.

    Returns:
        The function with a straight-through derivative.

    Raises:
        TypeError: ``fn`` is not callable, or takes no ``mode``. When called: the two outputs differ in dtype.
        ValueError: When called: the two outputs differ in structure or shape.

    Example:
        >>> import torch, fullgrad
        >>> @fullgrad.st
        ... def middle(x, mode="smooth"):
        ...     return fullgrad.soft.clamp(x, -1.0, 1.0, mode=mode) * fullgrad.soft.sign(x, mode=mode)
        >>> x = torch.tensor([-2.0, 0.1])
        >>> middle(x)
        tensor([1.0000, 0.1000])
        >>> torch.func.vmap(torch.func.grad(middle))(x)
        tensor([-4.5439e-05,  8.5523e-01])

    Source: ``softtorch.st``.
    """
    refuse_inside("st", ', or write `replace_grad(f(x, mode="hard"), f(x))`')
    default, position = _find("st", fn, "mode", "smooth")

    @functools.wraps(fn)
    def straight(*args: Any, **kwargs: Any) -> Any:
        if position is not None and position < len(args):
            hard_args = (*args[:position], "hard", *args[position + 1 :])
            return _value_of_first("st", fn, (hard_args, kwargs), (args, kwargs))
        return _value_of_first("st", fn, (args, {**kwargs, "mode": "hard"}), (args, {"mode": default, **kwargs}))

    return made(straight, st, fn)


def grad_replace(fn: F) -> F:
    r"""A function of ``forward`` with the value for ``forward=True`` and the derivative for ``forward=False``.

    .. math::
        y = f(x;\ \text{forward=True}), \qquad D = f'(x;\ \text{forward=False}),

    and otherwise like :func:`st`. The callers of the result do not pass ``forward``.

    Args:
        fn: A callable with a keyword ``forward``.

    Returns:
        The function without ``forward``.

    Raises:
        TypeError: ``fn`` is not callable, or takes no ``forward``. When called: the two outputs differ in dtype.
        ValueError: When called: the two outputs differ in structure or shape.

    Example:
        >>> import torch, fullgrad
        >>> spike = fullgrad.grad_replace(lambda x, forward: (x > 0).to(x.dtype) if forward else torch.sigmoid(x))
        >>> torch.func.grad_and_value(spike)(torch.tensor(0.0))
        (tensor(0.2500), tensor(0.))

    Source: ``softtorch.grad_replace``.
    """
    refuse_inside("grad_replace", ", or write `replace_grad(f(x, forward=True), f(x, forward=False))`")
    _find("grad_replace", fn, "forward", None)

    @functools.wraps(fn)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return _value_of_first("grad_replace", fn, (args, {**kwargs, "forward": True}), (args, {**kwargs, "forward": False}))

    return made(replaced, grad_replace, fn)


def _value_of_first(name: str, fn: Any, first: tuple[Any, Any], second: tuple[Any, Any]) -> Any:
    # The first call gets no derivative, so none of its graph is kept.
    with torch.no_grad():
        value = fn(*first[0], **first[1])
    if not is_differentiating():
        return value
    return tree_map_pairs(functools.partial(_replaced, name), value, fn(*second[0], **second[1]), name)


def _replaced(name: str, value: Any, surrogate: Any) -> Any:
    if is_override(value) or is_override(surrogate):  # nodes of a graph, whose values are known when it runs
        return handle_torch_function(_replaced, (value, surrogate), name, value, surrogate)
    if not (isinstance(value, Tensor) and isinstance(surrogate, Tensor)):
        refuse_hidden(f"{name}: the function returns", [value, surrogate])
        return value
    if value.is_complex():
        return of_pair(value, surrogate)
    return replace_grad(value, surrogate) if value.is_floating_point() else value


def _find(name: str, fn: Any, parameter: str, default: Any) -> tuple[Any, int | None]:
    """The default of a parameter, and its position where it has one."""
    checks.callables(name, fn=fn)
    known = getattr(fn, "__name__", "")
    spelled = f"torch.{known}" if getattr(torch, known or "_", None) is fn else known if known.isidentifier() else "fn"
    write = f"write straight_through({spelled}, lambda x: x), where the second function has the derivative"
    try:
        parameters = inspect.signature(fn).parameters
    except ValueError:  # of a built-in function, such as torch.round
        message = f"{name}: `fn` must take a parameter `{parameter}`, got {fn!r}, whose parameters are unknown; {write}."
        raise TypeError(message) from None
    if parameter in parameters:
        found = parameters[parameter]
        position = None if found.kind is found.KEYWORD_ONLY else [*parameters].index(parameter)
        return default if found.default is found.empty else found.default, position
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        raise TypeError(f"{name}: `fn` must take a parameter `{parameter}`, got the signature {inspect.signature(fn)}; {write}.")
    return default, None
