"""`FirstDerivative`: the derivative of an order statistic as an operator, for transforms."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fullgrad._core.function import Function
from fullgrad._core.recomputed import pulled_back, pushed_forward
from fullgrad._dispatch import VmapInfo, clone_if_view, is_unrecorded
from fullgrad._fast.small_rows.operators import form_of
from fullgrad.soft.order._statistic import OrderStatistic, one_or_all


class FirstDerivative(Function):
    """The derivative of an order statistic with respect to its first input, times vectors: cotangents, or a tangent.

    An operator, so that every transform passes it on until rows are plain and closed forms apply. Its own derivatives are those
    of the relaxation, with respect to the first input and the vectors.
    """

    @staticmethod
    def forward(operator: type[OrderStatistic], transposed: bool, constants: Any, x: Tensor, *vectors: Tensor) -> Any:
        small = form_of(operator, (x, *constants)) if is_unrecorded(()) else None
        y = NotImplemented if small is None else (small.gradient if transposed else small.tangent)(*vectors)
        if y is NotImplemented:
            y = _general(operator, transposed, constants)(x, *vectors)
        return clone_if_view(y) if isinstance(y, Tensor) else tuple([clone_if_view(v) for v in y])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *function, x = inputs[:4]
        ctx.function = _general(*function)
        ctx.like = [(v.shape, v.dtype) for v in ((output,) if isinstance(output, Tensor) else output)]
        ctx.save_for_backward(x, *inputs[4:])
        ctx.save_for_forward(x, *inputs[4:])

    @staticmethod
    def vjp(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        where = tuple([i for i, needed in enumerate(ctx.needs_input_grad[3:]) if needed])
        tensors = ctx.saved_tensors
        found = iter(pulled_back(ctx.function, tensors, where, one_or_all(cotangents)))
        return None, None, None, *[next(found) if i in where else None for i in range(len(tensors))]

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, ___: None, *tangents: Any) -> Any:
        where = tuple([i for i, t in enumerate(tangents) if t is not None])
        return pushed_forward(ctx.function, ctx.saved_tensors, where, [tangents[i] for i in where], ctx.like)

    @staticmethod
    def vmap(info: VmapInfo, in_dims: tuple[Any, ...], operator: Any, transposed: bool, constants: Any, *tensors: Any) -> Any:
        n, dims = info.batch_size, in_dims[3:]
        batched = [t.expand(n, *t.shape) if d is None else t.movedim(d, 0) for t, d in zip(tensors, dims, strict=True)]
        output = FirstDerivative.apply(operator, transposed, constants, *batched)
        return output, 0 if isinstance(output, Tensor) else (0,) * len(output)


def _general(operator: type[OrderStatistic], transposed: bool, constants: Any) -> Callable[..., Any]:
    """The derivative through the relaxation, as a differentiable function of the first input and the vectors."""

    def derivative(x: Tensor, *vectors: Any) -> Any:
        inputs = (x, *constants)
        if transposed:
            return pulled_back(operator.relaxed, inputs, (0,), one_or_all(vectors))[0]
        y = operator.relaxed(x.detach(), *constants)
        like = [(v.shape, v.dtype) for v in ((y,) if isinstance(y, Tensor) else y)]
        return pushed_forward(operator.relaxed, inputs, (0,), vectors, like)

    return derivative
