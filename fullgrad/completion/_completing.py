"""`completing`: while it is open, torch's dispatcher has other rules for operators whose derivatives are wrong or missing."""

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.recomputed import pulled_back
from fullgrad._dispatch import (
    active_transforms,
    compile_again,
    forget_kernels,
    forward_mode_is_on,
    has_tangent,
    innermost,
    is_tracing,
    set_graph_cache,
    torch_kernel,
    transforms_active,
)
from fullgrad._engine.call import flattened, unflattened
from fullgrad._engine.rule import CONTEXTS
from fullgrad.completion._checks import check_arguments
from fullgrad.completion._registry import (
    BACKWARDS,
    COMPLETED,
    NO_BATCH,
    NO_DERIVATIVE,
    NO_VMAP,
    WRONG_GRADIENT,
    Completed,
    Whole,
    valued,
)

_BACKENDS = ("CPU", "CUDA", "PrivateUse1")
_FRONT = "FuncTorchDynamicLayerFrontMode"  # where a call under a transform begins
_BATCHED = "FuncTorchBatched"
_MOST_OUTSIDE = 10_000  # calls, of some 3 us each, that torch's kernels may take longer outside after a context was closed
_lock = threading.RLock()  # garbage collection may close a context of this thread at any line


class _State:
    """How many contexts are open, and how many of them of users; the library of the other kernels, the calls of these since the
    last context was closed, and whether graphs go to torch's cache on disk outside.
    """

    count = 0
    of_users = 0
    compiled_inside = False
    library: torch.library.Library | None = None
    calls_outside = 0
    graph_cache = True
    is_inside = False
    is_changing = False


_state = _State()


class completing(contextlib.ContextDecorator):  # a function to its users
    r"""A context, or a decorator, in which torch's own operators have all their derivatives.

    .. math::
        D^k f \text{ of torch's operator} = D^k f \text{ of its mathematics}

    Some of torch's operators are wrong without an error where forward mode is differentiated again, such as ``layer_norm``,
    ``batch_norm`` and ``solve``, and others have no such derivative, such as attention. Inside the context each of those that
    `fullgrad.completion.operators` lists has, under a transform of ``torch.func`` and in forward mode, the derivatives of its
    formula in plain operations, which are right in every nesting; the value is that of torch's own kernel, where a batch has one.
    Elsewhere it is torch's own, bit for bit, forward and backward.

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
        _enter(1)

    def __exit__(self, *_: object) -> None:
        _leave(1)


@contextlib.contextmanager
def completed() -> Iterator[None]:
    """`completing` around a call of the package, whose code no compiled code runs: nothing is compiled again. While torch traces,
    its dispatcher must not change, so the kernels stand there already.
    """
    if not is_tracing():
        _enter(0)
        try:
            yield
        finally:
            _leave(0)
        return
    install()
    with _lock:
        _state.count += 1
        _state.is_inside = True
    try:
        yield
    finally:
        with _lock:
            _state.count -= 1
            _state.is_inside = _state.count > 0


def install() -> None:
    """Give torch the kernels, which do as torch's own outside of a context."""
    with _lock:
        if _state.library is None and not _state.is_changing:
            if is_tracing():
                raise NotImplementedError("fullgrad.forward: open fullgrad.completing() around the call of compiled code.")
            _state.library = _installed()


CONTEXTS.append((lambda: _state.is_inside, completed))


def _enter(of_users: int) -> None:
    with _lock:
        _state.count += 1
        _state.of_users += of_users
        try:
            _change()
        except BaseException:
            _state.count -= 1
            _state.of_users -= of_users
            raise


def _leave(of_users: int) -> None:
    with _lock:
        _state.count -= 1
        _state.of_users -= of_users
        _change()


def _change() -> None:
    """Let the kernels do as the number of open contexts says, which may change meanwhile."""
    while not _state.is_changing and (_state.count > 0) is not _state.is_inside:
        _state.is_changing = True
        try:
            if _state.library is None:
                _state.library = _installed()
            if _state.is_inside:
                set_graph_cache(_state.graph_cache)
            else:
                _state.graph_cache = set_graph_cache(False)
            _state.is_inside, _state.calls_outside = not _state.is_inside, 0
        finally:
            _state.is_changing = False
    if (_state.of_users > 0) is not _state.compiled_inside:
        _state.compiled_inside = not _state.compiled_inside
        compile_again()


def _is_outside() -> bool:
    """Whether no context is open, of a kernel that was called. After so many calls torch has its own kernels again: to give them
    others takes as long as the calls, and contexts are opened one after the other, as by a decorated function.
    """
    if _state.is_inside:
        return False
    _state.calls_outside += 1
    if _state.calls_outside > _MOST_OUTSIDE:
        restore()
    return True


def restore() -> None:
    """Let torch have its own kernels, if no context is open."""
    with _lock:
        if not _state.is_inside and not _state.is_changing and _state.library is not None:
            _state.library._destroy()
            _state.library = None
            forget_kernels(_all_operators())


def operators() -> dict[str, str]:
    """The operators of torch that `completing` changes, with what torch lacks.

    Example:
        >>> import fullgrad
        >>> fullgrad.completion.operators()["aten::native_layer_norm"]
        'forward mode, differentiated again, is wrong'
    """
    return {f"aten::{name}": COMPLETED[name].lacks for name in _overloads()}


@functools.cache
def _overloads() -> dict[str, Any]:
    """The operators, by name, that this torch has."""
    return _found(COMPLETED)


@functools.cache
def _backwards() -> dict[str, Any]:
    """The operators of backwards, by name, that this torch has."""
    return _found(BACKWARDS)


@functools.cache
def _in_place() -> dict[str, Any]:
    """The operators that change their first argument, by the name of what they compute."""
    found: dict[str, Any] = {}
    for name, op in _overloads().items():
        packet, _, overload = name.partition(".")
        other = getattr(getattr(torch.ops.aten, f"{packet}_", None), overload or "default", None)
        is_changed = COMPLETED[name].lacks != NO_VMAP
        if is_changed and other is not None and len(op._schema.arguments) == len(other._schema.arguments):
            found[name] = other
    return found


def _all_operators() -> list[Any]:
    return [*_overloads().values(), *_backwards().values(), *_in_place().values()]


def _found(names: Iterable[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
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

        def enter(op: Any, key: str, kernel: Callable[..., Any]) -> None:
            library.impl(op, kernel, key, with_keyset=True)

        for name, op in _overloads().items():
            own = COMPLETED[name]
            for backend in _BACKENDS if own.lacks != NO_VMAP else ():
                if own.lean is not None and backend == "CPU":
                    continue  # what its steps call there is completed, too
                key = f"Autograd{backend}"
                enter(op, key, _kernel(torch_kernel(op, key), own))
            if own.batched:
                enter(op, _BATCHED, _kernel_of_batches(op, torch_kernel(op, _BATCHED), own))
            if own.lean is not None:
                enter(op, _FRONT, _kernel_in_front(torch_kernel(op, _FRONT), own.lean))
        for name, op in _in_place().items():
            for backend in _BACKENDS:
                key = f"Autograd{backend}"
                enter(op, key, _kernel_in_place(torch_kernel(op, key), _overloads()[name]))
        for name, op in _backwards().items():
            for backend in _BACKENDS:
                key = f"Autograd{backend}"
                enter(op, key, _kernel_of_backward(torch_kernel(op, key), *BACKWARDS[name]))
    forget_kernels(_all_operators())
    return library


def _kernel(original: Callable[..., Any], own: Completed) -> Callable[..., Any]:
    """torch's value with the formula's derivatives, under a transform and in forward mode; in eager code torch's own kernel."""
    has_none = own.lacks in (NO_DERIVATIVE, WRONG_GRADIENT)

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_outside():
            return original(keys, *args, **kwargs)
        if transforms_active() or forward_mode_is_on():
            has_no_batch = own.lacks == NO_BATCH and "Vmap" in active_transforms()
            return _completed(functools.partial(original, keys), own.formula, args, kwargs, has_value=not has_no_batch)
        if has_none:
            return _with_formula(functools.partial(original, keys), own.formula, args, kwargs)
        return original(keys, *args, **kwargs)

    return kernel


def _kernel_in_place(original: Callable[..., Any], op: Any) -> Callable[..., Any]:
    """Under a transform the numbers of the operator that makes a new tensor."""

    def kernel(keys: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if _is_outside() or not (transforms_active() or forward_mode_is_on()):
            return original(keys, x, *args, **kwargs)
        return x.copy_(op(x.clone(), *args, **kwargs))

    return kernel


def _kernel_in_front(original: Callable[..., Any], lean: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_outside():
            return original(keys, *args, **kwargs)
        return _completed(functools.partial(original, keys), lean, args, kwargs)

    return kernel


def _kernel_of_batches(op: Any, original: Callable[..., Any], own: Completed) -> Callable[..., Any]:
    """The formula of a batch, for which torch has no value."""

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_outside():
            return original(keys, *args, **kwargs)
        check_arguments(op, args, kwargs)
        found = own.formula(*args, **kwargs)
        if found is NotImplemented:
            raise NotImplementedError(f"{op.name()} cannot be batched with these arguments.")
        return found.value if isinstance(found, Whole) else found

    return kernel


def _kernel_of_backward(original: Callable[..., Any], formula: Callable[..., Any], results: Sequence[int]) -> Callable[..., Any]:
    """torch's own backward, with the derivative of the formula where that is differentiated in eager code."""

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_outside() or not torch.is_grad_enabled() or transforms_active():
            return original(keys, *args, **kwargs)
        given = [v.detach() if i in results and isinstance(v, Tensor) else v for i, v in enumerate(args)]
        return _with_formula(functools.partial(original, keys), formula, given, kwargs)

    return kernel


def _completed(original: Callable[..., Any], formula: Callable[..., Any], args: Any, kwargs: Any, has_value: bool = True) -> Any:
    """The numbers of torch's own kernel, if it has any, with the derivatives of the formula."""
    if has_value and not any(_is_differentiated(v) for v in _tensors((args, *kwargs.values()))):
        return original(*args, **kwargs)

    def values() -> Any:
        return original(*[_detached(v) for v in args], **{k: _detached(v) for k, v in kwargs.items()})

    try:
        found = formula(*args, **kwargs)
    except Exception:
        values()  # torch's own error, where torch refuses these arguments
        raise
    if found is NotImplemented:
        return original(*args, **kwargs)
    if isinstance(found, Whole):
        return found.value
    if not has_value:
        return found
    given = values()
    if isinstance(found, Tensor):
        return _with_value(found, given)
    return tuple([_with_value(y, v) for y, v in zip(found, given, strict=True)])


def _with_value(y: Any, value: Any) -> Any:
    return valued(y, value) if isinstance(y, Tensor) and _is_differentiated(y) else value


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for v in values:
        if isinstance(v, Tensor):
            yield v
        elif isinstance(v, (list, tuple)):
            yield from _tensors(v)


def _detached(value: Any) -> Any:
    if isinstance(value, Tensor):
        if value.is_floating_point() or value.is_complex():
            return value.detach()
        # Kernels read sizes on the host, which a tensor at a level of transforms hides.
        return value if "Vmap" in active_transforms() else innermost(value)
    return [_detached(v) for v in value] if isinstance(value, (list, tuple)) else value


def _is_differentiated(x: Tensor) -> bool:
    """Whether a tensor has a derivative at the level of transforms at which a kernel runs."""
    return x.requires_grad or has_tangent(x)


def _with_formula(original: Callable[..., Any], formula: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """torch's value in eager code, with the derivative of the formula."""
    if not torch.is_grad_enabled() or not any(v.requires_grad for v in _tensors((args, *kwargs.values()))):
        return original(*args, **kwargs)
    leaves, spec = flattened([args, kwargs])
    where = [i for i, v in enumerate(leaves) if isinstance(v, Tensor)]
    tensors = [leaves[i] for i in where]
    for i in where:
        leaves[i] = None

    def call(function: Callable[..., Any], given: Sequence[Tensor]) -> Any:
        all_ = list(leaves)
        for i, v in zip(where, given, strict=True):
            all_[i] = v
        args, kwargs = unflattened(all_, spec)
        return function(*args, **kwargs)

    of_values: list[Any] = []
    values = _Given.apply(functools.partial(call, original), functools.partial(call, formula), of_values, *tensors)
    return unflattened(list(values), of_values[0])


class _Given(torch.autograd.Function):
    """An operator of which torch has the value alone."""

    @staticmethod
    def forward(ctx: Any, original: Any, formula: Any, spec: list[Any], *tensors: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        values, found = flattened(original(tensors))
        spec.append(found)
        ctx.formula = formula
        ctx.save_for_backward(*tensors)
        return tuple(values)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        tensors, of_tensors = ctx.saved_tensors, ctx.formula
        where = tuple([i for i, needed in enumerate(ctx.needs_input_grad[3:]) if needed])
        differ = [i for i, g in enumerate(cotangents) if g is not None and (g.is_floating_point() or g.is_complex())]

        def formula(*tensors: Tensor) -> tuple[Tensor, ...]:
            found = of_tensors(tensors)
            if found is NotImplemented:
                raise NotImplementedError("torch has no derivative of its operator with these arguments, nor has completing.")
            leaves = flattened(found.value if isinstance(found, Whole) else found)[0]
            return tuple([leaves[i] for i in differ])

        gradients = dict(zip(where, pulled_back(formula, tensors, where, tuple([cotangents[i] for i in differ])), strict=True))
        return None, None, None, *[gradients.get(i) for i in range(len(tensors))]
