"""`Recomputed`: the rules of an operator whose derivative is that of a plain function, computed with each derivative."""

from typing import Any

from torch import Tensor

from fullgrad._batching import aligned
from fullgrad._dispatch import is_alias_of
from fullgrad._function import Function
from fullgrad._inputs import save_inputs, saved_inputs
from fullgrad._recompute import pulled_back, pushed_forward


class Recomputed(Function):
    """A function of rows along the last dimension, with the derivative of ``relaxed(*inputs)``, plain differentiable code.

    Only inputs are saved. ``forward`` may have another value. Tensors broadcast in front of the rows, to the first one's shape.
    """

    whole_dims = 1

    @staticmethod
    def relaxed(*inputs: Any) -> Tensor:
        raise NotImplementedError

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        save_inputs(ctx, inputs)
        ctx.like = output.shape, output.dtype

    @classmethod
    def vjp(cls, ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        inputs = saved_inputs(ctx)
        where = tuple([i for i, needed in enumerate(ctx.needs_input_grad) if needed])
        found: list[Tensor] = []
        for v in pulled_back(cls.relaxed, inputs, where, g):
            # A sum gives one gradient to both its terms, and autograd may change it in place.
            found.append(v.clone() if any(is_alias_of(v, other) for other in found) else v)
        parts = iter(found)
        return tuple([next(parts) if i in where else None for i in range(len(inputs))])

    @classmethod
    def jvp(cls, ctx: Any, *tangents: Any) -> Tensor:
        where = tuple([i for i, t in enumerate(tangents) if t is not None])
        return pushed_forward(cls.relaxed, saved_inputs(ctx), where, [tangents[i] for i in where], [ctx.like])

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        front = aligned(in_dims, args)
        if in_dims[0] is None:
            front[0] = front[0].expand(info.batch_size, *front[0].shape)
        return cls.apply(*front), 0
