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
from fullgrad._core.autocast import in_float32
from fullgrad._core.recomputed import pulled_back
from fullgrad._dispatch import (
    SingleLevelFunction,
    active_transforms,
    alone_at_level,
    compile_again,
    forget_kernels,
    forget_rules,
    forward_mode_is_on,
    has_tangent,
    innermost,
    intercept_functions,
    intercept_operators,
    is_compiling,
    is_forward_mode,
    is_recorded,
    is_tracing,
    leave_to_python,
    make_dual,
    mark_for_dynamo,
    may_be_differentiated,
    of_each_sample,
    replace_higher_order,
    retains_graph,
    set_forward_mode,
    single_level,
    stop_graph_caches,
    torch_kernel,
    transforms_active,
    unpacked,
)
from fullgrad._engine.call import flattened, unflattened
from fullgrad._engine.rule import CONTEXTS
from fullgrad.completion._checks import check_arguments
from fullgrad.completion._registry import (
    ATTRIBUTES,
    BACKWARDS,
    COMPLETED,
    FUNCTIONS,
    HIGHER_ORDER,
    NAN_AT_INFINITIES,
    NAN_EAGER_THIRD,
    NO_BATCH,
    NO_DERIVATIVE,
    NO_FORWARD,
    NO_SECOND,
    NO_VMAP,
    NOT_IN_PLACE,
    PREPARED,
    REPLACED,
    WRONG_GRADIENT,
    Completed,
    Slopes,
    Whole,
    valued,
)
from fullgrad.completion._zeros import KEY as ZEROS
from fullgrad.completion._zeros import VIEWS, WITH_NUMBERS, in_place_operators, kernel_of_zeros

_BACKENDS = ("CPU", "CUDA", "PrivateUse1")
_FRONT = "FuncTorchDynamicLayerFrontMode"  # where a call under a transform begins
_BATCHED = "FuncTorchBatched"
_MOST_OUTSIDE = 10_000  # calls, of some 3 us each, that torch's kernels may take longer outside after a context was closed
_lock = threading.RLock()  # garbage collection may close a context of this thread at any line


class _State:
    """How many contexts are open, how many of them of users, and how many more in code that torch traces; the library of the
    other kernels, how the rules of higher-order operators are taken away, the calls of these kernels since the last context was
    closed, and how graphs go to torch's caches again.
    """

    count = 0
    of_users = 0
    traced = 0
    compiled_inside = False
    library: torch.library.Library | None = None
    without_rules: Callable[[], None]
    calls_outside = 0
    start_graph_caches: Callable[[], None]
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
        context.opened = 0
        return context if function is None else context(function)

    def __call__(self, function: Any) -> Any:
        checks.returns_when_called("completing", function)
        return super().__call__(functools.wraps(function)(lambda *a, **k: checks.returned("completing", function(*a, **k))))

    opened: int  # how often it is open

    def __enter__(self) -> None:
        with _lock:
            _enter(1)
            self.opened += 1

    def __exit__(self, *_: object) -> None:
        with _lock:
            if not self.opened:
                raise RuntimeError("completing: a context was left that is not open.")
            self.opened -= 1
            _leave(1)


def is_open() -> bool:
    """Whether a user has opened `completing`. Code that was compiled before that changed is compiled again."""
    return _state.of_users > 0


mark_for_dynamo(torch.compiler.assume_constant_result, is_open)


@contextlib.contextmanager
def completed() -> Iterator[None]:
    """`completing` around a call of the package, whose code no compiled code runs: nothing is compiled again. While torch traces,
    its dispatcher must not change, so the kernels stand there already.
    """
    if not is_tracing():
        with _lock:
            _enter(0)
        try:
            yield
        finally:
            with _lock:
                _leave(0)
        return
    install()
    with _lock:
        _state.traced += 1
    try:
        yield
    finally:
        with _lock:
            _state.traced -= 1


def install() -> None:
    """Give torch the kernels, which do as torch's own outside of a context."""
    with _lock:
        if _state.library is None and not _state.is_changing:
            if is_compiling() or is_recorded():
                raise NotImplementedError("fullgrad.forward: open fullgrad.completing() around the call of compiled code.")
            _install()


CONTEXTS.append((lambda: _state.is_inside or _state.traced > 0, completed))


def _install() -> None:
    _state.library = _installed()
    _state.without_rules = replace_higher_order(HIGHER_ORDER, lambda: not _is_outside(), may_be_differentiated)


def _enter(of_users: int) -> None:
    """Count a context more, with the lock."""
    _state.count += 1
    _state.of_users += of_users
    try:
        _change()
    except BaseException:
        _state.count -= 1
        _state.of_users -= of_users
        raise


def _leave(of_users: int) -> None:
    """Count a context less, with the lock."""
    _state.count -= 1
    _state.of_users -= of_users
    _change()


def _change() -> None:
    """Let the kernels do as the number of open contexts says, which may change meanwhile."""
    while not _state.is_changing and (_state.count > 0) is not _state.is_inside:
        _state.is_changing = True
        try:
            if _state.library is None:
                _install()
            if _state.is_inside:
                _state.start_graph_caches()
            else:
                _state.start_graph_caches = stop_graph_caches()
            _state.is_inside, _state.calls_outside = not _state.is_inside, 0
            intercept_operators("completing", _state.is_inside)
            intercept_functions(FUNCTIONS, _state.is_inside)
            _replace_attributes(_state.is_inside)
        finally:
            _state.is_changing = False
    if (_state.of_users > 0) is not _state.compiled_inside:
        _state.compiled_inside = not _state.compiled_inside
        compile_again()


_own_attributes: list[Any] = []  # torch's own, of each of which others are in place


def _replace_attributes(is_inside: bool) -> None:
    """Put others in place of attributes of torch, or those that were there."""
    if is_inside:
        for owner, name, function in ATTRIBUTES:
            _own_attributes.append(vars(owner).get(name, _own_attributes))
            setattr(owner, name, function)
        return
    for (owner, name, _), function in zip(ATTRIBUTES, _own_attributes, strict=True):
        if function is _own_attributes:  # inherited
            delattr(owner, name)
        else:
            setattr(owner, name, function)
    _own_attributes.clear()
    forget_rules()


def _is_outside() -> bool:
    """Whether no context is open, of a kernel that was called. After so many calls torch has its own kernels again: to give them
    others takes as long as the calls, and contexts are opened one after the other, as by a decorated function.
    """
    if _state.is_inside or _state.traced:
        return False
    _state.calls_outside += 1
    if _state.calls_outside > _MOST_OUTSIDE:
        restore()
    return True


def restore() -> None:
    """Let torch have its own kernels, if no context is open."""
    with _lock:
        if not (_state.is_inside or _state.traced or _state.is_changing) and _state.library is not None:
            _state.without_rules()
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
def _replaced() -> dict[str, Any]:
    """The operators, by name, in place of which others are called."""
    return _found(REPLACED)


@functools.cache
def _prepared() -> dict[str, Any]:
    """The operators, by name, whose arguments in a batch are changed."""
    return _found(PREPARED)


@functools.cache
def _views() -> dict[str, Any]:
    """The views of single elements, by name, of a batch that torch lacks: of a conjugate, where it has an imaginary part."""
    return _found(("_neg_view",))


@functools.cache
def _in_place() -> dict[str, Any]:
    """The operators that change their first argument, by the name of what they compute."""
    found: dict[str, Any] = {name: getattr(torch.ops.aten, f"{name}_").default for name in NOT_IN_PLACE}
    for name, op in _overloads().items():
        packet, _, overload = name.partition(".")
        other = getattr(getattr(torch.ops.aten, f"{packet}_", None), overload or "default", None)
        own = COMPLETED[name]
        is_changed = own.lacks != NO_VMAP and own.lean is None
        if is_changed and other is not None and len(op._schema.arguments) == len(other._schema.arguments):
            found[name] = other
    return found


def _all_operators() -> list[Any]:
    found = [_overloads(), _backwards(), _in_place(), in_place_operators(), _replaced(), _views(), _prepared()]
    return [*VIEWS, *[op for operators in found for op in operators.values()]]


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
            leave_to_python(kernel)
            library.impl(op, kernel, key, with_keyset=True, allow_override=True)  # torch 2.11 asks for it

        for name, op in _overloads().items():
            own = COMPLETED[name]
            for backend in _BACKENDS if own.lacks != NO_VMAP else ():
                if own.lean is not None and backend == "CPU":
                    continue  # what its steps call there is completed, too
                key = f"Autograd{backend}"
                of_op = _kernel if own.slopes is None else _kernel_of_slopes
                enter(op, key, of_op(torch_kernel(op, key), own))
            if own.batched:
                enter(op, _BATCHED, _kernel_of_batches(op, torch_kernel(op, _BATCHED), own))
            if own.lean is not None:
                enter(op, _FRONT, _kernel_in_front(torch_kernel(op, _FRONT), own.lean))
        for name, op in _in_place().items():
            has_none = name in NOT_IN_PLACE
            other = getattr(torch.ops.aten, name).default if has_none else _overloads()[name]
            for backend in _BACKENDS:
                key = f"Autograd{backend}"
                enter(op, key, _kernel_in_place(torch_kernel(op, key), other, has_none))
        for name, op in _backwards().items():
            for backend in _BACKENDS:
                key = f"Autograd{backend}"
                enter(op, key, _kernel_of_backward(torch_kernel(op, key), *BACKWARDS[name]))
        for op in in_place_operators().values():
            enter(op, ZEROS, kernel_of_zeros(op, _is_outside))
        for op, kernel in WITH_NUMBERS.items():
            enter(op, ZEROS, kernel)
        for op in VIEWS:
            library.impl(op, torch.library.fallthrough_kernel, ZEROS, allow_override=True)
        for op in _views().values():
            enter(op, _BATCHED, _kernel_of_views(op, torch_kernel(op, _BATCHED)))
        for name, op in _prepared().items():
            enter(op, _BATCHED, _kernel_of_prepared(torch_kernel(op, _BATCHED), PREPARED[name]))
        for name, op in _replaced().items():
            enter(op, _FRONT, _kernel_of_replaced(op, torch_kernel(op, _FRONT), REPLACED[name]))
    forget_kernels(_all_operators())
    return library


def _kernel(original: Callable[..., Any], own: Completed) -> Callable[..., Any]:
    """torch's value with the formula's derivatives, under a transform and in forward mode; in eager code torch's own kernel."""
    has_first = own.keeps_first or own.lacks in (NAN_AT_INFINITIES, NAN_EAGER_THIRD)
    is_missing = own.is_missing or (lambda args: own.lacks in (NO_DERIVATIVE, WRONG_GRADIENT))

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_outside():
            return original(keys, *args, **kwargs)
        if transforms_active() or forward_mode_is_on():
            if own.has_first and _is_for_gradients(args):
                return original(keys, *args, **kwargs)
            if own.is_prepared:
                return original(keys, *own.formula(*args, **kwargs), **kwargs)
            has_no_batch = own.lacks == NO_BATCH and "Vmap" in active_transforms()
            return _completed(functools.partial(original, keys), own.formula, args, kwargs, has_value=not has_no_batch)
        if is_missing(args):
            return with_formula(functools.partial(original, keys), own.formula, args, kwargs, has_first)
        return original(keys, *args, **kwargs)

    return kernel


def _is_for_gradients(args: Sequence[Any]) -> bool:
    """Whether a first derivative in reverse mode is all that the transforms ask for, of which torch's own is right and faster."""
    if forward_mode_is_on() or [kind for kind in active_transforms() if kind != "Vmap"] != ["Grad"]:
        return False
    # torch's gradients of complex numbers have views that vmap lacks.
    return not any(v.is_complex() or innermost(v).requires_grad for v in _tensors(args))


def _kernel_in_place(original: Callable[..., Any], op: Any, has_none: bool) -> Callable[..., Any]:
    """Under a transform the numbers of the operator that makes a new tensor, and in eager code where torch has no derivative."""

    def kernel(keys: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        is_torchs = not (transforms_active() or forward_mode_is_on() or (has_none and x.requires_grad))
        if _is_outside() or is_torchs:
            return original(keys, x, *args, **kwargs)
        return x.copy_(op(x.clone(), *args, **kwargs))

    return kernel


def _kernel_in_front(original: Callable[..., Any], lean: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_outside():
            return original(keys, *args, **kwargs)
        return _completed(functools.partial(original, keys), lean, args, kwargs, is_in_front=True)

    return kernel


def _of_number(number: Any, dtype: torch.dtype) -> Tensor:
    """A number that torch hands over as one, though its kernel takes a tensor: with the precision that torch computes with."""
    kinds = torch.result_type(torch.empty(1, dtype=dtype), number)
    return torch.tensor(number, dtype=torch.float32 if kinds in (torch.float16, torch.bfloat16) else kinds)


_WITH_NUMBERS = torch.ops.aten.add_.Tensor, torch.ops.aten.mul_.Tensor  # which torch calls with numbers, too


def _kernel_of_replaced(op: Any, original: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        found = NotImplemented if _is_outside() else function(*args, **kwargs)
        if found is not NotImplemented:
            return found
        if op in _WITH_NUMBERS and not isinstance(args[1], Tensor):
            args = args[0], _of_number(args[1], args[0].dtype)
        return original(keys, *args, **kwargs)

    return kernel


def _kernel_of_slopes(original: Callable[..., Any], own: Completed) -> Callable[..., Any]:
    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_outside() or any(v.is_complex() for v in _tensors(args)):
            return original(keys, *args, **kwargs)
        return _sloped(functools.partial(original, keys), own, args, kwargs)

    return kernel


def _kernel_of_batches(op: Any, original: Callable[..., Any], own: Completed) -> Callable[..., Any]:
    """The formula of a batch, for which torch has no value."""

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_outside():
            return original(keys, *args, **kwargs)
        check_arguments(op, args, kwargs)
        found = _at_level(own.formula, args, kwargs)
        if found is NotImplemented:
            raise NotImplementedError(f"{op.name()} cannot be batched with these arguments.")
        return found.value if isinstance(found, Whole) else found

    return kernel


def _kernel_of_views(op: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(keys: Any, x: Tensor) -> Tensor:
        return original(keys, x) if _is_outside() else of_each_sample(op, x)

    return kernel


def _kernel_of_prepared(original: Callable[..., Any], function: Callable[..., Sequence[Any]]) -> Callable[..., Any]:
    """torch's own rule for a batch, on arguments with which it is right."""

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        return original(keys, *(args if _is_outside() else function(*args, **kwargs)), **kwargs)

    return kernel


def _kernel_of_backward(
    original: Callable[..., Any],
    formula: Callable[..., Any],
    results: Sequence[int],
    has_first: bool,
    crashes: Callable[..., bool] | None,
) -> Callable[..., Any]:
    """torch's own backward, with the derivative of the formula where that is differentiated in eager code."""

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_outside() and crashes is not None and not transforms_active() and crashes(*args):
            return formula(*args, **kwargs)
        if _is_outside() or not torch.is_grad_enabled() or transforms_active():
            return original(keys, *args, **kwargs)
        given = [v.detach() if i in results and isinstance(v, Tensor) else v for i, v in enumerate(args)]
        return with_formula(functools.partial(original, keys), formula, given, kwargs, has_first)

    return kernel


def _completed(
    original: Callable[..., Any],
    formula: Callable[..., Any],
    args: Any,
    kwargs: Any,
    has_value: bool = True,
    is_in_front: bool = False,
) -> Any:
    """The numbers of torch's own kernel, if it has any, with the derivatives of the formula.

    In front of all levels torch cannot say whether a tensor of some has a tangent.
    """
    if has_value and not is_in_front and not any(_is_differentiated(v) for v in _tensors((args, *kwargs.values()))):
        return original(*args, **kwargs)

    def values() -> Any:
        return original(*[_detached(v) for v in args], **{k: _detached(v) for k, v in kwargs.items()})

    try:
        found = formula(*args, **kwargs) if is_in_front else _at_level(formula, args, kwargs)
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
        return valued(found, given) if is_in_front else _with_value(found, given)
    return tuple([_with_value(y, v) for y, v in zip(found, given, strict=True)])


def _at_level(formula: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The formula's result where a transform is processed, in the precision of its arguments."""
    if not transforms_active():
        return formula(*args, **kwargs)
    given = next(_tensors((args, *kwargs.values())), None)
    with contextlib.nullcontext() if given is None else in_float32(given.device.type):
        return formula(*args, **kwargs)


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


def with_formula(
    original: Callable[..., Any], formula: Callable[..., Any], args: Any, kwargs: Any, has_first: bool = False
) -> Any:
    """torch's value in eager code, and its gradient if it has one, with the derivative of the formula."""
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
    values = _Given.apply(functools.partial(call, original), functools.partial(call, formula), of_values, has_first, *tensors)
    return unflattened(list(values), of_values[0])


def _sloped(original: Callable[..., Any], own: Completed, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    """torch's value, with the tangent by the slopes, or the gradient."""
    assert own.slopes is not None
    pairs = {i: unpacked(v) for i, v in enumerate(args) if isinstance(v, Tensor)}
    tangents = {i: t for i, (_, t) in pairs.items() if t is not None}
    if tangents:
        given = [pairs[i][0] if i in pairs else v for i, v in enumerate(args)]
        y = _sloped(original, own, given, kwargs)
        slopes = own.slopes(y, *given, **kwargs)
        terms = [slope * t.reshape(shape) for i, t in tangents.items() for slope, shape in (_slope(slopes, i, t),)]
        return make_dual(y, functools.reduce(torch.add, terms).to(y.dtype).expand(y.shape), level=0)
    where = [i for i in pairs if args[i].requires_grad]
    is_torchs = own.has_first or own.lacks == NO_FORWARD or (own.lacks == NO_SECOND and not transforms_active())
    if is_torchs or not where or not torch.is_grad_enabled():
        return original(*args, **kwargs)

    def call(function: Callable[..., Any], given: Sequence[Tensor]) -> Any:
        all_ = list(args)
        for i, v in zip(pairs, given, strict=True):
            all_[i] = v
        return function(*all_, **kwargs)

    slopes = functools.partial(call, functools.partial(own.slopes, None))
    with single_level():
        return _Sloped.apply(functools.partial(call, original), slopes, list(pairs), is_forward_mode(), *[args[i] for i in pairs])


def _slope(slopes: Slopes, i: int, x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """The derivative by an argument, and the shape in which that broadcasts."""
    if i not in slopes:
        raise NotImplementedError(f"The operator has no derivative with respect to its argument {i}; detach that.")
    slope, shape = slopes[i]
    return slope(), x.shape if shape is None else shape


class _Sloped(SingleLevelFunction):
    """An operator with the gradient by its slopes, at one level of transforms."""

    @staticmethod
    def forward(ctx: Any, original: Any, slopes: Any, places: Sequence[int], has_forward: bool, *tensors: Tensor) -> Tensor:
        ctx.slopes, ctx.places = slopes, list(places)
        ctx.save_for_backward(*tensors)
        set_forward_mode(has_forward)  # of the levels below, as is grad mode
        try:
            with torch.enable_grad():
                return original([alone_at_level(v) for v in tensors])
        finally:
            set_forward_mode(False)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        tensors = ctx.saved_tensors
        slopes, needed = ctx.slopes(tensors), ctx.needs_input_grad[4:]
        found: list[Tensor | None] = []
        for i, v, is_needed in zip(ctx.places, tensors, needed, strict=True):
            if is_needed:
                slope, shape = _slope(slopes, i, v)
                found.append((g * slope).sum_to_size(shape).reshape(v.shape).to(v.dtype))
            else:
                found.append(None)
        return None, None, None, None, *found


class _Given(torch.autograd.Function):
    """An operator of which torch has the value alone, or the value and the gradient."""

    @staticmethod
    def forward(ctx: Any, original: Any, formula: Any, spec: list[Any], has_first: bool, *tensors: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        leaves = [v.detach().requires_grad_(v.requires_grad) for v in tensors] if has_first else tensors
        with torch.set_grad_enabled(has_first):
            values, found = flattened(original(leaves))
        spec.append(found)
        differ = [isinstance(v, Tensor) and (v.requires_grad or not has_first) for v in values]
        ctx.formula, ctx.of_torch, ctx.differ = formula, (values, leaves) if has_first else None, differ
        if has_first:
            values = [v.detach() if isinstance(v, Tensor) else v for v in values]
            others = zip(values, differ, strict=True)
            ctx.mark_non_differentiable(*[v for v, own in others if isinstance(v, Tensor) and not own])
        ctx.save_for_backward(*tensors)
        return tuple(values)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        tensors, of_tensors, count = ctx.saved_tensors, ctx.formula, len(ctx.saved_tensors)
        where = tuple([i for i, needed in enumerate(ctx.needs_input_grad[4:]) if needed])
        own = [g if differs else None for g, differs in zip(cotangents, ctx.differ, strict=True)]
        differ = [i for i, g in enumerate(own) if g is not None and (g.is_floating_point() or g.is_complex())]

        def formula(*tensors: Tensor) -> tuple[Tensor, ...]:
            found = of_tensors(tensors)
            if found is NotImplemented:
                raise NotImplementedError("torch has no derivative of its operator with these arguments, nor has completing.")
            leaves = flattened(found.value if isinstance(found, Whole) else found)[0]
            # A gradient that is not asked for is None in a formula, and may be a number of torch's kernel.
            return tuple([torch.zeros_like(cotangents[i]) if leaves[i] is None else leaves[i] for i in differ])

        def by_formula(given: Sequence[Tensor]) -> tuple[Tensor, ...]:
            return tuple(pulled_back(formula, tuple(given[:count]), where, tuple(given[count:])))

        def by_torch(given: Sequence[Tensor]) -> tuple[Tensor, ...]:
            values, leaves = ctx.of_torch
            if not retains_graph():
                ctx.of_torch = None  # its memory goes with that of the saved tensors
            outputs, inputs = [values[i] for i in differ], [leaves[i] for i in where]
            return torch.autograd.grad(outputs, inputs, given[count:], retain_graph=True, allow_unused=True)

        given = *tensors, *[cotangents[i] for i in differ]
        if ctx.of_torch is None:
            gradients = by_formula(given)
        elif torch.is_grad_enabled():
            gradients = _Given.apply(by_torch, by_formula, [], False, *given)
        else:
            gradients = by_torch(given)
        found = dict(zip(where, gradients, strict=True))
        return None, None, None, None, *[found.get(i) for i in range(count)]
