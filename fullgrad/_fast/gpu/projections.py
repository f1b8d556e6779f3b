"""Projections onto the simplex and its slices by kernels: how `thresholds` is reached, one operator for all of them."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fullgrad._core.fast import on_gpu
from fullgrad._core.recomputed import Recomputed, pulled_back, pushed_forward, saved_inputs
from fullgrad._dispatch import is_tracing
from fullgrad._fast.gpu import LONGEST_OF_SQUARES, is_served, run
from fullgrad.soft.order._numbers import POWERS
from fullgrad.soft.order.kernels.isotonic import isotonic
from fullgrad.soft.order.kernels.threshold import simplex_excess
from fullgrad.soft.order.projections.simplex import simplex_of
from fullgrad.soft.simplex._capped_simplex import capped_of
from fullgrad.soft.simplex._entmax import MODES, entmax_of, per_row
from fullgrad.soft.simplex._normmax import normmax_of
from fullgrad.soft.simplex._topk_mask_st import TopKMaskST, topk_mask_of
from fullgrad.soft.simplex.kernels.capped_simplex import capped_simplex_pivot, centered
from fullgrad.soft.simplex.kernels.threshold import entmax_weights, entmax_weights_by_number, normmax_weights

# The formula of each family, a function of rows, their number and options (mode, softness), and what is added to the number.
_FORMULAS: dict[str, Callable[..., Tensor]] = {
    "simplex": lambda x, _, mode, softness: simplex_of.__wrapped__(x, -1, softness, mode),
    "entmax": lambda x, alpha, *_: entmax_of.__wrapped__(x, alpha, -1),
    "normmax": lambda x, alpha, *_: normmax_of.__wrapped__(x, alpha, -1),
    "capped": lambda x, k, mode, softness: capped_of.__wrapped__("proj_capped_simplex", x, k, -1, softness, mode),
    "topk": lambda x, k, mode, softness: TopKMaskST.relaxed(x, softness, k, mode),
}
_MORE = {"entmax": -1.0, "normmax": -1.0}


def _formula(x: Tensor, a: Any, family: str, mode: str, softness: float) -> Tensor:
    return _FORMULAS[family](x, a, mode, softness)


def _by_kernel(what: str, x: Tensor, a: Any, family: str, mode: str, softness: float, v: Tensor | None = None) -> Any:
    return run("thresholds", x, what, a, family, mode, softness, v, _MORE.get(family, 0.0))


class Projection(Recomputed):
    """A projection of rows with a number, of one kernel for the value and one for the first derivative. Saved: the inputs."""

    relaxed = staticmethod(_formula)

    @staticmethod
    def forward(x: Tensor, a: Any, family: str, mode: str, softness: float) -> Tensor:
        if family == "topk":
            found = run("thresholds", x, "mask", x.topk(a, sorted=False).indices) if a else NotImplemented
            return TopKMaskST.forward(x, softness, a, mode) if found is NotImplemented else found
        found = _by_kernel("value", x, a, family, mode, softness)
        return _formula(x, a, family, mode, softness) if found is NotImplemented else found

    @classmethod
    def vjp(cls, ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        inputs = saved_inputs(ctx)
        if is_tracing():
            return super().vjp(ctx, g)
        found = Derivative.apply(*inputs[:2], g, *inputs[2:], ctx.needs_input_grad[1])
        by_x, by_number = (found, None) if isinstance(found, Tensor) else found
        return by_x if ctx.needs_input_grad[0] else None, by_number, None, None, None

    @classmethod
    def jvp(cls, ctx: Any, t: Any, t_a: Any, *_: Any) -> Tensor:
        inputs = saved_inputs(ctx)
        if t is None or is_tracing():
            return super().jvp(ctx, t, t_a, *_)
        moved = Derivative.apply(*inputs[:2], t, *inputs[2:], False)
        return moved if t_a is None else moved + pushed_forward(_formula, inputs, (1,), [t_a], ctx.like)


class Derivative(Recomputed):
    """The derivative of a projection with respect to its rows, which is symmetric, times v; with ``both``, also that of each row
    with respect to its number. Its own derivatives are those of the formulas."""

    @staticmethod
    def forward(x: Tensor, a: Any, v: Tensor, family: str, mode: str, softness: float, both: bool) -> Any:
        found = _by_kernel("both" if both else "along", x, a, family, mode, softness, v.to(x.dtype))
        return Derivative.relaxed(x, a, v, family, mode, softness, both) if found is NotImplemented else found

    @staticmethod
    def relaxed(x: Tensor, a: Any, v: Tensor, family: str, mode: str, softness: float, both: bool) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        a = a.expand(*x.shape[:-1], 1) if both else a
        found = pulled_back(_formula, (x, a, family, mode, softness), (0, 1) if both else (0,), v)
        return found if both else found[0]


def _projected(x: Tensor, dim: int, a: Any, family: str, mode: str = "c0", softness: Any = 1.0) -> Any:
    """The projection along a dimension, if there is a kernel for it."""
    if not x.ndim or softness.__class__ is not float or not is_served(x, x.shape[dim]):
        return NotImplemented
    if isinstance(a, Tensor) and (a.device != x.device or a.dtype != x.dtype):
        return NotImplemented
    return Projection.apply(x.movedim(dim, -1), a, family, mode, softness).movedim(-1, dim)


@on_gpu(simplex_of)
def _simplex(x: Tensor, dim: int, softness: Any, mode: str) -> Any:
    return _projected(x, dim, 0.0, "simplex", mode, softness) if mode in POWERS else NotImplemented


@on_gpu(entmax_of)
def _entmax(x: Tensor, alpha: Any, dim: int) -> Any:
    if isinstance(alpha, Tensor):
        return _projected(x, dim, per_row("entmax", alpha, x, dim), "entmax") if x.ndim else NotImplemented
    if alpha == 1:
        return NotImplemented
    mode, factor = MODES.get(alpha, ("c0", 1.0))
    return _projected(x, dim, float(alpha), "simplex" if alpha in MODES else "entmax", mode, 1 / factor)


@on_gpu(normmax_of)
def _normmax(x: Tensor, alpha: Any, dim: int) -> Any:
    alpha = per_row("normmax", alpha, x, dim) if isinstance(alpha, Tensor) else float(alpha)
    return _projected(x, dim, alpha, "normmax")


@on_gpu(capped_of)
def _capped(name: str, x: Tensor, k: Any, dim: int, softness: Any, mode: str) -> Any:
    return _projected(x, dim, per_row(name, k, x, dim, "k") if isinstance(k, Tensor) else float(k), "capped", mode, softness)


@on_gpu(topk_mask_of)
def _topk_mask(x: Tensor, softness: Any, k: int, mode: str) -> Any:
    return _projected(x, -1, k, "topk", mode, softness)


# The formulas of larger ones: compiled code, losses, order statistics, derivatives of a higher order.


@on_gpu(isotonic)
def _isotonic(u: Tensor, w: Tensor, mode: str) -> Any:
    is_short = mode in ("c0", "smooth") and is_served(u, u.shape[-1], LONGEST_OF_SQUARES)
    return run("isotonic", u, w, mode) if is_short else NotImplemented


def _part(what: str, family: str) -> Callable[..., Any]:
    def by_kernel(x: Tensor, a: Any, mode: str = "") -> Any:
        return run("thresholds", x, what, a, family, mode) if is_served(x, x.shape[-1]) else NotImplemented

    return by_kernel


on_gpu(simplex_excess)(lambda v, power: _part("excess", "simplex")(v, 0.0, f"c{power - 1}"))
on_gpu(entmax_weights)(_part("value", "entmax"))
on_gpu(entmax_weights_by_number)(_part("value", "entmax"))
on_gpu(normmax_weights)(_part("value", "normmax"))
on_gpu(centered)(_part("excess", "capped"))
on_gpu(capped_simplex_pivot)(_part("pivot", "capped"))
