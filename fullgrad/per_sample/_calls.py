"""The calls of torch in which a weight meets data, with the factors of the weight's gradient in place of the gradient."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter, functional
from torch.overrides import TorchFunctionMode

from fullgrad._core.function import Function
from fullgrad._dispatch import without_question
from fullgrad.per_sample._contributions import Contribution, Convolved, Dense, Product, Rows, numel, to_parameter
from fullgrad.per_sample._record import Batched, Record
from fullgrad.per_sample._weights import Weight, slopes, weight_of


class Calls(TorchFunctionMode):
    """A context in which calls of torch with a weight deliver to a record."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self.record = record

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.register_hook:
            self.record.hooked.add(args[0].grad_fn)
        if func is functional.multi_head_attention_forward and self.record.is_here():
            with self:
                return _opened_attention(*args, **kwargs)
        call = _CALLS.get(func)
        if call is not None and all(t is Tensor or t is Parameter for t in types) and self.record.is_here():
            found = call(self.record, *args, **kwargs)
            if found is not NotImplemented:
                return found
        return func(*args, **kwargs)


_opened_attention = without_question(functional.multi_head_attention_forward)


class Use:
    """A call of a weight: a constant of the operators.

    Args:
        record: The record of the run.
        weight: How the weight was made.
        kind: What distinguishes calls of one operator.
    """

    def __init__(self, record: Record, weight: Weight, kind: Any = None) -> None:
        self.record, self.weight, self.kind = record, weight, kind

    def deliver(self, make: Callable[..., Contribution], *tensors: Tensor) -> bool:
        """Deliver the contribution that ``make`` returns of tensors of the batch, a slope and its key.

        False if the call is differentiated by something else than the run, if a hook is to see the gradient, or if the weight has
        no slope of single elements.
        """
        record, node = self.record, self.weight.node
        delivers = record.is_delivering() and record.hooked.isdisjoint(self.weight.nodes)
        found = slopes(record, node) if delivers else None
        if found is None:
            return False

        def take(*batch: Batched) -> None:
            own = [b.in_front() for b in batch[: len(tensors)]]
            of_slopes = iter(batch[len(tensors) :])
            for k, has_slope in [(k, s is not None) for k, s in found.items()]:
                slope = next(of_slopes) if has_slope else None
                if slope is None:
                    part = make(*own, None, None)
                elif slope.dim is None:
                    part = to_parameter(make(*own, slope.tensor, node), record.shapes[k])
                else:  # a weight that differs between samples
                    part = to_parameter(Dense(make(*own, None, None).dense(slice(None)) * slope.in_front()), record.shapes[k])
                record.add(k, part)

        record.deliver(take, *tensors, *[s for s in found.values() if s is not None])
        return True


def _save(ctx: Any, x: Tensor, weight: Tensor) -> None:
    """Save the factors of a product: each for the derivative of the other, so that the loss may write into one that has none."""
    of_x, of_weight = ctx.needs_input_grad[1:3]
    ctx.save_for_backward(x if of_weight else None, weight if of_x else None)
    ctx.save_for_forward(x, weight)


class Linear(Function):
    """A product with a matrix: `F.linear`, ``x @ w`` ("right") or ``w @ x`` ("left")."""

    constant_types = (Use,)

    @staticmethod
    def forward(use: Use, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if use.kind == "linear":
            return functional.linear(x, weight, bias)
        return torch.matmul(weight, x) if use.kind == "left" else torch.matmul(x, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.use = inputs[0]
        _save(ctx, *inputs[1:3])

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        use, (x, weight), needs = ctx.use, ctx.saved_tensors, ctx.needs_input_grad
        of_x = of_weight = of_bias = None
        if needs[1]:
            w = weight.to(g.dtype)  # under autocast
            of_x = (g @ w if use.kind == "linear" else g @ w.mT if use.kind == "right" else w.mT @ g).to(x.dtype)
        if needs[2]:
            rows, columns = _factors(use.kind, x, g)
            if use.weight.is_turned:
                if not use.deliver(Product, columns, rows):
                    of_weight = rows.to(g.dtype).mT @ columns.to(g.dtype)
            elif not use.deliver(Product, rows, columns):
                of_weight = rows.to(g.dtype).mT @ columns.to(g.dtype)
        if needs[3]:
            of_bias = _as_rows(g).sum(0)
        return None, of_x, of_weight, of_bias

    @staticmethod
    def jvp(ctx: Any, use: Any, of_x: Tensor | None, of_weight: Tensor | None, of_bias: Tensor | None) -> Any:
        use, (x, weight) = ctx.use, ctx.saved_tensors
        pairs = [(of_x, weight), (x, of_weight)]
        parts = [Linear._product(use.kind, a, b) for a, b in pairs if a is not None and b is not None]
        total = sum(parts[1:], parts[0]) if parts else None
        if of_bias is None:
            return total
        if total is None:
            shape = Linear._product(use.kind, x, weight)
            return of_bias.expand(shape.shape)
        return total + of_bias

    @staticmethod
    def _product(kind: str, x: Tensor, weight: Tensor) -> Tensor:
        return x @ weight.mT if kind == "linear" else x @ weight if kind == "right" else weight @ x

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[int | None], use: Use, x: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
        if in_dims[2] is in_dims[3] is None and in_dims[1] is not None:
            x = x.movedim(in_dims[1], 0)
            if use.kind == "left" and x.ndim == 2:
                return functional.linear(x, weight), 0
            return Linear.forward(use, x, weight, bias), 0
        return torch.func.vmap(Linear.forward, tuple(in_dims))(use, x, weight, bias), 0


def _factors(kind: str, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """R and C, (T, m) and (T, n), of which the gradient of the weight is the product."""
    if kind == "left" and x.ndim > 1:
        x, g = x.mT, g.mT
    x, g = _as_rows(x), _as_rows(g)
    return (x, g) if kind == "right" else (g, x)


def _as_rows(tensor: Tensor) -> Tensor:
    """A tensor as a matrix with the same last dimension, which may be 0."""
    return tensor.reshape(numel(tensor.shape[:-1]), tensor.shape[-1])


class Embedding(Function):
    """`F.embedding`, of a parameter."""

    constant_types = (Use,)

    @staticmethod
    def forward(use: Use, index: Tensor, weight: Tensor) -> Tensor:
        return functional.embedding(index, weight, use.kind)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.use, ctx.shape = inputs[0], inputs[2].shape
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        use, (index,), shape = ctx.use, ctx.saved_tensors, ctx.shape
        index = index.long()
        if use.kind is not None:
            g = g.masked_fill((index == use.kind % shape[0]).unsqueeze(-1), 0)
        index, g = index.reshape(-1), _as_rows(g)
        if use.deliver(lambda index, g, slope, key: Rows(index, g, shape), index, g):
            return None, None, None
        return None, None, g.new_zeros(shape).index_add(0, index, g)

    @staticmethod
    def jvp(ctx: Any, use: None, index: None, t: Tensor) -> Tensor:
        return functional.embedding(ctx.saved_tensors[0], t, ctx.use.kind)

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[int | None], use: Use, index: Tensor, weight: Tensor) -> Any:
        if in_dims[2] is None and in_dims[1] is not None:
            return Embedding.forward(use, index.movedim(in_dims[1], 0), weight), 0
        return torch.func.vmap(Embedding.forward, tuple(in_dims))(use, index, weight), 0


class Convolution(Function):
    """`F.conv1d`, `F.conv2d` and `F.conv3d`, of inputs with a dimension of samples."""

    constant_types = (Use,)

    @staticmethod
    def forward(use: Use, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        stride, padding, dilation, groups = use.kind
        return torch.convolution(x, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.use, ctx.shapes = inputs[0], (inputs[1].shape, inputs[2].shape)
        _save(ctx, *inputs[1:3])

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        use, (x, weight), needs = ctx.use, ctx.saved_tensors, ctx.needs_input_grad
        options = use.kind
        makes = lambda x, g, slope, key: Convolved(x, g, ctx.shapes[1], options, slope, key)  # noqa: E731
        of_x = of_weight = of_bias = None
        delivers = needs[2] and use.deliver(makes, x, g)
        if needs[1] or (needs[2] and not delivers):
            mask = [needs[1], needs[2] and not delivers, False]
            x, weight = [g.new_empty(s) if t is None else t for t, s in zip((x, weight), ctx.shapes, strict=True)]
            of_x, of_weight, _ = _backward(g, x, weight, options, mask)
        if needs[3]:
            of_bias = g.sum([d for d in range(g.ndim) if d != 1])
        return None, of_x, of_weight, of_bias

    @staticmethod
    def jvp(ctx: Any, use: Any, of_x: Tensor | None, of_weight: Tensor | None, of_bias: Tensor | None) -> Tensor:
        use, (x, weight) = ctx.use, ctx.saved_tensors
        pairs = [(of_x, weight), (x, of_weight)]
        total: Any = sum([Convolution.forward(use, a, b, None) for a, b in pairs if a is not None and b is not None])
        if of_bias is None:
            return total
        if not isinstance(total, Tensor):
            total = torch.zeros_like(Convolution.forward(use, x, weight, None))
        return total + of_bias.reshape(-1, *(1,) * (x.ndim - 2))

    @staticmethod
    def vmap(
        info: Any, in_dims: Sequence[int | None], use: Use, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, int]:
        if in_dims[2] is in_dims[3] is None and in_dims[1] is not None:
            x = x.movedim(in_dims[1], 0)
            y = Convolution.forward(use, x.reshape(-1, *x.shape[2:]), weight, bias)
            return y.reshape(*x.shape[:2], *y.shape[1:]), 0
        return torch.func.vmap(Convolution.forward, tuple(in_dims))(use, x, weight, bias), 0


def _backward(g: Tensor, x: Tensor, weight: Tensor, options: Any, mask: list[bool]) -> Any:
    stride, padding, dilation, groups = options
    zero = [0] * len(stride)
    return torch.ops.aten.convolution_backward(g, x, weight, None, stride, padding, dilation, False, zero, groups, mask)


# --- The calls of torch ---------------------------------------------------------------------------------------------------


def _is_usual(x: Any, weight: Any) -> bool:
    """Whether the dtypes are floating and of one kind, so that the formulas hold."""
    return (
        isinstance(x, Tensor)
        and isinstance(weight, Tensor)
        and x.is_floating_point()
        and weight.is_floating_point()
        and weight.requires_grad
    )


def _linear(record: Record, input: Any, weight: Any, bias: Any = None) -> Any:
    if not _is_usual(input, weight) or weight.ndim != 2 or not (bias is None or bias.ndim == 1):
        return NotImplemented
    found = weight_of(record, weight)
    return NotImplemented if found is None else Linear.apply(Use(record, found, "linear"), input, weight, bias)


def _matmul(record: Record, input: Any, other: Any, **others: Any) -> Any:
    if others or not isinstance(input, Tensor) or not isinstance(other, Tensor):
        return NotImplemented
    if other.ndim == 2 and _is_usual(input, other):
        found = weight_of(record, other)
        if found is not None and not (input.ndim == 2 and input.requires_grad and weight_of(record, input) is not None):
            return Linear.apply(Use(record, found, "right"), input, other, None)
    if input.ndim == 2 and _is_usual(other, input):
        found = weight_of(record, input)
        if found is not None and not (other.ndim == 2 and other.requires_grad and weight_of(record, other) is not None):
            return Linear.apply(Use(record, found, "left"), other, input, None)
    return NotImplemented


def _mm(record: Record, input: Any, mat2: Any, *more: Any, **others: Any) -> Any:
    is_usual = not more and not others and _dims(input, mat2) == (2, 2)
    return _matmul(record, input, mat2) if is_usual else NotImplemented


def _mv(record: Record, input: Any, vec: Any, *more: Any, **others: Any) -> Any:
    is_usual = not more and not others and _dims(input, vec) == (2, 1)
    return _matmul(record, input, vec) if is_usual else NotImplemented


def _addmm(record: Record, input: Any, mat1: Any, mat2: Any, *more: Any, **others: Any) -> Any:
    product = _mm(record, mat1, mat2, *more, **others) if isinstance(input, Tensor) else NotImplemented
    return NotImplemented if product is NotImplemented else product + input.expand(product.shape)


def _dims(*tensors: Any) -> tuple[int | None, ...]:
    return tuple([t.ndim if isinstance(t, Tensor) else None for t in tensors])


def _embedding(
    record: Record,
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    if max_norm is not None or scale_grad_by_freq or sparse or not isinstance(weight, Tensor) or weight.ndim != 2:
        return NotImplemented
    found = weight_of(record, weight) if weight.is_floating_point() else None
    if found is None or found.is_turned or found.node not in record.entries:
        return NotImplemented
    return Embedding.apply(Use(record, found, padding_idx), input, weight)


def _convolution(dims: int) -> Callable[..., Any]:
    def several(value: Any) -> tuple[int, ...] | None:
        value = (value,) * dims if isinstance(value, int) else value
        value = tuple(value) * dims if isinstance(value, (tuple, list)) and len(value) == 1 != dims else value
        is_usual = isinstance(value, (tuple, list)) and len(value) == dims and all(isinstance(v, int) for v in value)
        return tuple(value) if is_usual else None

    def convolution(
        record: Record,
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: Any = 1,
    ) -> Any:
        if not _is_usual(input, weight) or weight.ndim != dims + 2 or input.ndim not in (dims + 1, dims + 2):
            return NotImplemented
        options = several(stride), several(padding), several(dilation), groups
        found = None if None in options else weight_of(record, weight)
        if found is None or torch.is_autocast_enabled(input.device.type):
            return NotImplemented
        x = input if input.ndim == dims + 2 else input.unsqueeze(0)
        y = Convolution.apply(Use(record, found, options), x, weight, bias)
        return y if input.ndim == dims + 2 else y.squeeze(0)

    return convolution


_CALLS: dict[Any, Callable[..., Any]] = {
    functional.linear: _linear,
    functional.embedding: _embedding,
    functional.conv1d: _convolution(1),
    functional.conv2d: _convolution(2),
    functional.conv3d: _convolution(3),
    torch.addmm: _addmm,
    Tensor.addmm: _addmm,
    **dict.fromkeys((torch.matmul, Tensor.matmul, Tensor.__matmul__), _matmul),
    **dict.fromkeys((torch.mm, Tensor.mm), _mm),
    **dict.fromkeys((torch.mv, Tensor.mv), _mv),
    Tensor.__rmatmul__: lambda record, input, other: _matmul(record, other, input),
}
