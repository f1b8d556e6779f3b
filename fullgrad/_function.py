"""`Function`: the base class of every operator."""

import inspect
from typing import Any, NoReturn

import torch

from fullgrad._machinery import Rules, connect
from fullgrad._machinery.rules import in_place_message

__all__ = ["Function"]

_RULES = ("forward", "setup_context", "vjp", "jvp", "vmap")


class Function:
    r"""An operator with a declared derivative, right under everything torch does with a function.

    A subclass writes five static methods with the signatures of ``torch.autograd.Function`` and is called through
    ``apply``, positionally or by keyword:

    * ``forward(*args)`` computes the value :math:`y = f(x)`.
    * ``setup_context(ctx, inputs, output)`` keeps what the rules need, through ``ctx.save_for_backward`` for ``vjp`` and
      ``ctx.save_for_forward`` for ``jvp``: inputs and outputs, never an intermediate that depends on a differentiable input,
      whose own derivative would be lost.
    * ``vjp(ctx, *cotangents)`` returns :math:`D(x)^T g`, one entry per input, None where there is none.
    * ``jvp(ctx, *tangents)`` returns :math:`D(x)\,t`, one entry per output.
    * ``vmap(info, in_dims, *args)`` returns the batched output and its batch dimensions.

    ``D`` is the declared derivative; it need not be the true derivative of ``forward``. Rules are ordinary torch code, and
    autograd differentiates them, so derivatives of any order follow from them. A rule may be a classmethod, so that a
    family of operators writes it once; a class without ``forward`` is such a family and has no ``apply``.

    Operators are functions of their inputs: ``ctx.mark_dirty`` is refused. So are tensors inside containers, whose gradient
    torch would lose in silence. Non-tensor arguments under ``torch.compile`` are plain scalars, strings and tuples of them.

    Two limits are torch's own. A graph made by ``torch.export``, or by ``make_fx`` of the forward alone, holds the value and
    not the declared derivative (export warns when an input requires grad; ``make_fx`` of a transform, and ``torch.compile``, are
    right). A dual tensor from outside cannot enter compiled code; torch says so.

    Raises:
        TypeError: When a class is defined that lacks a rule, or that cannot work.

    Example:
        >>> import torch, fullgrad
        >>> class Heaviside(fullgrad.Function):
        ...     '''1 where x > 0, else 0; derivative 1 where abs(x) < 1, else 0.'''
        ...     @staticmethod
        ...     def forward(x):
        ...         return (x > 0).to(x.dtype)
        ...     @staticmethod
        ...     def setup_context(ctx, inputs, output):
        ...         ctx.save_for_backward(*inputs)
        ...         ctx.save_for_forward(*inputs)
        ...     @staticmethod
        ...     def vjp(ctx, g):
        ...         (x,) = ctx.saved_tensors
        ...         return g * (x.abs() < 1)
        ...     @staticmethod
        ...     def jvp(ctx, t):
        ...         (x,) = ctx.saved_tensors
        ...         return t * (x.abs() < 1)
        ...     @staticmethod
        ...     def vmap(info, in_dims, x):
        ...         return Heaviside.apply(x), in_dims[0]
        >>> x = torch.tensor([-2.0, -0.5, 0.5, 2.0])
        >>> Heaviside.apply(x)
        tensor([0., 0., 1., 1.])
        >>> torch.func.vmap(torch.func.grad(Heaviside.apply))(x)
        tensor([0., 1., 1., 0.])
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not hasattr(cls, "forward"):
            return
        _check_definition(cls)
        eager, graph = connect(Rules(cls))
        cls.apply = staticmethod(_entry(cls, eager, graph))

    def __new__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(f"{cls.__name__} is not instantiated; call {cls.__name__}.apply.")

    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any:
        """Call the operator, positionally or by keyword. Every class with a ``forward`` gets its own.

        Example:
            >>> import torch, fullgrad
            >>> fullgrad.Clamp.apply(torch.tensor([-2.0, 0.5]), min_value=-1.0)
            tensor([-1.0000,  0.5000])
        """
        raise TypeError("A family without a forward has no apply; call it on one of its operators.")


def _check_definition(cls: type) -> None:
    """Refuse at definition what could only fail, or be wrong, later."""
    missing = [rule for rule in _RULES if not hasattr(cls, rule)]
    if missing:
        hint = " (fullgrad's name for backward is vjp)" if "vjp" in missing and hasattr(cls, "backward") else ""
        raise TypeError(f"{cls.__name__} lacks {', '.join(missing)}: an operator defines all of {', '.join(_RULES)}{hint}.")
    code = getattr(getattr(cls, "setup_context", None), "__code__", None)
    if code is not None and "mark_dirty" in code.co_names:
        raise TypeError(in_place_message(cls.__name__))
    for p in inspect.signature(getattr(cls, "forward")).parameters.values():
        if p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD):
            raise TypeError(f"{cls.__name__}.forward must take positional parameters only, found {p}: autograd would not see it.")


def _entry(cls: type, eager: Any, graph: Any) -> Any:
    """The public ``apply``: binds keywords and defaults, and keeps Dynamo from looking inside.

    Dynamo traces a custom Function's forward as plain code and drops its rules in places
    (https://github.com/pytorch/pytorch/issues/192985, https://github.com/pytorch/pytorch/issues/193279), and refuses it in others
    (https://github.com/pytorch/pytorch/issues/180284). ``allow_in_graph`` leaves one node in its graph, and AOTAutograd, which
    traces what that node does, sees the real rules.
    """
    parameters = inspect.signature(getattr(cls, "forward")).parameters
    order = tuple(parameters)
    defaults = tuple(p.default for p in parameters.values())
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    count, name, empty = len(order), cls.__name__, inspect.Parameter.empty
    compiling = torch.compiler.is_dynamo_compiling

    def in_graph(*args: Any) -> Any:
        return graph(*args)

    # The name under which the node appears in graphs.
    in_graph.__name__ = in_graph.__qualname__ = name
    in_graph.__module__ = f"{cls.__module__}.graph"
    in_graph = torch.compiler.allow_in_graph(in_graph)

    def bind(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        if len(args) > count:
            raise TypeError(f"{name}.apply takes at most {count} arguments ({', '.join(order)}), got {len(args)}.")
        given = list(args)
        for index in range(len(args), count):
            parameter = order[index]
            if parameter in kwargs:
                given.append(kwargs[parameter])
            elif defaults[index] is not empty:
                given.append(defaults[index])
            else:
                raise TypeError(f"{name}.apply lacks the argument {parameter!r}.")
        for key in kwargs:
            if key not in order[len(args) :]:
                problem = "got twice" if key in order else "does not know"
                raise TypeError(f"{name}.apply {problem} the argument {key!r}; it takes {', '.join(order)}.")
        return tuple(given)

    def apply(*args: Any, **kwargs: Any) -> Any:
        if variadic:
            if kwargs:
                raise TypeError(f"{name}.apply takes positional arguments only, got the keywords {', '.join(kwargs)}.")
        elif kwargs or len(args) != count:
            args = bind(args, kwargs)
        if compiling():
            return in_graph(*args)
        return eager(*args)

    apply.__doc__ = f"Call {name}, positionally or by keyword: ({', '.join(order)})."
    apply.__module__ = cls.__module__
    apply.__qualname__ = f"{cls.__qualname__}.apply"
    return apply
