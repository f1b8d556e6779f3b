"""`OrderStatistic`: the rules of every order statistic and its straight-through version, written once."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.fast import replaceable
from fullgrad._core.function import Function
from fullgrad._core.recomputed import pulled_back, pushed_forward, save_inputs, saved_inputs
from fullgrad._core.shards import reshaped
from fullgrad._core.warn import warn_of_long_rows
from fullgrad._dispatch import VmapInfo, clone_if_view, holds, surely
from fullgrad.soft._mode_names import ANY_STEP_MODES, MODES
from fullgrad.soft._relaxation import Softness, check, floating
from fullgrad.soft.order._outputs import Outputs
from fullgrad.soft.order._rows import Rows, make_rows, with_constant_weights, with_finite_values
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
# The positions of some inputs; and a derivative with respect to them, of vectors.
Where = tuple[int, ...]
Derivative = Callable[[Where, Sequence[Tensor]], tuple[Tensor, ...]]


class OrderStatistic(Function):
    r"""A function of a tensor along a dimension, a softness and constants, with the derivative of its relaxation.

    A subclass defines ``relaxed(*inputs)``, plain differentiable code, and ``forward(*inputs)``, the value of ``relaxed`` or,
    where the options, the last input, say so, of the hard operator. A derivative calls ``relaxed`` with the saved inputs; as
    ``relaxed`` is built on projections with explicit rules, derivatives of every order follow.

    ``dim`` is counted from the end, so that a batch in front changes nothing.
    """

    whole_dims = "dim"
    # The position of the dimension among the inputs.
    dim_at: ClassVar[int] = 2
    relaxed: ClassVar[Callable[..., Any]]
    # A number for each row of x, of size 1 along ``dim``, in a shape that broadcasts with the values, or with the weights:
    # a function of (unit, dim, weights).
    of_rows: ClassVar[Callable[[Tensor, int, bool], Tensor]]

    @staticmethod
    def raises_by_numbers(*args: Any) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether numbers can raise: a transport plan may not converge, for a straight-through estimator in its backward."""
        return args[-1][1] == "ot"

    @classmethod
    def soft_forward(cls, *args: Any) -> Any:
        """The relaxation as a value."""
        y = relaxed_value(cls, *args)
        return clone_if_view(y) if isinstance(y, Tensor) else tuple([clone_if_view(v) for v in y])

    @classmethod
    def setup_context(cls, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        outputs = (output,) if isinstance(output, Tensor) else output
        ctx.several, ctx.like = len(outputs) > 1, [(v.shape, v.dtype) for v in outputs if v.is_floating_point()]
        if len(ctx.like) < len(outputs):
            ctx.mark_non_differentiable(outputs[-1])  # the indices
        if any([isinstance(v, Tensor) for v in inputs[1:]]):  # noqa: C419  # on the hot path
            save_inputs(ctx, inputs)
            ctx.alone = False
        else:  # x is the only tensor, as in almost every call
            x, *ctx.constants = inputs
            ctx.alone = True
            saved = (x, output) if cls.saves_value(output, ctx.constants[-1]) else (x,)
            ctx.save_for_backward(*saved)
            ctx.save_for_forward(*saved)

    @classmethod
    def saves_value(cls, output: Any, options: Options) -> bool:
        """Whether the value is saved, too, and given to the derivative."""
        return False

    @staticmethod
    def _saved(ctx: Any) -> tuple[list[Any], tuple[Tensor, ...]]:
        """The inputs, and the output if it was saved."""
        if not ctx.alone:
            return saved_inputs(ctx), ()
        x, *value = ctx.saved_tensors
        return [x, *ctx.constants], tuple(value)

    @classmethod
    def vjp(cls, ctx: Any, *cotangents: Any) -> tuple[Tensor | None, ...]:
        inputs, value = cls._saved(ctx)
        where = tuple([i for i, needed in enumerate(ctx.needs_input_grad) if needed])
        parts = iter(pulled(cls, inputs, where, cotangents[: len(ctx.like)], value))
        return tuple([next(parts) if i in where else None for i in range(len(inputs))])

    @classmethod
    def jvp(cls, ctx: Any, *tangents: Any) -> Any:
        inputs, value = cls._saved(ctx)
        where = tuple([i for i, t in enumerate(tangents) if t is not None])
        moved = pushed(cls, inputs, where, [tangents[i] for i in where], value, ctx.like)
        return (moved[0], None) if ctx.several and len(moved) == 1 else one_or_all(moved)

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


@replaceable
def relaxed_value(operator: type[OrderStatistic], *inputs: Any) -> Any:
    """The value of the relaxation."""
    return operator.relaxed(*inputs)


@replaceable
def pulled(
    operator: type[OrderStatistic], inputs: list[Any], where: Where, cotangents: Sequence[Tensor], value: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """The gradients of the inputs at ``where``; ``value`` is the value of the operator, if it was saved."""

    def pull(where: Where, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return pulled_back(operator.relaxed, inputs, where, one_or_all(given))

    return pulled_in_units(operator, pull, inputs, where, cotangents)


@replaceable
def pushed(
    operator: type[OrderStatistic], inputs: list[Any], where: Where, tangents: Sequence[Tensor], value: Any, like: Any
) -> tuple[Tensor, ...]:
    """The tangents of the outputs, from tangents of the inputs at ``where``; ``like`` has their shapes and dtypes."""

    def push(where: Where, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        y = pushed_forward(operator.relaxed, inputs, where, given, like)
        return (y,) if isinstance(y, Tensor) else tuple(y)

    return pushed_in_units(operator, push, inputs, where, tangents)


def pulled_in_units(
    operator: type[OrderStatistic], pull: Derivative, inputs: list[Any], where: Where, cotangents: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """The gradients by ``pull``, whose products do not overflow: it is linear, so cotangents are divided by the units."""
    unit = _unit(inputs, operator.dim_at) if where[0] == 0 else None
    if unit is None:
        return pull(where, cotangents)
    small = tuple([g / n for g, n in zip(cotangents, _of_rows(operator, unit, inputs), strict=True)])
    return pull((0,), small)[0] * unit, *(pull(where[1:], cotangents) if where[1:] else ())


def pushed_in_units(
    operator: type[OrderStatistic], push: Derivative, inputs: list[Any], where: Where, tangents: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """The tangents by ``push``, whose products do not overflow: tangents are multiplied by the units."""
    unit = _unit(inputs, operator.dim_at) if where[0] == 0 else None
    if unit is None:
        return push(where, tangents)
    own = _unit_of_tangent(tangents[0], inputs[operator.dim_at])
    units = [_of_rows(operator, n, inputs) for n in (unit, own)]
    moved = tuple([y / n * m for y, n, m in zip(push((0,), [tangents[0] / own * unit]), *units, strict=True)])
    if where[1:]:
        moved = tuple([y + t for y, t in zip(moved, push(where[1:], tangents[1:]), strict=True)])
    return moved


def saves_weights(output: Any, options: Options, methods: tuple[str, ...]) -> bool:
    """Whether weights by these methods are saved: in smooth mode their derivative is a function of themselves. Large rows have no
    closed form that would read them.
    """
    mode, method, standardize, _, outputs, hard = options
    soft = outputs == "weights" and mode == "smooth" and method in methods and standardize and not hard
    return soft and output.dtype.itemsize > 2 and surely(output.numel() <= _LARGEST_SAVED)


# Weights of up to this many elements are saved.
_LARGEST_SAVED = 2**20


def one_or_all(values: Any) -> Any:
    """The return value of a function: one tensor, or a tuple of several."""
    return values if len(values) > 1 else values[0]


def _of_rows(operator: type[OrderStatistic], unit: Tensor, inputs: list[Any]) -> list[Tensor]:
    """A number for each row of x, for each output."""
    kinds = {"weights": (True,), "values_and_weights": (False, True)}.get(inputs[-1][4], (False,))
    return [operator.of_rows(unit, inputs[operator.dim_at], weights) for weights in kinds]


def _unit(inputs: Sequence[Any], dim_at: int) -> Tensor | None:
    """A power of two for each row whose values are so large that products with them overflow, 1 for other rows; None where no
    value is multiplied.
    """
    x, outputs = inputs[0].detach(), inputs[-1][4]
    root = _ROOTS.get(x.dtype)
    if root is None or outputs in ("weights", "ranks") or surely(x.numel() == 0):
        return None
    size = x.abs()
    size = torch.where(size == torch.inf, 0, size).amax(inputs[dim_at], keepdim=True)
    return torch.where(size > root, torch.full_like(size, root), 1)


def _unit_of_tangent(t: Tensor, dim: int) -> Tensor:
    """A power of two for each row of a tangent, 1 for small tangents; a constant, as the slope of the floor is 0."""
    return torch.exp2(torch.log2(t.abs().amax(dim, keepdim=True).clamp(min=1)).floor())


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
    mode, method, standardize, gated_grad, outputs, _ = options
    methods = _METHODS_WITH.get(outputs, SORT_METHODS)
    # Fast path for the common arguments, in a microsecond.
    if not (
        softness.__class__ is float
        and method in methods
        and isinstance(x, Tensor)
        and x.is_floating_point()
        and mode in MODES
        and (softness > 0.0) is True  # as in `checks`
        and (softness < _INFINITY) is True
        and standardize.__class__ is bool
        and gated_grad.__class__ is bool
    ):
        checks.flag(name, "standardize", standardize)
        checks.flag(name, "gated_grad", gated_grad)
        laplace = LAPLACE_METHODS.get("rank" if outputs == "ranks" else name.removesuffix("_st"), ())
        check(name, x, softness, mode, ANY_STEP_MODES if laplace else MODES)
        if laplace and method == "lapsum" and mode != "laplace":
            raise ValueError(f"{name}: `mode` must be 'laplace' for the method 'lapsum', got {mode!r}.")
        checks.choice(name, "method", method, laplace if mode == "laplace" else dict.fromkeys((*methods, *laplace)))
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
    # The weights of all places take as long in any method, and those of a place no pairs in smooth mode.
    if method == "neuralsort" and mode != "hard" and not name.startswith(_WITHOUT_PAIRS.get(mode, "argsort")):
        indices = " and `return_indices=False`" if "sort" in name and outputs == "values_and_weights" else ""
        warn_of_long_rows(
            name, x, dim, _LONG, options[-1], f"'neuralsort' compares all pairs{{}}; give `method='softsort'`{indices}"
        )
    return x, dim


_LONG = 4096
_WITHOUT_PAIRS = {"smooth": ("arg", "max", "min", "median", "quantile", "topk")}
_INFINITY = float("inf")
_METHODS_WITH = {"weights": PERMUTATION_METHODS, "ranks": RANK_METHODS}
