"""The derivative of a function from its inputs alone: the function is called when a derivative is computed, once for each."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import can_reuse_buffers

# A function of inputs that may be tensors or constants, which returns a tensor or a tuple of them.
Soft = Callable[..., Any]


def pulled_back(soft: Soft, inputs: Sequence[Any], where: tuple[int, ...], cotangents: Any) -> tuple[Tensor, ...]:
    """The gradients of the inputs at ``where``, of any order; cheaper where they are not differentiated again."""
    if not can_reuse_buffers() or torch.is_inference_mode_enabled():  # which records nothing outside of transforms
        return pullback(soft, inputs, where)(cotangents)
    y, some = recorded(soft, inputs, where)
    return gradients(y, some, cotangents)


def pushed_forward(soft: Soft, inputs: Sequence[Any], where: tuple[int, ...], tangents: Sequence[Tensor], like: Any) -> Any:
    """The derivative of the output along tangents of the inputs at ``where``; ``like`` has the outputs' shapes and dtypes.

    It is the transpose of the transpose: forward mode inside a forward rule is more than torch allows.
    """
    pull = pullback(soft, inputs, where)
    zeros: list[Any] = [torch.zeros(shape, dtype=dtype, device=tangents[0].device) for shape, dtype in like]
    _, push = without_aux(torch.func.vjp(lambda *g: pull(g if len(zeros) > 1 else g[0]), *zeros))
    pushed = push(tuple(tangents))
    return pushed[0] if len(pushed) == 1 else pushed


def pullback(soft: Soft, inputs: Sequence[Any], where: tuple[int, ...]) -> Callable[[Any], tuple[Tensor, ...]]:
    """The function that pulls cotangents back to the inputs at ``where``, itself differentiable."""

    def of_some(*some: Tensor) -> Any:
        return soft(*replaced(inputs, where, some))

    return without_aux(torch.func.vjp(of_some, *[inputs[i] for i in where]))[1]


def recorded(soft: Soft, inputs: Sequence[Any], where: tuple[int, ...]) -> tuple[Any, list[Tensor]]:
    """The output with its graph, and the inputs at ``where`` as leaves of it."""
    plain = [v.detach() if isinstance(v, Tensor) else v for v in inputs]
    some = [plain[i].requires_grad_() for i in where]
    with torch.enable_grad():
        return soft(*plain), some


def gradients(y: Any, some: Sequence[Tensor], cotangents: Any, create_graph: bool = False) -> tuple[Tensor, ...]:
    """The gradients of recorded leaves; zeros where the output does not depend on one."""
    pairs = [(y, cotangents)] if isinstance(y, Tensor) else list(zip(y, cotangents, strict=True))
    pairs = [(v, g) for v, g in pairs if v.requires_grad]
    if not pairs:
        return tuple([torch.zeros_like(v) for v in some])
    values, given = zip(*pairs, strict=True)
    return torch.autograd.grad(values, some, given, create_graph=create_graph, materialize_grads=True)


def replaced(inputs: Sequence[Any], where: tuple[int, ...], values: Sequence[Any]) -> list[Any]:
    """The inputs with others at some places."""
    changed = list(inputs)
    for i, v in zip(where, values, strict=True):
        changed[i] = v
    return changed


def without_aux(result: Any) -> tuple[Any, Any]:
    """What vjp returns without ``has_aux``."""
    return result
