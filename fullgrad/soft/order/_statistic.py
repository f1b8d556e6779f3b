"""`OrderStatistic`: the rules of every order statistic and its straight-through version, written once."""

from typing import Any

from torch import Tensor

from fullgrad import _checks
from fullgrad._dispatch import VmapInfo, clone_if_view
from fullgrad._function import Function
from fullgrad._inputs import save_inputs, saved_inputs
from fullgrad._recompute import pulled_back, pushed_forward
from fullgrad.soft._mode_names import MODES
from fullgrad.soft._relaxation import Softness, check, floating
from fullgrad.soft.order._outputs import Outputs
from fullgrad.soft.order._rows import Rows, make_rows, with_constant_weights, with_finite_values
from fullgrad.soft.order.methods import METHODS, PERMUTATION_METHODS, RANK_METHODS, SORT_METHODS, WEIGHTED_SUM_METHODS, Method

# The last input of every operator: mode, method, standardize, gated_grad, outputs, and whether the value is that of the hard
# operator. A plain tuple, which costs a small call nothing.
Options = tuple[str, str, bool, bool, Outputs, bool]


class OrderStatistic(Function):
    r"""A function of a tensor along a dimension, a softness and constants, with the derivative of its relaxation.

    A subclass gives ``relaxed(*inputs)``, plain differentiable code, and ``forward(*inputs)``, which is that or, where the
    options, the last input, say so, the hard operator. A derivative calls ``relaxed`` with the inputs, which alone are saved; it
    is built on the projections, whose rules are explicit, and so derivatives of any order are its own.

    ``dim`` is counted from the end, so that a batch in front changes nothing.
    """

    @staticmethod
    def relaxed(*args: Any) -> Any:
        raise NotImplementedError

    @staticmethod
    def closed_form(*args: Any) -> Any:
        """The relaxation of small rows, whose first derivative needs no recording; None where there is none."""

    @classmethod
    def soft_forward(cls, *args: Any) -> Any:
        """The relaxation as a value."""
        small = cls.closed_form(*args)
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
        else:  # the tensor alone, as almost always
            x, *ctx.constants = inputs
            ctx.save_for_backward(x)
            ctx.save_for_forward(x)

    @staticmethod
    def _inputs(ctx: Any) -> list[Any]:
        saved = ctx.saved_tensors
        return [*saved, *ctx.constants] if len(saved) == 1 else saved_inputs(ctx)

    @classmethod
    def vjp(cls, ctx: Any, *cotangents: Any) -> tuple[Tensor | None, ...]:
        inputs = cls._inputs(ctx)
        where = tuple([i for i, needed in enumerate(ctx.needs_input_grad) if needed])
        given: Any = cotangents[: len(ctx.like)]
        small = cls.closed_form(*inputs) if where == (0,) else None
        if small is not None:
            return small.gradient(*given), *[None] * (len(inputs) - 1)
        found = iter(pulled_back(cls.relaxed, inputs, where, given if len(given) > 1 else given[0]))
        return tuple([next(found) if i in where else None for i in range(len(inputs))])

    @classmethod
    def jvp(cls, ctx: Any, *tangents: Any) -> Any:
        where = tuple([i for i, t in enumerate(tangents) if t is not None])
        pushed = pushed_forward(cls.relaxed, cls._inputs(ctx), where, [tangents[i] for i in where], ctx.like)
        return (pushed, None) if ctx.several and isinstance(pushed, Tensor) else pushed

    @classmethod
    def vmap(cls, info: VmapInfo, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        x, x_dim = args[0], in_dims[0]
        x = x.expand(info.batch_size, *x.shape) if x_dim is None else x.movedim(x_dim, 0)
        # A number for each sample, against rows.
        rest = [
            # torch's own dispatcher gives a tuple of None for a tuple.
            a if not isinstance(d, int) else a.movedim(d, 0).reshape(info.batch_size, *(1,) * (x.ndim - a.ndim), *a.shape[1:])
            for a, d in zip(args[1:], in_dims[1:], strict=True)
        ]
        output = cls.apply(x, *rest)
        return output, 0 if isinstance(output, Tensor) else (0,) * len(output)


def relax(x: Tensor, softness: Softness, dim: int, options: Options) -> tuple[Method, Rows]:
    """The method, and the rows that it works on; for the derivative of a hard value without infinities among their values."""
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
    # What almost every call gives is checked first, in a microsecond.
    if not (
        softness.__class__ is float
        and method in methods
        and isinstance(x, Tensor)
        and x.is_floating_point()
        and mode in MODES
        and 0.0 < softness < _INFINITY
    ):
        check(name, x, softness, mode, MODES)
        _checks.choice(name, "method", method, methods)
        if isinstance(softness, Tensor) and softness.ndim:
            raise ValueError(
                f"{name}: `softness` must be a number or a tensor without dimensions, got shape {tuple(softness.shape)}."
            )
        x = floating(x)
    if dim is None:
        x, dim = x if x.ndim == 1 else x.reshape(-1), -1
    elif dim.__class__ is int and -x.ndim <= dim < x.ndim:
        dim = dim - x.ndim if dim >= 0 else dim
    else:
        _checks.dim(name, dim, x.ndim)
        if isinstance(dim, (tuple, list)):
            raise TypeError(f"{name}: `dim` must be an integer or None, got {dim!r}.")
        x, dim = (x, dim - x.ndim if dim >= 0 else dim) if x.ndim else (x.reshape(1), -1)
    if nonempty and x.shape[dim] == 0:
        raise ValueError(f"{name}: `x` must have at least one element along `dim`, got shape {tuple(x.shape)}.")
    if not gated_grad and mode != "hard" and method not in WEIGHTED_SUM_METHODS:
        raise ValueError(
            f"{name}: `gated_grad` must be True for the method {method!r}, whose values are no weighted sums, got {gated_grad}."
        )
    return x, dim


_INFINITY = float("inf")
_METHODS_WITH = {"weights": PERMUTATION_METHODS, "ranks": RANK_METHODS}
