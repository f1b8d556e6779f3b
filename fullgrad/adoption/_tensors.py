"""Helpers for tensors and structures of tensors."""

import gc
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fullgrad._dispatch import (
    are_differentiated,
    clone_if_view,
    current_level,
    get_unwrapped,
    is_alias_of,
    is_batched,
    is_forward_mode,
    is_tracing,
    is_wrapped,
    pytree,
    set_forward_mode,
)

Maybe = Sequence[Tensor | None]
_EXACT = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
_DATA: Any = Tensor.data.__get__  # as a mode sees it  # pyright: ignore
_REQUIRES_GRAD: Any = Tensor.requires_grad.__get__  # pyright: ignore
_MEMORY = (Tensor.numpy, Tensor.__array__, Tensor.__dlpack__, Tensor.data_ptr)
_READS = ("__get__", "size", "dim", "numel", "stride", "is_floating_point", "is_complex")
_OF_AUTOGRAD = ("requires_grad_()", "does not require grad")  # torch's messages about autograd inside of a transform
_NOT_DIFFERENTIABLE = (
    "{}.backward cannot be differentiated once more ({}); grad, vjp and jacrev work once, and all with adopt(cls, reference=...)"
)
_CALLS_AUTOGRAD = (
    "it calls autograd itself, by requires_grad_ or torch.autograd.grad: torch.func.vjp in their place has every derivative"
)
NO_ARGUMENT = "{} uses a batched tensor that is none of its arguments; pass it as one."


class Refused(NotImplementedError):
    """A case that cannot be right, and that running sample by sample would not fix."""


def not_differentiable(name: str, error: Exception) -> str:
    """Why a backward has no derivative, by the error that it raises."""
    if isinstance(error, Refused):  # of a class that it calls
        return str(error)
    is_autograd = any(sign in str(error) for sign in _OF_AUTOGRAD)
    return _NOT_DIFFERENTIABLE.format(name, _CALLS_AUTOGRAD if is_autograd else f"{error!s:.80}")


class Drew(RuntimeError):
    """Code that drew numbers from a generator of Python or numpy, which `torch.vmap` does not know."""


class Unusable(TorchFunctionMode):
    """Refuses operations on tensors that a class reaches through an object, each with a message; their sizes may be read."""

    def __init__(self, tensors: Sequence[tuple[Tensor, str]]) -> None:
        super().__init__()
        self.messages = {id(t): message for t, message in tensors}

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        used = [self.messages[id(leaf)] for leaf in pytree.tree_leaves((args, kwargs)) if id(leaf) in self.messages]
        result = function(*args, **kwargs) if not used or function.__name__ in _READS else None
        if used and (result is None or isinstance(result, Tensor)):
            raise Refused(used[0])
        return result


class Rule(TorchFunctionMode):
    """A context for the code of a backward, in which its tensors are as in eager autograd.

    Its constants are constant to every transform: forward mode ignores ``no_grad``, and ``.data`` ends only one level and raises
    inside a vmap. If grad mode is off from the start, constants cannot be recognized. ``requires_grad`` is true of the known
    tensors, inputs that need a gradient and outputs, and of cotangents that are differentiated at any level: a tensor of a level
    that has ended, or that is batched, says that it is not.
    """

    def __init__(self, known: Maybe, cotangents: Maybe) -> None:
        super().__init__()
        self.records, self.level = torch.is_grad_enabled(), current_level()
        self.differentiated = [t for t in known if t is not None]
        given = [t for t in cotangents if t is not None]
        self.differentiated += [t for t, is_one in zip(given, are_differentiated(given), strict=True) if is_one]

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function == _DATA:
            return args[0].detach()
        if function == _REQUIRES_GRAD and current_level() == self.level:  # not in a transform of the backward's own
            return any(args[0] is t for t in self.differentiated) or _without_batch(args[0]).requires_grad
        if not self.records or torch.is_grad_enabled() or not is_forward_mode():
            return function(*args, **kwargs)
        set_forward_mode(False)
        try:
            return function(*args, **kwargs)
        finally:
            set_forward_mode(True)


def _without_batch(tensor: Tensor) -> Tensor:
    """The tensor inside batches, which say nothing about its gradient."""
    while is_batched(tensor):
        tensor = get_unwrapped(tensor)
    return tensor


class WithoutMemory(TorchFunctionMode):
    """Refuses to hand the memory of a tensor to numpy: in `torch.func.functionalize` it has none, and whoever reads it ends the
    process.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _MEMORY:
            raise Refused(
                f"{self.name} hands a tensor to numpy, in code that a tracer records and that has no numbers. Call it outside of "
                "torch.compile and torch.func.linearize, or give the class a reference: adopt(cls, reference=...)."
            )
        return function(*args, **kwargs or {})


class Slot(int):
    """A placeholder for a tensor of a call: its position among inputs, outputs and other kept tensors, in this order."""


class NumberSlot(Slot):
    """A placeholder for a number, kept as a tensor."""


class ArraySlot(Slot):
    """A placeholder for an array or a number of numpy, kept as a tensor."""


def is_array(value: Any) -> bool:
    """Whether a value is an array or a number of numpy."""
    return type(value).__module__ == "numpy" and hasattr(value, "dtype")


def number_as_tensor(value: Any) -> Tensor | None:
    """A number or an array as a tensor of its own memory; None for all else."""
    if type(value) in _EXACT:
        return torch.tensor(value, dtype=_EXACT[type(value)])
    try:
        return torch.as_tensor(value).clone() if is_array(value) else None
    except TypeError:  # an array of objects, or of a dtype that torch lacks
        return None


def comparable(tree: Any) -> Any:
    """A structure that `==` compares, though there are arrays in it."""
    return replaced(tree, lambda leaf: (str(leaf.dtype), leaf.shape, leaf.tobytes()) if is_array(leaf) else leaf)


def may_differ(tensor: Tensor | None) -> bool:
    """Whether a tensor may have a gradient."""
    return tensor is not None and (tensor.is_floating_point() or tensor.is_complex())


def attributes(tensor: Tensor) -> dict[str, Any]:
    """The attributes set on a tensor, as ``tensor.name = value``."""
    own = vars(tensor)
    if not own or type(tensor) in (Tensor, torch.nn.Parameter):
        return dict(own)
    return {name: value for name, value in own.items() if name not in vars(tensor.detach())}  # a subclass has its own


def separate(name: str, out: Tensor, tensors: Maybe) -> Tensor:
    """A result of a forward below all transforms, sharing no memory with the inputs, not a view, and without a graph.

    A result that belongs to a transform comes from a tensor that is not an argument: it is constant if differentiated, as in
    eager autograd, and refused if batched.
    """
    while is_wrapped(out):
        if is_batched(out):
            raise Refused(NO_ARGUMENT.format(name))
        out = get_unwrapped(out)
    return clone_if_view(out.clone() if any(t is not None and is_alias_of(out, t) for t in tensors) else out).detach()


def versions(tensors: Maybe) -> list[int]:
    """How often each tensor was changed in place. Inference mode does not count changes."""
    return [] if is_tracing() else [t._version for t in tensors if t is not None and not t.is_inference()]


def replaced(tree: Any, replace: Callable[[Any], Any]) -> Any:
    """A structure with replaced leaves; the same object if no leaf changes, since a class may write to it."""
    leaves, structure = pytree.tree_flatten(tree)
    others = [replace(leaf) for leaf in leaves]
    return tree if all(a is b for a, b in zip(others, leaves, strict=True)) else pytree.tree_unflatten(others, structure)


def filled(tree: Any, tensors: Maybe) -> Any:
    """A structure with tensors for slots."""

    def fill(leaf: Any) -> Any:
        if not isinstance(leaf, Slot):
            return leaf
        t: Any = tensors[leaf]
        return t.item() if isinstance(leaf, NumberSlot) else t.numpy()[()] if isinstance(leaf, ArraySlot) else t

    return replaced(tree, fill)


def hidden_tensors(value: Any, depth: int = 6) -> Iterator[Tensor]:
    """The tensors that an object refers to in attributes, closures and containers, but not in modules and types."""
    if isinstance(value, Tensor):
        yield value
    elif depth and not isinstance(value, (type, ModuleType)):
        for item in gc.get_referents(value):
            if not (isinstance(item, dict) and "__spec__" in item):  # the globals of a function
                yield from hidden_tensors(item, depth - 1)
