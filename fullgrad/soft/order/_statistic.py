"""`OrderStatistic`: the rules of every order statistic and its straight-through version, written once."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.function import Function
from fullgrad._core.recomputed import pulled_back, pushed_forward, save_inputs, saved_inputs
from fullgrad._core.shards import reshaped
from fullgrad._dispatch import VmapInfo, can_look, can_reuse_buffers, clone_if_view, holds, in_legacy_vmap, surely
from fullgrad.soft._mode_names import ANY_STEP_MODES, MODES
from fullgrad.soft._relaxation import Softness, check, floating
from fullgrad.soft.order._outputs import Outputs
from fullgrad.soft.order._rows import Rows, make_rows, with_constant_weights, with_finite_values
from fullgrad.soft.order._small_rows import LARGEST
from fullgrad.soft.order.methods import (
    LAPLACE_METHODS,
    METHODS,
    PERMUTATION_METHODS,
    RANK_METHODS,
    SORT_METHODS,
    WEIGHTED_SUM_METHODS,
    Method,
)

# The last input of every operator: mode, method, standardize, gated_grad, outputs, and whether the value is the hard one. A plain
# tuple, which costs a small call nothing.
Options = tuple[str, str, bool, bool, Outputs, bool]


class OrderStatistic(Function):
    r"""A function of a tensor along a dimension, a softness and constants, with the derivative of its relaxation.

    A subclass defines ``relaxed(*inputs)``, plain differentiable code, and ``forward(*inputs)``, the value of ``relaxed`` or,
    where the options, the last input, say so, of the hard operator. A derivative calls ``relaxed`` with the saved inputs; as
    ``relaxed`` is built on projections with explicit rules, derivatives of every order follow.

    ``dim`` is counted from the end, so that a batch in front changes nothing.
    """

    whole_dims = "dim"
    # The methods that have closed forms.
    closed_methods: ClassVar[tuple[str, ...]] = ("neuralsort",)
    # The position of the dimension among the inputs.
    dim_at: ClassVar[int] = 2
    # Whether a closed form takes the returned weights as its last argument.
    reads_returned_weights: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        _OPERATORS[cls.__name__] = cls
        super().__init_subclass__(**kwargs)

    @staticmethod
    def raises_by_numbers(*args: Any) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether numbers can raise: a transport plan may not converge, for a straight-through estimator in its backward."""
        return args[-1][1] == "ot"

    @staticmethod
    def relaxed(*args: Any) -> Any:
        raise NotImplementedError

    @staticmethod
    def closed_form(*args: Any) -> Any:
        """The relaxation of small rows by one of `closed_methods`, whose first derivative records nothing; None for others."""

    @classmethod
    def soft_forward(cls, *args: Any) -> Any:
        """The relaxation as a value."""
        small = cls.closed_form(*args) if args[-1][1] in cls.closed_methods else None
        y = cls.relaxed(*args) if small is None else small.outputs()
        return clone_if_view(y) if isinstance(y, Tensor) else tuple([clone_if_view(v) for v in y])

    @classmethod
    def setup_context(cls, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, Tensor):
            ctx.several, ctx.like = False, [(output.shape, output.dtype)]
        else:
            ctx.several, ctx.like = True, [(v.shape, v.dtype) for v in output if v.is_floating_point()]
            ctx.mark_non_differentiable(*[v for v in output if not v.is_floating_point()])
        if any([isinstance(v, Tensor) for v in inputs[1:]]):  # noqa: C419  # on the hot path
            save_inputs(ctx, inputs)
            ctx.alone = False
        else:  # x is the only tensor, as in almost every call
            x, *ctx.constants = inputs
            ctx.alone = True
            saved = (x, output) if cls._saves(output, ctx.constants[-1]) else (x,)
            ctx.save_for_backward(*saved)
            ctx.save_for_forward(*saved)

    @classmethod
    def _saves(cls, output: Any, options: Options) -> bool:
        """Whether the output is saved, too: weights in smooth mode, from which a closed form computes the derivative."""
        mode, method, standardize, _, outputs, hard = options
        soft = outputs == "weights" and mode == "smooth" and standardize and not hard and cls.reads_returned_weights
        return soft and method in cls.closed_methods and output.dtype.itemsize > 2 and surely(output.numel() <= LARGEST)

    @staticmethod
    def _saved(ctx: Any) -> tuple[list[Any], tuple[Tensor, ...]]:
        """The inputs, and the output if it was saved."""
        if not ctx.alone:
            return saved_inputs(ctx), ()
        x, *returned = ctx.saved_tensors
        return [x, *ctx.constants], tuple(returned)

    @classmethod
    def vjp(cls, ctx: Any, *cotangents: Any) -> tuple[Tensor | None, ...]:
        inputs, returned = cls._saved(ctx)
        where = tuple([i for i, needed in enumerate(ctx.needs_input_grad) if needed])
        given: Any = cotangents[: len(ctx.like)]
        unit = _unit(inputs, cls.dim_at)
        if unit is None or where[0] != 0:
            found = cls._pulled(inputs, where, given, returned)
        else:
            small = tuple([g / n for g, n in zip(given, cls._of_rows(unit, inputs), strict=True)])
            found = [cls._pulled(inputs, (0,), small, returned)[0] * unit, *cls._pulled(inputs, where[1:], given, returned)]
        parts = iter(found)
        return tuple([next(parts) if i in where else None for i in range(len(inputs))])

    @classmethod
    def _pulled(cls, inputs: list[Any], where: tuple[int, ...], given: Any, returned: tuple[Tensor, ...]) -> Sequence[Tensor]:
        if not where:
            return ()
        first = cls._first_derivative(True, inputs, where, given, returned)
        return pulled_back(cls.relaxed, inputs, where, _one_or_all(given)) if first is None else (first,)

    @classmethod
    def jvp(cls, ctx: Any, *tangents: Any) -> Any:
        inputs, returned = cls._saved(ctx)
        where = tuple([i for i, t in enumerate(tangents) if t is not None])
        given = [tangents[i] for i in where]
        unit = _unit(inputs, cls.dim_at)
        if unit is None or where[0] != 0:
            pushed = cls._pushed(inputs, where, given, returned, ctx.like)
        else:
            own = _unit_of_tangent(given[0], inputs[cls.dim_at], unit)
            large = cls._pushed(inputs, (0,), [given[0] / own * unit], returned, ctx.like)
            units = zip(large, cls._of_rows(unit, inputs), cls._of_rows(own, inputs), strict=True)
            pushed = [y / n * m for y, n, m in units]
            if where[1:]:
                pushed = [y + t for y, t in zip(pushed, cls._pushed(inputs, where[1:], given[1:], (), ctx.like), strict=True)]
        return (pushed[0], None) if ctx.several and len(pushed) == 1 else _one_or_all(tuple(pushed))

    @classmethod
    def _pushed(
        cls, inputs: list[Any], where: tuple[int, ...], given: list[Tensor], returned: tuple[Tensor, ...], like: Any
    ) -> Sequence[Tensor]:
        pushed = cls._first_derivative(False, inputs, where, given, returned)
        if pushed is None:
            pushed = pushed_forward(cls.relaxed, inputs, where, given, like)
        return (pushed,) if isinstance(pushed, Tensor) else pushed

    @classmethod
    def _of_rows(cls, unit: Tensor, inputs: list[Any]) -> list[Tensor]:
        """A number for each row of x, for each output."""
        outputs = inputs[-1][4]
        kinds = {"weights": (True,), "values_and_weights": (False, True)}.get(outputs, (False,))
        return [cls.of_rows(unit, inputs[cls.dim_at], weights) for weights in kinds]

    @staticmethod
    def of_rows(unit: Tensor, dim: int, weights: bool) -> Tensor:
        """A number for each row of x, of size 1 along it, in a shape that broadcasts with the values, or the weights."""
        raise NotImplementedError

    @classmethod
    def _first_derivative(
        cls, transposed: bool, inputs: list[Any], where: tuple[int, ...], vectors: Any, returned: tuple[Tensor, ...]
    ) -> Any:
        """The derivative by a closed form; None where there is none."""
        x, constants = inputs[0], inputs[1:]
        if where != (0,) or constants[-1][1] not in cls.closed_methods or any([isinstance(c, Tensor) for c in constants]):  # noqa: C419
            return None
        if can_reuse_buffers():
            small = cls.closed_form(*inputs, *returned)
            return None if small is None else (small.gradient if transposed else small.tangent)(*vectors)
        if in_legacy_vmap():
            return None
        return FirstDerivative.apply(cls.__name__, transposed, tuple(constants), len(returned), x, *returned, *vectors)

    @classmethod
    def vmap(cls, info: VmapInfo, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        x, x_dim = args[0], in_dims[0]
        x = x.expand(info.batch_size, *x.shape) if x_dim is None else x.movedim(x_dim, 0)
        # One number per sample, broadcast against the rows.
        rest = [
            # torch's own dispatcher passes a tuple of None for a tuple.
            a if not isinstance(d, int) else a.movedim(d, 0).reshape(info.batch_size, *(1,) * (x.ndim - a.ndim), *a.shape[1:])
            for a, d in zip(args[1:], in_dims[1:], strict=True)
        ]
        output = cls.apply(x, *rest)
        return output, 0 if isinstance(output, Tensor) else (0,) * len(output)


class FirstDerivative(Function):
    """The derivative of an order statistic with respect to its first input, times vectors: cotangents, or a tangent.

    An operator, so that every transform passes it on until rows are plain and closed forms apply. Its own derivatives are those
    of the relaxation, with respect to the first input and the vectors. The first ``num_cached`` of ``tensors`` are outputs of the
    operator that spare a computation: the function does not depend on them.
    """

    @staticmethod
    def forward(name: str, transposed: bool, constants: Any, num_cached: int, x: Tensor, *tensors: Tensor) -> Any:
        operator, vectors = _OPERATORS[name], tensors[num_cached:]
        small = operator.closed_form(x, *constants, *tensors[:num_cached])
        if small is not None:
            y = (small.gradient if transposed else small.tangent)(*vectors)
        else:
            y = _general(operator, transposed, constants)(x, *vectors)
        return clone_if_view(y) if isinstance(y, Tensor) else tuple([clone_if_view(v) for v in y])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        name, transposed, constants, num_cached, x, *tensors = inputs
        ctx.function, ctx.num_cached = _general(_OPERATORS[name], transposed, constants), num_cached
        ctx.like = [(v.shape, v.dtype) for v in ((output,) if isinstance(output, Tensor) else output)]
        ctx.save_for_backward(x, *tensors[num_cached:])
        ctx.save_for_forward(x, *tensors[num_cached:])

    @staticmethod
    def vjp(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        needs = _without_cached(ctx.needs_input_grad[4:], ctx.num_cached)
        where = tuple([i for i, needed in enumerate(needs) if needed])
        tensors, given = ctx.saved_tensors, _one_or_all(cotangents)
        found = iter(pulled_back(ctx.function, tensors, where, given))
        gradients = [next(found) if i in where else None for i in range(len(tensors))]
        return None, None, None, None, gradients[0], *[None] * ctx.num_cached, *gradients[1:]

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, ___: None, ____: None, *tangents: Any) -> Any:
        tangents = _without_cached(tangents, ctx.num_cached)
        where = tuple([i for i, t in enumerate(tangents) if t is not None])
        return pushed_forward(ctx.function, ctx.saved_tensors, where, [tangents[i] for i in where], ctx.like)

    @staticmethod
    def vmap(
        info: VmapInfo, in_dims: tuple[Any, ...], name: str, transposed: bool, constants: Any, num_cached: int, *tensors: Any
    ) -> Any:
        dims = in_dims[4:]
        batched = [
            t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0) for t, d in zip(tensors, dims, strict=True)
        ]
        output = FirstDerivative.apply(name, transposed, constants, num_cached, *batched)
        return output, 0 if isinstance(output, Tensor) else (0,) * len(output)


def _without_cached(values: tuple[Any, ...], num_cached: int) -> tuple[Any, ...]:
    """The values for the first input and the vectors alone."""
    return values[0], *values[1 + num_cached :]


_OPERATORS: dict[str, type[OrderStatistic]] = {}


def _one_or_all(values: Any) -> Any:
    """The return value of a function: one tensor, or a tuple of several."""
    return values if len(values) > 1 else values[0]


def _general(operator: type[OrderStatistic], transposed: bool, constants: Any) -> Callable[..., Any]:
    """The derivative through the relaxation, as a differentiable function of the first input and the vectors."""

    def derivative(x: Tensor, *vectors: Any) -> Any:
        inputs = (x, *constants)
        if transposed:
            return pulled_back(operator.relaxed, inputs, (0,), _one_or_all(vectors))[0]
        y = operator.relaxed(x.detach(), *constants)
        like = [(v.shape, v.dtype) for v in ((y,) if isinstance(y, Tensor) else y)]
        return pushed_forward(operator.relaxed, inputs, (0,), vectors, like)

    return derivative


def _unit(inputs: Sequence[Any], dim_at: int) -> Tensor | None:
    """A power of two for each row whose values are so large that products with them overflow, 1 for other rows; None if no row
    needs one. The derivative of values is linear, so a cotangent is divided by this number and a tangent multiplied.
    """
    x, outputs = inputs[0].detach(), inputs[-1][4]
    root = _ROOTS.get(x.dtype)
    if root is None or outputs in ("weights", "ranks") or surely(x.numel() == 0):
        return None
    if can_look(x):
        low, high = torch.aminmax(x)
        if -root <= low.item() and high.item() <= root:
            return None
    size = x.abs()
    size = torch.where(size == torch.inf, 0, size).amax(inputs[dim_at], keepdim=True)
    return torch.where(size > root, torch.full_like(size, root), 1)


def _unit_of_tangent(t: Tensor, dim: int, unit: Tensor) -> Tensor:
    """A power of two for each row of a tangent, 1 for small tangents; 1 in torch's legacy vmap, which cannot detach."""
    if in_legacy_vmap():
        return torch.ones_like(unit)
    size = t.detach().abs().amax(dim, keepdim=True)
    return torch.where(size > 1, torch.exp2(torch.log2(size).floor()), 1)


# The square roots of the largest numbers. Products of float16 numbers are those of float32, and do not overflow.
_ROOTS = {torch.bfloat16: 2.0**64, torch.float32: 2.0**64, torch.float64: 2.0**512}


def relax(x: Tensor, softness: Softness, dim: int, options: Options) -> tuple[Method, Rows]:
    """The method and its rows; for the derivative of a hard value, infinities among the values are replaced."""
    mode, method, standardize, gated_grad, outputs, hard = options
    rows = make_rows(x, softness, dim, mode, standardize)
    if hard and outputs not in _METHODS_WITH:
        rows = with_finite_values(rows)
    return METHODS[method], rows if gated_grad else with_constant_weights(rows)


def canonicalize_args(name: str, x: Any, dim: Any, softness: Any, options: Options, nonempty: bool = False) -> tuple[Tensor, int]:
    """The arguments that all order statistics share, checked: the tensor with at least one dimension, and ``dim`` from the end.

    ``nonempty``: a row must have an element.
    """
    mode, method, _, gated_grad, outputs, _ = options
    methods = _METHODS_WITH.get(outputs, SORT_METHODS)
    # Fast path for the common arguments, in a microsecond.
    if not (
        softness.__class__ is float
        and method in methods
        and isinstance(x, Tensor)
        and x.is_floating_point()
        and mode in MODES
        and 0.0 < softness < _INFINITY
    ):
        laplace = LAPLACE_METHODS.get(name.removesuffix("_st"), ())
        check(name, x, softness, mode, ANY_STEP_MODES if laplace else MODES)
        if laplace and method == "lapsum" and mode != "laplace":
            raise ValueError(f"{name}: `mode` must be 'laplace' for the method 'lapsum', got {mode!r}.")
        checks.choice(name, "method", method, laplace if mode == "laplace" else methods)
        if isinstance(softness, Tensor) and softness.ndim:
            raise ValueError(
                f"{name}: `softness` must be a number or a tensor without dimensions, got shape {tuple(softness.shape)}."
            )
        x = floating(x)
    if dim is None:
        x, dim = x if x.ndim == 1 else reshaped(x, (x.numel(),)), -1
    elif dim.__class__ is int and -x.ndim <= dim < x.ndim:
        dim = dim - x.ndim if dim >= 0 else dim
    else:
        checks.dim(name, dim, x.ndim)
        if isinstance(dim, (tuple, list)):
            raise TypeError(f"{name}: `dim` must be an integer or None, got {dim!r}.")
        x, dim = (x, dim - x.ndim if dim >= 0 else dim) if x.ndim else (x.reshape(1), -1)
    if nonempty and not holds(x.shape[dim] != 0):
        raise ValueError(f"{name}: `x` must have at least one element along `dim`, got shape {tuple(x.shape)}.")
    if not gated_grad and mode != "hard" and method not in WEIGHTED_SUM_METHODS:
        raise ValueError(
            f"{name}: `gated_grad` must be True for the method {method!r}, whose values are not weighted sums, got {gated_grad}."
        )
    return x, dim


_INFINITY = float("inf")
_METHODS_WITH = {"weights": PERMUTATION_METHODS, "ranks": RANK_METHODS}
