"""Derivatives of plain functions, computed from inputs when a derivative is: nothing else is saved.

`save_inputs` keeps what a rule needs, `pulled_back` and `pushed_forward` are the derivatives, and `Recomputed` is an operator.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from fullgrad._core.batching import in_front
from fullgrad._core.function import Function
from fullgrad._dispatch import can_reuse_buffers, is_alias_of, is_below_autograd, leaf_of, transforms_active, vjp

# A function of inputs that may be tensors or constants, which returns a tensor or a tuple of them.
Soft = Callable[..., Any]


def pulled_back(soft: Soft, inputs: Sequence[Any], where: tuple[int, ...], cotangents: Any) -> tuple[Tensor, ...]:
    """The gradients of the inputs at ``where``, of any order."""
    return pullback(soft, inputs, where)(cotangents)


def pushed_forward(soft: Soft, inputs: Sequence[Any], where: tuple[int, ...], tangents: Sequence[Tensor], like: Any) -> Any:
    """The derivative of the output along tangents of the inputs at ``where``; ``like`` has the outputs' shapes and dtypes.

    It is the transpose of the transpose, since torch does not allow forward mode inside a forward rule.
    """
    device = tangents[0].device
    if device.type != "cpu":  # torch cannot transpose the gradient of a number on the CPU
        inputs = [v.to(device) if isinstance(v, Tensor) and not v.ndim else v for v in inputs]
    n, zeros = len(inputs), [torch.zeros(shape, dtype=dtype, device=device) for shape, dtype in like]

    def back(*all: Any) -> tuple[Tensor, ...]:  # of the inputs, too, so that the result is differentiable by them
        g: Any = all[n:]
        return pullback(soft, all[:n], where)(g if len(g) > 1 else g[0])

    pushed = pullback(back, [*inputs, *zeros], tuple(range(n, n + len(zeros))))(tuple(tangents))
    return pushed[0] if len(pushed) == 1 else pushed


def pullback(soft: Soft, inputs: Sequence[Any], where: tuple[int, ...]) -> Callable[[Any], tuple[Tensor, ...]]:
    """The function that pulls cotangents back to the inputs at ``where``, itself differentiable.

    Where no transform is active, autograd costs less, and works inside saved-tensor hooks, which transforms do not.
    """
    if transforms_active() or torch.compiler.is_dynamo_compiling() or torch.is_inference_mode_enabled() or is_below_autograd():
        # In inference mode, and below a transform that was opened in it, autograd records nothing outside of transforms.

        def of_some(*some: Tensor) -> Any:
            return soft(*replaced(inputs, where, some))

        return vjp(of_some, *[inputs[i] for i in where])[1]

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
        some = [v.view_as(v) if v.requires_grad else leaf_of(v) for v in [plain[i] for i in where]]
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


def with_aux(result: Any) -> tuple[Any, Any, Any]:
    """The result of ``vjp`` or ``jvp`` with ``has_aux``, typed as three values."""
    return result


def save_inputs(ctx: Any, inputs: tuple[Any, ...]) -> None:
    """Save inputs for both rules: tensors through the engine, the rest as they are."""
    tensors, ctx.constants = [], []
    for v in inputs:
        tensor = isinstance(v, Tensor)
        tensors.append(v if tensor else None)
        ctx.constants.append(None if tensor else v)
    ctx.save_for_forward(*tensors)
    ctx.save_for_backward(*tensors)


def saved_inputs(ctx: Any) -> list[Any]:
    """The inputs in their order; None for a tensor that was not kept."""
    return [c if t is None else t for t, c in zip(ctx.saved_tensors, ctx.constants)]  # noqa: B905  # on the hot path


class Recomputed(Function):
    """A function of rows along the last dimension, with the derivative of ``relaxed(*inputs)``, plain differentiable code.

    Only inputs are saved. ``forward`` may have another value. Tensors broadcast in front of the rows, to the first one's shape.
    """

    whole_dims = 1

    relaxed: ClassVar[Callable[..., Any]]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        save_inputs(ctx, inputs)
        ctx.like = [(v.shape, v.dtype) for v in ((output,) if isinstance(output, Tensor) else output)]

    @classmethod
    def vjp(cls, ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        inputs, g = saved_inputs(ctx), cotangents
        where = tuple([i for i, needed in enumerate(ctx.needs_input_grad) if needed])
        found: list[Tensor] = []
        for v in pulled_back(cls.relaxed, inputs, where, g[0] if len(g) == 1 else g):
            # A sum gives one gradient to both its terms, and autograd may change it in place.
            found.append(v.clone() if any(is_alias_of(v, other) for other in found) else v)
        parts = iter(found)
        return tuple([next(parts) if i in where else None for i in range(len(inputs))])

    @classmethod
    def jvp(cls, ctx: Any, *tangents: Any) -> Any:
        where = tuple([i for i, t in enumerate(tangents) if t is not None])
        return pushed_forward(cls.relaxed, saved_inputs(ctx), where, [tangents[i] for i in where], ctx.like)

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        y = cls.apply(*in_front(info, in_dims, args))
        return y, 0 if isinstance(y, Tensor) else (0,) * len(y)
