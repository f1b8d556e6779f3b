"""Modes for the code of a class: in a backward tensors are as in eager autograd, and some operations are refused."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fullgrad._dispatch import (
    are_differentiated,
    current_level,
    is_forward_mode,
    pytree,
    set_forward_mode,
)
from fullgrad.adoption._leaves import Asked
from fullgrad.adoption._tensors import Maybe, Refused

_DATA: Any = Tensor.data.__get__  # as a mode sees it  # pyright: ignore
_REQUIRES_GRAD: Any = Tensor.requires_grad.__get__  # pyright: ignore
_OF_AUTOGRAD = (torch.autograd.grad, _REQUIRES_GRAD, Tensor.requires_grad_)
_MEMORY = (Tensor.numpy, Tensor.__array__, Tensor.__dlpack__, Tensor.data_ptr)
_READS = ("__get__", "size", "dim", "numel", "stride", "is_floating_point", "is_complex")


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


class OfRule(TorchFunctionMode):
    """A context for the code of a backward, in which its tensors are as in eager autograd.

    Its constants are constant to every transform: forward mode ignores ``no_grad``, and ``.data`` ends only one level and raises
    inside a vmap. If grad mode is off from the start, constants cannot be recognized. ``requires_grad`` is true of the known
    tensors, inputs that need a gradient and outputs, and of cotangents that are differentiated at any level: a tensor of a level
    that has ended, or that is batched, says that it is not. What the code asks autograd goes through `Asked`.
    """

    def __init__(self, known: Maybe, cotangents: Maybe, flat: Maybe) -> None:
        super().__init__()
        self.records, self.level = torch.is_grad_enabled(), current_level()
        self.differentiated = [t for t in known if t is not None]
        given = [t for t in cotangents if t is not None]
        self.differentiated += [t for t, is_one in zip(given, are_differentiated(given), strict=True) if is_one]
        self.asked = Asked((*flat, *given), self.differentiated)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function == _DATA:
            return args[0].detach()
        if function in _OF_AUTOGRAD and current_level() == self.level:  # not in a transform of the backward's own
            if function is torch.autograd.grad:
                return self.asked.gradients(*args, **kwargs)
            if function == _REQUIRES_GRAD:
                return any(args[0] is t for t in self.differentiated) or self.asked.requires_grad(args[0])
            if not (args[0].requires_grad or any(args[1:]) or kwargs.get("requires_grad", len(args) < 2)):
                return args[0]  # which torch refuses inside of a transform
        if not self.records or torch.is_grad_enabled() or not is_forward_mode():
            return function(*args, **kwargs)
        set_forward_mode(False)
        try:
            return function(*args, **kwargs)
        finally:
            set_forward_mode(True)


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
