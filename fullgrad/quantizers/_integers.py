"""The arithmetic of a grid of integers: codes, values, residuals, and where the gradient passes."""

import functools
import math
from typing import Any, cast

import torch
from torch import Tensor

from fullgrad._core.buffers import constant
from fullgrad._core.function import out_buffer
from fullgrad._core.neighbors import rounded
from fullgrad._core.opmath import HALF
from fullgrad._core.pieces import chunked, in_pieces
from fullgrad._core.windows import between, where_between
from fullgrad._dispatch import can_reuse_buffers, is_known
from fullgrad.quantizers._arguments import compute_dtype, expanded
from fullgrad.quantizers._arithmetic import divided, first_and_last, in_dtype, reciprocal_number, to_compute
from fullgrad.rounding._modes import round_to_integer


def value(
    x: Tensor,
    scale: Any,
    zero_point: Any,
    quant_min: int,
    quant_max: int,
    rounding: str,
    reciprocal: bool,
    round_zero_point: bool,
    noise: Tensor | None,
) -> Tensor:
    """The value in the dtype of the computation.

    Where the zero point is an integer, ``clamp(r + z) - z`` is a clamp of ``r`` between other bounds. Adding 0 turns
    -0.0 into 0.0.
    """
    if scale.__class__ is float and zero_point.__class__ is int and round_zero_point and noise is None:
        low, high = quant_min - zero_point, quant_max - zero_point
        if x.is_cpu and rounding == "half_even" and can_reuse_buffers():
            factor = reciprocal_number(scale, x.dtype) if reciprocal else scale
            y = (torch.mul if reciprocal else torch.div)(x, constant(factor, x.dtype))
            return torch.add(constant(0.0, x.dtype), y.round_().clamp_(low, high), alpha=scale, out=y)
        r = torch.clamp(round_to_integer(_scaled(x, scale, reciprocal), rounding), low, high)
        return r * scale + 0.0
    x, scale, zero_point = to_compute(expanded(x, scale, zero_point, noise), scale, zero_point)
    z = _zero_point(zero_point, quant_min, quant_max, round_zero_point)
    r = _rounded(_scaled(x, scale, reciprocal), z, rounding, round_zero_point, noise, fresh=True)
    r = torch.clamp(r, quant_min, quant_max, out=out_buffer(r))
    if not _is_zero(z):
        r = torch.sub(r, z, out=out_buffer(r))
    return torch.mul(r, scale, out=out_buffer(r))


def residual(
    x: Tensor,
    scale: Any,
    zero_point: Any,
    quant_min: int,
    quant_max: int,
    inside: str,
    rounding: str,
    reciprocal: bool,
    round_zero_point: bool,
    noise: Tensor | None,
) -> Tensor:
    """:math:`D_s` in the dtype of the computation."""
    v = _scaled(expanded(x, scale, zero_point, noise), scale, reciprocal)
    z = _zero_point(zero_point, quant_min, quant_max, round_zero_point)
    r = _rounded(v, z, rounding, round_zero_point, noise, fresh=False)
    if inside != "all":
        inner = r if inside == "rounded" else v + z
        v = where_between(v, inner, float(quant_min), float(quant_max))
    q = torch.clamp(r, quant_min, quant_max, out=out_buffer(r))
    if not _is_zero(z):
        q = torch.sub(q, z, out=out_buffer(q))
    return torch.sub(q, v, out=out_buffer(q))


def _scaled(x: Tensor, scale: Any, reciprocal: bool) -> Tensor:
    if not reciprocal:
        return divided(x, scale)
    if is_known(scale):
        return x * reciprocal_number(scale, x.dtype)
    return x * (scale if isinstance(scale, Tensor) else torch.full((), scale, dtype=x.dtype, device=x.device)).reciprocal()


def _zero_point(zero_point: Any, quant_min: int, quant_max: int, is_rounded: bool) -> Any:
    if is_rounded and isinstance(zero_point, Tensor):
        return torch.clamp(torch.round(zero_point), quant_min, quant_max)
    return zero_point


def _is_zero(z: Any) -> bool:
    """Whether a zero point is the number 0, the common case, which saves a kernel."""
    return z.__class__ is int and z == 0


def _rounded(v: Tensor, z: Any, rounding: str, round_zero_point: bool, noise: Tensor | None, fresh: bool) -> Tensor:
    """The code before the clamp. Adding 0 turns -0.0 into 0.0, as in torch. ``fresh``: whether ``v`` may be overwritten."""
    if round_zero_point:
        r = round_to_integer(v, rounding, noise, out_buffer(v) if fresh else None)
        return torch.add(r, z, out=out_buffer(r))
    r = torch.add(v, z, out=out_buffer(v) if fresh else None)
    return round_to_integer(r, rounding, noise, out_buffer(r))


def _in_range_of(
    x: Tensor,
    scale: Any,
    zero_point: Any,
    quant_min: int,
    quant_max: int,
    inside: str,
    rounding: str,
    reciprocal: bool,
    round_zero_point: bool,
    noise: Tensor | None,
) -> Tensor:
    """The code that is in the range where the gradient passes, rounded or exact."""
    x, scale, zero_point = [t.detach() if isinstance(t, Tensor) else t for t in (x, scale, zero_point)]
    x, scale, zero_point = to_compute(expanded(x, scale, zero_point, noise), scale, zero_point)
    v, z = _scaled(x, scale, reciprocal), _zero_point(zero_point, quant_min, quant_max, round_zero_point)
    if inside == "exact":
        return v if _is_zero(z) else v + z
    return _code_without_out(v, z, rounding, round_zero_point, noise)


def _code_without_out(v: Tensor, z: Any, rounding: str, round_zero_point: bool, noise: Tensor | None) -> Tensor:
    """The code for use in rules, in new memory; their comparisons ignore the sign of a zero."""
    if _is_zero(z):
        return round_to_integer(v, rounding, noise)
    return round_to_integer(v, rounding, noise) + z if round_zero_point else round_to_integer(v + z, rounding, noise)


def is_in_range(x: Tensor, scale: Any, zero_point: Any, quant_min: int, quant_max: int, *options: Any) -> Tensor:
    return between(_in_range_of(x, scale, zero_point, quant_min, quant_max, *options), quant_min, quant_max)


_NUMBERS = {int, float}


def pass_in_range(g: Tensor, x: Tensor, scale: Any, zero_point: Any, quant_min: int, quant_max: int, *options: Any) -> Tensor:
    """``g`` where the code is in the range, else 0."""
    inside, rounding, reciprocal, round_zero_point, noise = options
    if inside == "all":
        return g
    # Numbers that vary in compiled code have other classes.
    are_known = is_known(scale) and quant_min.__class__ is int and quant_max.__class__ is int
    if are_known and zero_point.__class__ in _NUMBERS and (rounding == "half_even" or inside == "exact"):
        args = (scale, zero_point, quant_min, quant_max, inside == "exact", reciprocal, round_zero_point)
        return where_between(g, x, *_first_and_last(x.dtype, *args))
    low, high = float(quant_min), float(quant_max)

    def formula(g: Tensor, x: Tensor, scale: Any, zero_point: Any, noise: Tensor | None) -> tuple[Tensor]:
        return (
            where_between(
                g,
                _in_range_of(x, scale, zero_point, quant_min, quant_max, inside, rounding, reciprocal, round_zero_point, noise),
                low,
                high,
            ),
        )

    if g.dtype not in HALF:
        return in_pieces(lambda g, *rest: formula(g, *rest)[0], g, x, scale, zero_point, noise)
    pieces = chunked(formula, [(g.shape, g.dtype)], g, x, scale, zero_point, noise)
    return formula(g.float(), x, scale, zero_point, noise)[0].to(g.dtype) if pieces is None else pieces[0]


@functools.lru_cache(maxsize=1024)
def _first_and_last(
    dtype: torch.dtype,
    scale: float,
    zero_point: float,
    quant_min: int,
    quant_max: int,
    exact: bool,
    reciprocal: bool,
    round_zero_point: bool,
) -> tuple[float, float]:
    """The first and the last number of ``dtype`` in the range, in the arithmetic of the value, which is monotone: two numbers
    instead of four operations.
    """
    to, computed = in_dtype(dtype), compute_dtype(dtype)
    inverse, scale = reciprocal_number(scale, computed), rounded(scale, computed)

    def code(x: float) -> float:
        v = to(x * inverse) if reciprocal else to(x / scale)
        if exact or math.isinf(v):
            return to(v + zero_point)
        return to(round(v) + zero_point) if round_zero_point else _round(to(v + zero_point))

    return first_and_last(dtype, code, quant_min, quant_max)


def _round(v: float) -> float:
    return v if math.isinf(v) else cast("float", round(v))
