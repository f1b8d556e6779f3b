"""The derivative of a function from its inputs alone: each derivative calls the function once, when it is computed."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import can_reuse_buffers, transforms_active

# A function of inputs that may be tensors or constants, which returns a tensor or a tuple of them.
Soft = Callable[..., Any]


def pulled_back(soft: Soft, inputs: Sequence[Any], where: tuple[int, ...], cotangents: Any) -> tuple[Tensor, ...]:
    """The gradients of the inputs at ``where``, of any order."""
    return pullback(soft, inputs, where)(cotangents)


def pushed_forward(soft: Soft, inputs: Sequence[Any], where: tuple[int, ...], tangents: Sequence[Tensor], like: Any) -> Any:
    """The derivative of the output along tangents of the inputs at ``where``; ``like`` has the outputs' shapes and dtypes.

    It is the transpose of the transpose, since torch does not allow forward mode inside a forward rule.
    """
    pull = pullback(soft, inputs, where)
    zeros: list[Any] = [torch.zeros(shape, dtype=dtype, device=tangents[0].device) for shape, dtype in like]
    push = pullback(lambda *g: pull(g if len(zeros) > 1 else g[0]), zeros, tuple(range(len(zeros))))
    pushed = push(tuple(tangents))
    return pushed[0] if len(pushed) == 1 else pushed


def pullback(soft: Soft, inputs: Sequence[Any], where: tuple[int, ...]) -> Callable[[Any], tuple[Tensor, ...]]:
    """The function that pulls cotangents back to the inputs at ``where``, itself differentiable.

    Where no transform is active, autograd costs less, and works inside saved-tensor hooks, which transforms do not.
    """
    if transforms_active() or torch.compiler.is_dynamo_compiling() or torch.is_inference_mode_enabled():
        # Under inference mode autograd records nothing outside of transforms.

        def of_some(*some: Tensor) -> Any:
            return soft(*replaced(inputs, where, some))

        return without_aux(torch.func.vjp(of_some, *[inputs[i] for i in where]))[1]

    def pull(cotangents: Any) -> tuple[Tensor, ...]:
        given = (cotangents,) if isinstance(cotangents, Tensor) else cotangents
        # The leaves of inputs that require no gradient exist here only, and the result is not a function of them.
        again = torch.is_grad_enabled() and any(isinstance(v, Tensor) and v.requires_grad for v in (*inputs, *given))
        return gradients(*recorded(soft, inputs, where), cotangents, again)

    return pull


def recorded(soft: Soft, inputs: Sequence[Any], where: tuple[int, ...]) -> tuple[Any, list[Tensor]]:
    """The output with its graph, and the inputs at ``where`` as the graph has them: leaves, if it is not differentiated again."""
    alone = can_reuse_buffers()
    with torch.enable_grad():
        plain = [v.detach() if alone and isinstance(v, Tensor) else v for v in inputs]
        some = [v.view_as(v) if v.requires_grad else v.detach().requires_grad_() for v in [plain[i] for i in where]]
        return soft(*replaced(plain, where, some)), some


def gradients(y: Any, some: Sequence[Tensor], cotangents: Any, create_graph: bool = False) -> tuple[Tensor, ...]:
    """The gradients of recorded inputs; zeros where the output does not depend on one."""
    pairs = [(y, cotangents)] if isinstance(y, Tensor) else list(zip(y, cotangents, strict=True))
    pairs = [(v, g) for v, g in pairs if v.requires_grad]
    if not pairs:
        return tuple([torch.zeros_like(v) for v in some])
    values, given = zip(*pairs, strict=True)
    return torch.autograd.grad(values, some, given, create_graph=create_graph, materialize_grads=True)


def replaced(inputs: Sequence[Any], where: tuple[int, ...], values: Sequence[Any]) -> list[Any]:
    """The inputs with other values at ``where``."""
    changed = list(inputs)
    for i, v in zip(where, values, strict=True):
        changed[i] = v
    return changed


def without_aux(result: Any) -> tuple[Any, Any]:
    """The result of ``vjp`` without ``has_aux``, typed as a pair."""
    return result
