"""`completing`: while it is open, torch's dispatcher has other rules for operators whose derivatives are wrong or missing."""

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from fullgrad._core import checks
from fullgrad._core.recomputed import pulled_back
from fullgrad._dispatch import (
    compile_again,
    forward_mode_is_on,
    leaf_of,
    pytree,
    set_graph_cache,
    torch_kernel,
    transforms_active,
)
from fullgrad._engine.call import flattened, unflattened
from fullgrad.completion._checks import check_arguments
from fullgrad.completion._registry import COMPLETED, NO_BATCH, NO_DERIVATIVE, NO_SECOND, NO_VMAP, Completed

_BACKENDS = ("CPU", "CUDA", "PrivateUse1")
_FRONT = "FuncTorchDynamicLayerFrontMode"  # where a call under a transform begins
_lock = threading.RLock()  # garbage collection may close a context of this thread at any line
_inside = threading.local()


class _State:
    """How many contexts are open, the library of the other kernels, and whether graphs go to torch's cache on disk outside."""

    count = 0
    library: torch.library.Library | None = None
    graph_cache = True
    is_changing = False


_state = _State()


class completing(contextlib.ContextDecorator):  # a function to its users
    r"""A context, or a decorator, in which torch's own operators have all their derivatives.

    .. math::
        D^k f \text{ of torch's operator} = D^k f \text{ of its mathematics}

    Some of torch's operators are wrong without an error where forward mode is differentiated again, such as ``layer_norm``,
    ``batch_norm`` and ``solve``, and others have no such derivative, such as attention. Inside the context each of those that
    `fullgrad.completion.operators` lists is computed, under a transform of ``torch.func`` and in forward mode, by its formula
    in plain operations, equal up to rounding, whose derivatives are right in every nesting. Elsewhere it is torch's own, bit for
    bit, forward and backward.

    It reaches calls from C++, such as those of ``torch.nn.TransformerEncoderLayer``, since torch's dispatcher is told. So it
    holds for the whole process, in all threads, until the last one that entered it has left it. Code that was compiled before is
    compiled again. Saved, under transforms: what the plain operations save.

    Args:
        function: A function to decorate; without it this is a context, and a decorator when it is called.

    Returns:
        The context, or the function inside of it.

    Raises:
        NotImplementedError: torch is too old for it, and lacks ``torch.library.get_kernel``.
        TypeError: ``function`` is not callable, or a generator or a coroutine, which would run outside.
        RuntimeError: Inside, running statistics of a norm that are not batched get those of a batch, as in torch.

    Example:
        >>> import torch, fullgrad
        >>> f = lambda x: torch.nn.functional.layer_norm(x, (3,)).sin().sum()
        >>> x, t = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1.0, 0.0, 0.0])
        >>> with fullgrad.completing():  # torch alone is wrong without an error
        ...     torch.func.jvp(lambda x: torch.func.jvp(f, (x,), (t,))[1], (x,), (t,))[1]
        tensor(-0.0185)
        >>> torch.func.hessian(f)(x) @ t @ t
        tensor(-0.0185)
        >>> hvp = fullgrad.completing(lambda x, t: torch.func.jvp(torch.func.grad(f), (x,), (t,))[1])
        >>> hvp(x, t) @ t
        tensor(-0.0185)

    Source: the formulas of each operator's documentation; https://github.com/pytorch/pytorch/issues/198017.
    """

    def __new__(cls, function: Callable[..., Any] | None = None) -> Any:
        if function is not None and not callable(function):
            raise TypeError(f"completing: `function` must be callable, got a value of type {type(function).__name__}.")
        context = super().__new__(cls)
        return context if function is None else context(function)

    def __call__(self, function: Any) -> Any:
        checks.returns_when_called("completing", function)
        return super().__call__(functools.wraps(function)(lambda *a, **k: checks.returned("completing", function(*a, **k))))

    def __enter__(self) -> None:
        with _lock:
            _state.count += 1
            try:
                _change()
            except BaseException:
                _state.count -= 1
                raise

    def __exit__(self, *_: object) -> None:
        with _lock:
            _state.count -= 1
            _change()


def _change() -> None:
    """Give the operators their other kernels, or torch's own, as the number of open contexts says, which may change meanwhile."""
    while not _state.is_changing and (_state.count > 0) is not (_state.library is not None):
        _state.is_changing = True
        try:
            if _state.library is None:
                _state.library, _state.graph_cache = _installed(), set_graph_cache(False)
            else:
                _state.library._destroy()
                _state.library = None
                set_graph_cache(_state.graph_cache)
            compile_again([*_overloads().values(), *_in_place().values()])
        finally:
            _state.is_changing = False


def operators() -> dict[str, str]:
    """The operators of torch that `completing` changes, with what torch lacks.

    Example:
        >>> import fullgrad
        >>> fullgrad.completion.operators()["aten::native_layer_norm"]
        'forward mode, differentiated again, is wrong'
    """
    return {f"aten::{name}": COMPLETED[name].lacks for name in _overloads()}


def _overloads() -> dict[str, Any]:
    """The operators, by name, that this torch has."""
    found: dict[str, Any] = {}
    for name in COMPLETED:
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if op is not None:
            found[name] = op
    return found


def _installed() -> torch.library.Library:
    if not hasattr(torch.library, "get_kernel"):
        raise NotImplementedError(f"completing needs torch.library.get_kernel, which torch {torch.__version__} lacks.")
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of kernels that are overridden, as they are to be
        for name, op in _overloads().items():
            own = COMPLETED[name]
            for backend in _BACKENDS if own.lacks != NO_VMAP else ():
                key = f"Autograd{backend}"
                library.impl(name, _kernel(op, torch_kernel(op, key), own, backend), key, with_keyset=True)
            if own.batched:
                library.impl(
                    name, _mathematics(op, own.formula, functools.partial(_refuse, name)), "FuncTorchBatched", with_keyset=True
                )
            if own.lean is not None:
                library.impl(name, _mathematics(op, own.lean, torch_kernel(op, _FRONT)), _FRONT, with_keyset=True)
        for name, op in _in_place().items():
            for backend in _BACKENDS:
                key = f"Autograd{backend}"
                library.impl(op, _kernel_in_place(op, torch_kernel(op, key), COMPLETED[name]), key, with_keyset=True)
    return library


def _in_place() -> dict[str, Any]:
    """The operators that change their first argument, by the name of what they compute."""
    found: dict[str, Any] = {}
    for name, op in _overloads().items():
        packet, _, overload = name.partition(".")
        other = getattr(getattr(torch.ops.aten, f"{packet}_", None), overload or "default", None)
        if other is not None and len(op._schema.arguments) == len(other._schema.arguments):
            found[name] = other
    return found


def _refuse(name: str, *_: Any, **__: Any) -> Any:
    raise NotImplementedError(f"aten::{name} cannot be batched with these arguments.")


def _mathematics(op: Any, formula: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel of a formula, with torch's own checks of arguments; torch's kernel where that is for other arguments."""

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        check_arguments(op, args, kwargs)
        found = formula(*args, **kwargs)
        return original(keys, *args, **kwargs) if found is NotImplemented else found

    return kernel


def _kernel_in_place(op: Any, original: Callable[..., Any], own: Completed) -> Callable[..., Any]:
    mathematics = _mathematics(op, own.formula, lambda *_, **__: NotImplemented)

    def kernel(keys: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        is_on = transforms_active() or forward_mode_is_on()
        y = mathematics(keys, x.clone(), *args, **kwargs) if is_on else NotImplemented
        return original(keys, x, *args, **kwargs) if y is NotImplemented else x.copy_(y)

    return kernel


def _kernel(op: Any, original: Callable[..., Any], own: Completed, backend: str) -> Callable[..., Any]:
    has_second = own.lacks not in (NO_SECOND, NO_DERIVATIVE) and not (own.lacks == NO_BATCH and backend == "CUDA")
    mathematics = _mathematics(op, own.formula, original)

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if transforms_active() or forward_mode_is_on():
            return mathematics(keys, *args, **kwargs)
        if has_second or not torch.is_grad_enabled() or getattr(_inside, "is_on", False):
            return original(keys, *args, **kwargs)
        if own.lacks == NO_DERIVATIVE:
            return mathematics(keys, *args, **kwargs) if _requires_grad(args, kwargs) else original(keys, *args, **kwargs)
        return _with_second_derivative(functools.partial(original, keys), own, args, kwargs)

    return kernel


def _requires_grad(*args: Any) -> bool:
    return any(isinstance(v, Tensor) and v.requires_grad for v in pytree.tree_leaves(args))


def _with_second_derivative(original: Callable[..., Any], own: Completed, args: Any, kwargs: Any) -> Any:
    """torch's value and gradient, with the formula as what derivatives of the gradient are taken of."""
    leaves, spec = flattened([args, kwargs] if kwargs else args)
    where = [i for i, v in enumerate(leaves) if isinstance(v, Tensor) and v.requires_grad]
    if not where:
        return original(*args, **kwargs)
    inputs = [leaves[i] for i in where]
    for i in where:
        leaves[i] = None
    has_names = bool(kwargs)

    def call(function: Callable[..., Any], given: Sequence[Tensor]) -> Any:
        all_ = list(leaves)
        for i, v in zip(where, given, strict=True):
            all_[i] = v
        args, kwargs = unflattened(all_, spec) if has_names else (unflattened(all_, spec), {})
        return function(*args, **kwargs)

    formula = own.formula if own.lean is None else own.lean
    return _Twice.apply(functools.partial(call, original), functools.partial(call, formula), *inputs)


class _Twice(torch.autograd.Function):
    """An operator in plain eager code, where no transform is: torch's own graph, or in a backward that is differentiated the
    formula's.
    """

    @staticmethod
    def forward(ctx: Any, original: Any, formula: Any, *inputs: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        _inside.is_on = True  # what torch's operator calls is torch's, too
        try:
            with torch.enable_grad():
                alone = [leaf_of(x) for x in inputs]
                found = original(alone)
                results = [found] if isinstance(found, Tensor) else [*found]
                differ = [i for i, y in enumerate(results) if y.requires_grad]
                graph = [get_gradient_edge(results[i]) for i in differ], [get_gradient_edge(x) for x in alone]
                kept = _Kept.apply(alone[0], (differ, *graph, formula))
        finally:
            _inside.is_on = False
        ctx.save_for_backward(kept, *inputs)
        values = [y.detach() for y in results]
        ctx.mark_non_differentiable(*[v for i, v in enumerate(values) if i not in differ])
        return values[0] if isinstance(found, Tensor) else tuple(values)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        kept, *inputs = ctx.saved_tensors
        differ, results, alone, of_inputs = kept.grad_fn.objects
        given = [cotangents[i] for i in differ]
        if not torch.is_grad_enabled():
            return None, None, *torch.autograd.grad(results, alone, given, retain_graph=True, allow_unused=True)

        def formula(*inputs: Tensor) -> tuple[Tensor, ...]:
            found = of_inputs(inputs)
            if found is NotImplemented:
                raise NotImplementedError("torch has no derivative of the backward with these arguments, nor has completing.")
            return tuple([y for i, y in enumerate([found] if isinstance(found, Tensor) else found) if i in differ])

        return None, None, *pulled_back(formula, inputs, tuple(range(len(inputs))), tuple(given))


class _Kept(torch.autograd.Function):
    """An empty tensor whose node has some objects, so that autograd, for which it is saved, frees them with all that it saved."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, objects: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.objects = objects
        return leaf.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise NotImplementedError
