"""`completing`: while it is open, torch's dispatcher has other rules for operators whose derivatives are wrong or missing."""

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import compile_again, forward_mode_is_on, pytree, torch_kernel, transforms_active
from fullgrad.completion._operators import COMPLETED, NO_SECOND, Completed
from fullgrad.functions._declared import Rule, by_reference, declared

_BACKENDS = ("CPU", "CUDA", "PrivateUse1")
_lock = threading.Lock()
_open = 0
_library: torch.library.Library | None = None


class completing(contextlib.ContextDecorator):  # a function to its users
    r"""A context, or a decorator, in which torch's own operators have all their derivatives.

    .. math::
        D^k f \text{ of torch's operator} = D^k f \text{ of its mathematics}

    Some of torch's operators are wrong without an error where forward mode is differentiated again, such as ``layer_norm``,
    ``batch_norm`` and ``solve``, and others have no such derivative, such as attention. Inside the context each of those that
    `fullgrad.completion.operators` lists is computed, under a transform of ``torch.func`` and in forward mode, by its formula
    in plain operations, equal up to rounding, whose derivatives are right in every nesting. Elsewhere it is torch's own, bit for
    bit, forward and backward.

    It reaches calls from C++, such as those of ``torch.nn.TransformerEncoderLayer``, since torch's dispatcher is told. So it holds
    for the whole process, in all threads, until the last one that entered it has left it. Saved, under transforms: what the plain
    operations save.

    Example:
        >>> import torch, fullgrad
        >>> f = lambda x: torch.nn.functional.layer_norm(x, (3,)).sin().sum()
        >>> x, t = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1.0, 0.0, 0.0])
        >>> def curvature(x):
        ...     return torch.func.jvp(lambda x: torch.func.jvp(f, (x,), (t,))[1], (x,), (t,))[1]
        >>> curvature(x)  # torch alone, without an error
        tensor(0.0352)
        >>> with fullgrad.completing():
        ...     curvature(x)
        tensor(0.0352)

    Source: the formulas of each operator's documentation; https://github.com/pytorch/pytorch/issues/198017.
    """

    def __enter__(self) -> None:
        global _open, _library
        with _lock:
            if not _open:
                _library = _installed()
                compile_again(True)
            _open += 1

    def __exit__(self, *_: object) -> None:
        global _open, _library
        with _lock:
            _open -= 1
            if not _open and _library is not None:
                _library._destroy()
                _library = None
                compile_again(False)


def operators() -> dict[str, str]:
    """The operators of torch that `completing` changes, with what torch lacks.

    Example:
        >>> import fullgrad
        >>> fullgrad.completion.operators()["aten::native_layer_norm"]
        'forward mode, differentiated again, is wrong'
    """
    return {f"aten::{name}": own.lacks for name, own in COMPLETED.items() if _overload(name) is not None}


def _overload(name: str) -> Any:
    """The operator, or None where this torch lacks it."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)


def _installed() -> torch.library.Library:
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of kernels that are overridden, as they are to be
        for name, own in COMPLETED.items():
            op = _overload(name)
            if op is None:
                continue
            for backend in _BACKENDS:
                kernel = _kernel(torch_kernel(op, f"Autograd{backend}"), own)
                library.impl(name, kernel, f"Autograd{backend}", with_keyset=True)
            if own.batched:
                library.impl(name, own.formula, "FuncTorchBatched")
    return library


def _kernel(original: Callable[..., Any], own: Completed) -> Callable[..., Any]:
    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if transforms_active() or forward_mode_is_on():
            found = own.formula(*args, **kwargs)
            return original(keys, *args, **kwargs) if found is NotImplemented else found
        if own.lacks != NO_SECOND or not torch.is_grad_enabled():
            return original(keys, *args, **kwargs)
        return _with_second_derivative(functools.partial(original, keys), own.formula, args, kwargs)

    return kernel


def _with_second_derivative(original: Callable[..., Any], formula: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """torch's value and gradient, with the formula as what derivatives of the gradient are taken of."""
    leaves, structure = pytree.tree_flatten((args, kwargs))
    where = [i for i, v in enumerate(leaves) if isinstance(v, Tensor) and v.requires_grad]
    if not where:
        return original(*args, **kwargs)

    def call(function: Callable[..., Any], given: Sequence[Tensor]) -> Any:
        all_ = list(leaves)
        for i, v in zip(where, given, strict=True):
            all_[i] = v
        args, kwargs = pytree.tree_unflatten(all_, structure)
        return function(*args, **kwargs)

    inputs, alone = [leaves[i] for i in where], [leaves[i].detach().requires_grad_() for i in where]
    for i in where:
        leaves[i] = None
    recorded = call(original, alone)
    results = [recorded] if isinstance(recorded, Tensor) else list(recorded)
    differ = [i for i, y in enumerate(results) if y.requires_grad]
    again = by_reference(lambda *given: [y for i, y in enumerate(_listed(call(formula, given))) if i in differ])

    def pull(given: Sequence[Tensor], cotangents: Sequence[Tensor], needs: Sequence[bool]) -> Any:
        if torch.is_grad_enabled():
            return again.pull(given, cotangents, needs)
        graphs = [results[i] for i in differ]
        return torch.autograd.grad(graphs, alone, cotangents, retain_graph=True, allow_unused=True)

    values = [y.detach() for y in results]
    for i, y in zip(differ, declared(Rule(pull, again.push), [values[i] for i in differ], inputs), strict=True):
        values[i] = y
    return values[0] if isinstance(recorded, Tensor) else tuple(values)


def _listed(value: Any) -> Sequence[Tensor]:
    return [value] if isinstance(value, Tensor) else value
