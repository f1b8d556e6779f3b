"""`Function`: the base class of every operator."""

import inspect
import sys
import types
from typing import Any, ClassVar

from fullgrad._core.generated import Generated
from fullgrad._dispatch import (
    Rules,
    alias,
    connect,
    in_place_message,
    is_identity,
    pure,
    recomputed,
    saves_nothing,
    unseen_by_dynamo,
)

__all__ = ["Function", "alias", "is_identity", "pure", "recomputed", "saves_nothing"]

_RULES = ("forward", "setup_context", "vjp", "jvp", "vmap")


class Function:
    r"""An operator with a declared derivative, right under every transform of torch.

    A subclass writes five static methods with the signatures of ``torch.autograd.Function`` and is called through
    ``apply``, positionally or by keyword:

    * ``forward(*args)`` computes the value :math:`y = f(x)`.
    * ``setup_context(ctx, inputs, output)`` keeps what the rules need, through ``ctx.save_for_backward`` for ``vjp`` and
      ``ctx.save_for_forward`` for ``jvp``: inputs and outputs, never an intermediate that depends on a differentiable input,
      whose own derivative would be lost.
    * ``vjp(ctx, *cotangents)`` returns :math:`D(x)^T g`, one entry per input, None where there is none.
    * ``jvp(ctx, *tangents)`` returns :math:`D(x)\,t`, one entry per output. The tangent of an input that is constant is None,
      whether it is a tensor or a number. (``ctx.set_materialize_grads(True)`` in ``setup_context`` asks for zeros instead, as
      torch's Functions get; where a partial derivative is infinite, its product with zeros is NaN.)
    * ``vmap(info, in_dims, *args)`` returns the batched output and its batch dimensions.

    ``D`` is the declared derivative; it need not be the true derivative of ``forward``. Rules are ordinary torch code, and
    autograd differentiates them, so derivatives of any order follow from them. A rule may be a classmethod, so that a
    family of operators writes it once; a class without ``forward`` is such a family and has no ``apply``.

    Operators are functions of their inputs: ``ctx.mark_dirty`` is refused. So are tensors inside containers, whose gradient
    torch would silently lose. Non-tensor arguments under ``torch.compile`` are plain scalars, strings and tuples of them.

    A class whose ``vjp`` is made of elementwise operations may set ``recompute_in_backward = True``: compiled code on the CPU
    then computes them in the backward, and saves what ``setup_context`` saves instead of masks.

    On distributed tensors (`torch.distributed.tensor.DTensor`) an operator runs on shards if it declares by ``whole_dims`` which
    dimensions a rank must have whole; the others may stay split:

    * ``whole_dims = 0``: none; the operator treats every element alike and broadcasts its inputs, as an `Elementwise` does.
    * ``whole_dims = 1``: the last dimension of each tensor; the others broadcast. ``(2, 1)``: the last two of the first argument
      and the last one of the second. The outputs begin with the dimensions that may be split.
    * ``whole_dims = "dim"``: the dimensions of the first argument that the parameter ``dim`` names (None for all). Tensors with
      as many dimensions are split in the same way. The outputs begin with the dimensions of the first argument, without those
      of ``dim`` if ``keeps_dim`` is False.

    An operator whose forward or backward may raise because of the values in its tensors declares ``raises_by_numbers = True``, or
    a function of its arguments that tells: each rank then sends one number, so that all ranks raise and none waits.

    Without ``whole_dims``, the rules run operation by operation, where torch has sharding rules for them. ``whole_dims`` also
    decides about jagged nested tensors: the operator runs on the buffer, if the ragged dimension need not be whole.

    An operator whose ``vjp`` is no linear map of the cotangent, and so the transpose of no ``jvp``, may say so by
    ``is_linear = False``: ``diagnose`` then notes that forward mode differs, and calls neither wrong.

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

    recompute_in_backward = False
    whole_dims: ClassVar[int | str | tuple[int, ...] | None] = None
    keeps_dim: ClassVar[bool] = True
    raises_by_numbers: ClassVar[Any] = False  # or a function of the arguments

    # For a family that `whole_dims` does not describe: a function of the arguments that returns, for each argument, a label for
    # each dimension that may be split and None for the others; and the labels of the first dimensions of each output.
    dim_labels: ClassVar[Any] = None
    # Types of arguments that hold no tensor, besides numbers and strings.
    constant_types: ClassVar[tuple[type, ...]] = ()
    # Whether an operator of the package calls code of users; classes of users always may.
    runs_code: ClassVar[bool] = False
    # Whether modes that look at the code of an operator made of functions are told of a call; one in such an operator tells them.
    is_watched: ClassVar[bool] = True
    # Whether ``jvp`` gets zeros as the tangent of a constant tensor, as in torch, instead of None.
    takes_zeros: ClassVar[bool] = False
    # Whether ``vjp`` is linear in the cotangent, and so the transpose of ``jvp``; without that, the two modes differ by design.
    is_linear: ClassVar[bool] = True
    # Whether the operator is one of the conversions between distributed tensors and shards.
    distributes_itself: ClassVar[bool] = False

    @unseen_by_dynamo
    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_static(cls, _RULES)
        if not hasattr(cls, "forward"):
            return
        _check_definition(cls)
        rules = Rules(cls)
        apply = connect(rules)
        apply.__doc__ = f"Call {cls.__name__}, positionally or by keyword."
        apply.__name__ = "apply"
        apply.__module__ = cls.__module__
        apply.__qualname__ = f"{cls.__qualname__}.apply"
        setattr(apply, "operator", cls)  # by which a curve finds it
        cls.apply = Generated(apply)

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:  # with NoReturn mypy knows no attribute of the class
        raise TypeError(f"{cls.__name__} is not instantiated; call {cls.__name__}.apply{_module_of(cls)}.")

    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any:
        """Call the operator, positionally or by keyword. Every class with a ``forward`` gets its own.

        Example:
            >>> import torch, fullgrad
            >>> fullgrad.Clamp.apply(torch.tensor([-2.0, 0.5]), min_value=-1.0)
            tensor([-1.0000,  0.5000])
        """
        raise TypeError("A family without a forward has no apply; call it on one of its operators.")


def check_static(cls: type, names: tuple[str, ...]) -> None:
    """Refuse methods of ``self``: there is no instance. Without it a function is as good as a static method."""
    for name in names:
        method = cls.__dict__.get(name)
        code = method.__code__ if isinstance(method, types.FunctionType) else None
        if code is not None and code.co_varnames[:1] in (("self",), ("cls",)):
            found = ", ".join(code.co_varnames[: code.co_argcount])
            lacks = "@classmethod" if code.co_varnames[0] == "cls" else "@staticmethod"
            raise TypeError(f"{cls.__name__}.{name} lacks {lacks}: no instance is made, got the parameters ({found}).")


def _module_of(cls: type) -> str:
    """The module of the operator's name, where there is one."""
    package = sys.modules[__name__.partition(".")[0]]
    is_ours = cls.__module__.startswith(f"{package.__name__}.")
    return f", or fullgrad.nn.{cls.__name__} for a module" if is_ours and hasattr(package.nn, cls.__name__) else ""


def _check_definition(cls: type) -> None:
    """Refuse a class whose calls would fail or be wrong."""
    missing = [rule for rule in _RULES if not hasattr(cls, rule)]
    if missing:
        hint = " (fullgrad's name for backward is vjp)" if "vjp" in missing and hasattr(cls, "backward") else ""
        raise TypeError(f"{cls.__name__} lacks {', '.join(missing)}: an operator defines all of {', '.join(_RULES)}{hint}.")
    code = getattr(getattr(cls, "setup_context", None), "__code__", None)
    if code is not None and "mark_dirty" in code.co_names:
        raise TypeError(in_place_message(cls.__name__))
    parameters = inspect.signature(cls.forward).parameters.values()
    if not parameters:
        raise TypeError(f"{cls.__name__}.forward must take at least one input.")
    for p in parameters:
        if p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD):
            raise TypeError(f"{cls.__name__}.forward must take positional parameters only, found {p}: autograd would not see it.")
    if all(p.kind is not p.VAR_POSITIONAL for p in parameters):
        _check_arity(cls, [p.name for p in parameters])


def _check_arity(cls: Any, inputs: list[str]) -> None:
    """Refuse a rule whose signature does not take its arguments."""
    for rule, given in (
        ("setup_context", ["ctx", "inputs", "output"]),
        ("jvp", ["ctx", *(f"tangent of {name}" for name in inputs)]),
        ("vmap", ["info", "in_dims", *inputs]),
    ):
        if not _takes(getattr(cls, rule), len(given)):
            found = inspect.signature(getattr(cls, rule))
            raise TypeError(f"{cls.__name__}.{rule} is called with ({', '.join(given)}), got the signature {found}.")


def _takes(function: Any, count: int) -> bool:
    """Whether a function takes ``count`` positional arguments; `inspect.signature` would take most of the import's time."""
    code = getattr(function, "__code__", None)
    if code is None:
        return True
    most = code.co_argcount - isinstance(function, types.MethodType)
    least = most - len(function.__defaults__ or ())
    return least <= count and (count <= most or bool(code.co_flags & inspect.CO_VARARGS))
