"""`adopt` and `adopting`."""

import functools
import inspect
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.overrides import handle_torch_function

from fullgrad._core import checks
from fullgrad._dispatch import (
    catch_in_graphs,
    catcher,
    forward_mode_is_on,
    is_operator,
    leaf_of,
    mark_for_dynamo,
    outside_dynamo,
    outside_dynamo_later,
    overrides_in,
    pytree,
    traced_class,
    transforms_active,
    unseen_by_dynamo,
)
from fullgrad._engine.guard import guard
from fullgrad._engine.node import refuse_inside
from fullgrad.adoption import _scope
from fullgrad.adoption._adopted import applied
from fullgrad.adoption._class_call import ClassCall, is_new_style
from fullgrad.adoption._names import check_names, note
from fullgrad.adoption._operator_call import call_of_operator, check_adoptable
from fullgrad.adoption._pickled import AdoptedFunction, OfClass
from fullgrad.adoption._scope import Options, adopts_checkpoints, options_for, options_of_operator, scope
from fullgrad.adoption._tensors import may_differ
from fullgrad.functions._checkpoint import checkpoint
from fullgrad.functions._with_reference import with_reference

Package = str | ModuleType | type
P = ParamSpec("P")
T = TypeVar("T")
_operators: Any = weakref.WeakKeyDictionary()


def adopt(
    cls: Any, strict: bool = False, allow_loop: bool = True, *, reference: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    r"""Make anyone's ``torch.autograd.Function`` or operator of ``torch.library`` right under every transform, unchanged.

    The class stays as it is: its forward is the value, its ``backward`` the declared derivative,

    .. math::
        y = \operatorname{forward}(x), \qquad D(x)^T g = \operatorname{backward}(x, g)

    * The first derivative is the class's own backward; each further one is that of the backward's operations, as in eager double
      backward. Saved inputs and outputs stay connected; an intermediate that an old-style ``forward`` saves is a constant.
    * ``jvp`` is the class's own, or the transpose of the backward. A backward that is not linear in the gradient is detected: if
      the value is the identity, ``jvp`` is the identity; otherwise forward mode raises. On a device the host waits for that, once
      for each class and its constants.
    * ``vmap`` runs the class's code for the whole batch. Code that looks at numbers runs sample by sample, with one warning.
    * ``forward`` runs once per call, below all transforms, so random numbers are drawn and counters count once.

    Cases that cannot be right raise: inputs changed in place, tensors hidden in objects, a second derivative of a
    ``once_differentiable`` backward. The page "Adopt" of the documentation has the whole list.

    An operator's backward is that of ``torch.library.register_autograd``; one without it, or with a kernel for autograd of its
    own, needs a reference.

    With a ``reference``, plain torch code for the same function, the class or library operator is a kernel as in
    :func:`with_reference`: a class's own backward is the first derivative in reverse mode, for which its forward runs again, and
    all else is that of the reference; ``vmap`` calls it sample by sample.

    Args:
        cls: A subclass of ``torch.autograd.Function``, old style or new style; or an operator of ``torch.library``: what
            ``custom_op`` returns, or an attribute of ``torch.ops``, with one overload or all.
        strict: Raise where a second derivative would treat a saved intermediate that depends on an input as a constant.
        allow_loop: Whether code that cannot be batched may run sample by sample; otherwise it raises.
        reference: A function of the same arguments in torch code.

    Returns:
        A function with the signature of ``cls.apply``. It pickles by the name of the class or operator, and its copy is itself.

    Raises:
        TypeError: ``cls`` is neither, or an operator whose derivative cannot be read; or ``reference`` is not callable.

    Example:
        >>> import torch, fullgrad
        >>> class Spike(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return (x > 0).to(x.dtype)
        ...     @staticmethod
        ...     def backward(ctx, g):
        ...         (x,) = ctx.saved_tensors
        ...         return g / (1 + x * x)
        >>> spike = fullgrad.adopt(Spike)
        >>> torch.func.hessian(lambda x: spike(x).sum())(torch.tensor([0.5]))
        tensor([[-0.6400]])

    Source: the design is fullgrad's own.
    """
    refuse_inside("adopt")
    if reference is not None and not isinstance(cls, type):
        return with_reference(cls, reference)
    if is_operator(cls):
        check_adoptable(cls)
        return operator_of(getattr(cls, "_opoverload", cls), Options(strict, allow_loop))
    if not (isinstance(cls, type) and issubclass(cls, torch.autograd.Function)):
        raise TypeError(
            f"adopt: `cls` must be a subclass of torch.autograd.Function or an operator of torch.library, got {cls!r}."
        )
    if reference is not None:
        return with_reference(OfClass(_value, cls), reference, backward=OfClass(_gradients, cls))
    return operator_of(cls, Options(strict, allow_loop))


def _value(cls: Any, *args: Any) -> Any:
    return cls.apply(*args)


def _gradients(cls: Any, inputs: tuple[Any, ...], outputs: Any, grads: Any) -> tuple[Any, ...]:
    """The gradients of a class's arguments by its own backward."""
    leaves = [leaf_of(x) if isinstance(x, Tensor) and may_differ(x) else x for x in inputs]
    with torch.enable_grad():
        results = pytree.tree_leaves(cls.apply(*leaves))
    given = zip(results, pytree.tree_leaves(grads), strict=True)
    pairs = [(y, g) for y, g in given if isinstance(y, Tensor) and y.requires_grad and g is not None]
    where = [i for i, x in enumerate(leaves) if isinstance(x, Tensor) and x.requires_grad]
    found: list[Any] = [None] * len(inputs)
    if pairs:
        ys, gs = zip(*pairs, strict=True)
        for i, g in zip(where, torch.autograd.grad(ys, [leaves[i] for i in where], gs, allow_unused=True), strict=True):
            found[i] = g
    return tuple(found)


def adopting(
    *packages: Package, exclude: Any = (), strict: bool = False, allow_loop: bool = True, checkpoint: bool = False
) -> "Adopting":
    """Adopt every ``torch.autograd.Function`` and operator of ``torch.library`` that is called inside: a whole model of other
    packages, unchanged.

    It is adopted, as by `adopt`, when it is called while a transform or forward mode is active; plain eager code is not
    affected. torch's own Functions (checkpoint, FSDP, compiled code) and fullgrad's are left alone. The context may be nested,
    belongs to the current thread or task, and also decorates functions. On leaving, everything is as before.

    Args:
        packages: Modules, or names of modules, classes and namespaces of operators, which are adopted; all by default. A module
            that is named may be imported later.
        exclude: A module, a name, or a tuple or list of them, whose classes are left alone.
        strict: As in `adopt`; plain eager calls are then adopted, too.
        allow_loop: As in `adopt`.
        checkpoint: Whether `torch.utils.checkpoint.checkpoint`, which works with ``backward`` alone, is :func:`checkpoint` where
            a transform or forward mode is active. It reaches models that keep the function under another name.

    Returns:
        The context, which decorates functions.

    Raises:
        TypeError: It decorates a generator or a coroutine, which would run outside of the context; or something else than a
            module, a class or a name is given.
        ValueError: When it is opened: a name is of no module that is imported or installed, no class, and no namespace.

    Example:
        >>> import torch, fullgrad
        >>> class Double(torch.autograd.Function):
        ...     __module__ = "a_package"
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         return x.clone()
        ...     @staticmethod
        ...     def backward(ctx, g):
        ...         return 2 * g
        >>> with fullgrad.adopting():
        ...     gradients = torch.func.vmap(torch.func.grad(Double.apply))(torch.ones(3))
        >>> gradients
        tensor([2., 2., 2.])
    """
    exclude = tuple(exclude) if isinstance(exclude, (tuple, list)) else (exclude,)
    return Adopting(Options(strict, allow_loop, checkpoint), tuple(map(_name, packages)), tuple(map(_name, exclude)))


class Adopting:
    """The context that `adopting` returns."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments, self.opened = arguments, []

    def __enter__(self) -> None:
        if torch.compiler.is_dynamo_compiling():
            torch._dynamo.graph_break(msg="fullgrad.adopting in compiled code: open it around the call of what is compiled.")
        _enter[0](self)

    def __exit__(self, *error: Any) -> None:
        _leave[0](self)

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        checks.returns_when_called("adopting", function)

        @functools.wraps(function)
        def inside(*args: P.args, **kwargs: P.kwargs) -> T:
            with Adopting(*self.arguments):
                return checks.returned("adopting", function(*args, **kwargs))

        return inside


def _entered(context: Adopting) -> None:
    _, packages, exclude = context.arguments
    check_names((*packages, *exclude))  # and not before: a decorator may stand above the class that it names
    catch_in_graphs(_scope.__name__, "state", "key")
    opened = scope(*context.arguments)
    opened.__enter__()
    context.opened.append(opened)


def _left(context: Adopting) -> None:
    if not context.opened:
        raise RuntimeError("adopting: a context was left that is not open.")
    context.opened.pop().__exit__(None, None, None)


_enter, _leave = outside_dynamo_later(_entered), outside_dynamo_later(_left)  # Dynamo has broken its graph


@unseen_by_dynamo
def operator_of(cls: Any, options: Options) -> Any:
    """The adopted class as a function, the same one as long as it lives; it keeps the class alive, but not the reverse."""
    operators = _operators.setdefault(cls, weakref.WeakValueDictionary())
    adopted = operators.get(options)
    if adopted is None:

        @functools.partial(mark_for_dynamo, torch.compiler.allow_in_graph)
        def node(*args: Any, **kwargs: Any) -> Any:
            if is_operator(cls):
                return outside_dynamo(call_of_operator)(cls, args, kwargs, options)
            guard(cls.forward, cls.setup_context, cls.backward, cls.jvp)
            if options.strict or transforms_active() or forward_mode_is_on():
                return call_adopted(cls, args, kwargs, options)
            with traced_class():
                return cls.apply(*args, **kwargs)

        # Dynamo traces into the function that is compiled even if it is allowed in graphs.
        def apply(*args: Any, **kwargs: Any) -> Any:
            if not is_dynamo_compiling():
                nodes = overrides_in(args, kwargs)  # a graph of torch.fx keeps the call, with its backward
                if nodes:
                    return handle_torch_function(apply, nodes, *args, **kwargs)
            return node(*args, **kwargs)

        apply.__name__ = apply.__qualname__ = f"{cls.__name__}_adopted"
        apply.__doc__ = cls.__doc__
        vars(apply)["adopted_class"] = cls
        operators[options] = adopted = AdoptedFunction.of(apply, operator_of, cls, options)
        vars(apply)["adopted"] = adopted  # lives as long as a graph that has the function alone
    return adopted


def function_of(cls: Any, options: Options) -> Any:
    """The same as a plain function, for graphs."""
    return operator_of(cls, options).function


def call_adopted(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options) -> Any:
    """A call with the arguments of ``apply``."""
    if not is_dynamo_compiling() and (nodes := overrides_in(args, kwargs)):  # values that move along a curve
        return handle_torch_function(function_of(cls, options), nodes, *args, **kwargs)
    return outside_dynamo(_call)(cls, args, kwargs, options)


def _call(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options) -> Any:
    context = () if is_new_style(cls) else (None,)
    if kwargs or not context:
        bound = inspect.signature(cls.forward).bind(*context, *args, **kwargs)
        if not context:
            bound.apply_defaults()
        args = bound.args[len(context) :]
    call = ClassCall(cls, args, options)
    tensors, call.tensors = call.tensors, []
    return call.output(tensors, applied(call, *tensors))


def checkpoint_of(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A checkpoint of torch's as one of ours, without the options that only the former has."""
    options = ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop")
    return checkpoint(function, *args, **{name: value for name, value in kwargs.items() if name not in options})


def _name(p: Package) -> str:
    if isinstance(p, str):
        return p
    if not isinstance(p, (type, ModuleType)):
        raise TypeError(f"adopting: a module, a class or a name must be given, got a value of type {type(p).__name__}.")
    name = f"{p.__module__}.{p.__qualname__}" if isinstance(p, type) else p.__name__
    note(name)
    return name


catcher.how, catcher.call, catcher.as_function = options_for, call_adopted, function_of
catcher.how_operator, catcher.call_operator = options_of_operator, call_of_operator
catcher.adopts_checkpoints, catcher.checkpoint = adopts_checkpoints, checkpoint_of
