"""`histogram`: how many elements are in each bin, with soft edges."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.batching import in_front
from fullgrad._core.function import Function
from fullgrad._core.opmath import cast, to_opmath
from fullgrad._core.pieces import pieces_of_rows
from fullgrad._core.recomputed import save_inputs, saved_inputs
from fullgrad._core.shards import reshaped, rows_code
from fullgrad._dispatch import holds, same_shape
from fullgrad.soft import _curves as curves
from fullgrad.soft._mode_names import ANY_STEP_MODES, AnyStepMode
from fullgrad.soft._relaxation import Relaxation, Softness, check, checked_floating, with_zero_derivative

# float32 does not tell more edges apart.
_MOST_BINS = 2**24


def histogram(
    x: Tensor,
    bins: int,
    low: float,
    high: float,
    dim: int | None = None,
    softness: Softness = 0.1,
    mode: AnyStepMode = "smooth",
    weight: Tensor | None = None,
) -> Tensor:
    r"""How many elements are in each of several equal bins, with soft edges.

    .. math::
        h_b = \sum_i w_i \bigl(S(x_i - e_b) - S(x_i - e_{b + 1})\bigr), \qquad e_b = \mathrm{low} + b\,
        \frac{\mathrm{high} - \mathrm{low}}{\mathrm{bins}}, \qquad D_{x_i} = w_i \bigl(S'(x_i - e_b) - S'(x_i - e_{b + 1})\bigr)

    with :math:`S` of :func:`sigmoidal`. An element is counted as often as its softened step is between the edges, so the bins
    together count :math:`\sum_i w_i (S(x_i - \mathrm{low}) - S(x_i - \mathrm{high}))`: elements outside count where they are
    within a few softnesses of an end. Divide by the sum for frequencies. ``"hard"`` is :func:`torch.histc`, in which ``high``
    belongs to the last bin and NaN to none, with the derivative 0 with respect to ``x``; in the other modes NaN gives NaN. Counts
    far from an element are accurate, not the rounding of a difference.

    It is a kernel density whose kernel :math:`S'` is integrated over each bin, and not read at its center. The softness has the
    unit of ``x``; a third of a bin's width blurs neighbors a little. Saved: ``x``, a tensor softness and ``weight``. Long rows
    are computed in pieces; only a derivative that is itself differentiated keeps ``bins`` numbers for each element.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        bins: How many bins, at most 2**24.
        low: The lower edge of the first bin.
        high: The upper edge of the last bin.
        dim: The dimension whose elements are counted; None counts all elements.
        softness: The width of an edge, positive: a number, or a tensor that broadcasts to ``x`` and gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, ``"laplace"`` or ``"hard"``.
        weight: How much each element counts, a tensor that broadcasts to ``x`` and gets its own gradient; None for 1.

    Returns:
        A tensor with ``bins`` elements at ``dim``, the other dimensions those of ``x``; of shape (bins,) where ``dim`` is None.
        Its dtype is that of ``x``.

    Raises:
        TypeError: ``x`` or ``weight`` is not a real tensor, ``bins`` is not an integer, ``low`` or ``high`` not a number, or
            ``softness`` neither a number nor a real tensor.
        ValueError: ``low`` is not less than ``high``, one of them is not finite, ``bins`` is out of its range, ``softness`` is a
            number that is not positive, ``mode`` is unknown, or ``softness`` or ``weight`` does not broadcast to ``x``.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([0.1, 0.2, 0.9, 1.4])
        >>> fullgrad.soft.histogram(x, 3, 0.0, 1.5, softness=0.05)
        tensor([1.8603, 0.8836, 0.9997])
        >>> torch.func.grad(lambda x: fullgrad.soft.histogram(x, 3, 0.0, 1.5, softness=0.05)[0])(x)
        tensor([ 2.0932e+00,  3.0392e-01, -6.7045e-03, -3.0459e-07])

    Source: ``torch.histc``; with Gaussian edges ``relaxed.hist``, https://github.com/gradhep/relaxed; with a kernel at the
    centers ``kornia.enhance.histogram``.
    """
    name = "histogram"
    x, softness = check(name, x, softness, mode, ANY_STEP_MODES)
    bins = checks.positive_integer(name, "bins", bins, _MOST_BINS)
    checks.real_number(name, "low", low)
    checks.real_number(name, "high", high)
    largest = torch.finfo(torch.promote_types(x.dtype, torch.float32)).max
    if not (holds(low < high) and holds(high - low <= largest)):
        raise ValueError(
            f"{name}: `low` must be less than `high`, and both finite, got {low} and {high}; their difference must be at most "
            f"{largest:.4g}."
        )
    if weight is not None:
        weight = cast(checked_floating(name, "weight", weight), x.dtype)
        checks.broadcasts_to(name, "weight", weight, "`x`", x.shape)
    checks.broadcasts_to(name, "softness", softness, "`x`", x.shape)
    if dim is not None:
        checks.one_dim(name, dim, x.ndim)
    if mode == "hard":
        rows = [_rows(v, x.shape, dim) for v in (x, weight)]
        counts = rows_code(
            name, lambda x, *w: _hard(x, w[0] if w else None, bins, low, high), *[v for v in rows if v is not None]
        )
    else:
        rows = [_rows(v, x.shape, dim) for v in (x, softness, weight)]
        counts = Histogram.apply(*rows, bins, low, high, mode)
    return counts if dim is None or x.ndim == 0 else counts.movedim(-1, dim)


class Histogram(Function):
    """The operator of :func:`histogram`, on rows; other tensors broadcast to ``x``, in front of it too."""

    whole_dims = 1

    @staticmethod
    def forward(x: Tensor, softness: Softness, weight: Tensor | None, bins: int, low: float, high: float, mode: str) -> Tensor:
        parts = pieces_of_rows((x, softness, weight), bins)
        return cast(_sum([_counts(some, bins, low, high, mode) for some in parts]), x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        save_inputs(ctx, inputs)

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, bins, low, high, mode = saved_inputs(ctx)
        needed, (wide,) = ctx.needs_input_grad, to_opmath(g)
        of_bins = wide.unsqueeze(-2)

        def terms(x: Tensor, s: Any, w: Any) -> list[Tensor | None]:
            z, half, s, w = _to_centers(x, s, w, bins, low, high)
            to_x = (_slopes(z, s, half, mode) * of_bins).sum(-1) if needed[0] else None
            to_s = (_by_softness(z, s, half, mode) * of_bins).sum(-1) if needed[1] else None
            to_w = (Between.apply(z, s, half, mode, False) * of_bins).sum(-1) if needed[2] else None
            return [t if t is None or w is None else t * w for t in (to_x, to_s)] + [to_w]

        parts = [terms(*some) for some in pieces_of_rows(inputs, bins)]
        found = [None if column[0] is None else torch.cat(column, -1) for column in zip(*parts, strict=True)]
        return *[t if t is None else cast(_to_size(t, v), v.dtype) for t, v in zip(found, inputs, strict=True)], *(None,) * 4

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        *inputs, bins, low, high, mode = saved_inputs(ctx)

        def pushed(x: Tensor, s: Any, w: Any, to_x: Any, to_s: Any, to_w: Any) -> Tensor:
            z, half, wide_s, wide_w = _to_centers(x, s, w, bins, low, high)
            to_x, to_s, to_w = [v.unsqueeze(-1) if isinstance(v, Tensor) and v.ndim else v for v in to_opmath(to_x, to_s, to_w)]
            terms = [_slopes(z, wide_s, half, mode) * to_x] if to_x is not None else []
            if to_s is not None:
                terms.append(_by_softness(z, wide_s, half, mode) * to_s)
            if wide_w is not None and terms:  # once, as infinite products may cancel
                terms = [_sum(terms) * (wide_w.unsqueeze(-1) if wide_w.ndim else wide_w)]
            if to_w is not None:
                terms.append(Between.apply(z, wide_s, half, mode, False) * to_w)
            return _sum(terms).sum(-2)

        return cast(_sum([pushed(*some) for some in pieces_of_rows([*inputs, *tangents[:3]], bins)]), inputs[0].dtype)

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        return cls.apply(*in_front(info, in_dims, args)), 0


def _rows(value: Any, shape: torch.Size, dim: int | None) -> Any:
    """A tensor in the shape of ``x`` with its dimension last; a number and one without dimensions as they are."""
    if not isinstance(value, Tensor) or (value.ndim == 0 and len(shape)):
        return value
    value = value if same_shape(value.shape, shape) else value.expand(shape)
    return reshaped(value, (value.numel(),)) if dim is None or not len(shape) else value.movedim(dim, -1)


def _counts(row: Sequence[Any], bins: int, low: float, high: float, mode: str) -> Tensor:
    """The soft counts of rows, in float32 at least."""
    z, half, s, w = _to_centers(row[0], row[1], row[2], bins, low, high)
    inside = Between.apply(z, s, half, mode, False)
    return (inside if w is None else inside * w.unsqueeze(-1) if w.ndim else inside * w).sum(-2)


def _to_centers(x: Tensor, softness: Any, weight: Any, bins: int, low: float, high: float) -> tuple[Tensor, float, Any, Any]:
    """How far each element is above the center of each bin, half the width of a bin, a softness that broadcasts, and the weight,
    in float32 at least.
    """
    x, s, w = to_opmath(x, softness, weight)
    half = (high - low) / bins / 2
    centers = (torch.arange(bins, dtype=x.dtype, device=x.device) * 2 + 1) * half
    return (x - low).unsqueeze(-1) - centers, half, s.unsqueeze(-1) if isinstance(s, Tensor) and s.ndim else s, w


class Between(Relaxation):
    r"""How much of a softened number z is within h of 0: :math:`S(z + h) - S(z - h)`.

    Differences of steps, and of their slopes, lose all digits where a softness is far wider than h; these are products with the
    width.
    """

    reads = {0: (0, 1), 1: (0, 1)}

    @staticmethod
    def forward(z: Tensor, softness: Softness, half: float, mode: str, hard: bool) -> Tensor:
        s, z = softness, -z.abs()
        a, b, width = z + half, z - half, _width(half, s)
        if mode == "smooth":
            return torch.sigmoid(a / s) * torch.sigmoid(b / -s) * width
        if mode == "laplace":
            above = (torch.expm1(a.clamp(min=0) / -s) + torch.expm1(b / s)) / -2
            return torch.where(a > 0, above, torch.exp(a / s) / 2 * width)
        d, m = _ramps(z, s, half)
        if mode == "c0":
            return d
        q = m * (1 - m)
        if mode == "c1":
            return d * (6 * q - d * d / 2)
        return d * (30 * q * q + d * d * (2.5 - 15 * q + 0.375 * d * d))

    @staticmethod
    def vjp_term(i: int, v: Tensor, z: Tensor, s: Softness, half: float, mode: str, hard: bool) -> Tensor:
        return v * (_slopes if i == 0 else _by_softness)(z, s, half, mode)


def _slopes(z: Tensor, s: Any, half: float, mode: str) -> Tensor:
    """The derivative with respect to z, S'(z + h) - S'(z - h), which is odd."""
    if mode == "c0":
        return curves.slope(z + half, s, mode) - curves.slope(z - half, s, mode)
    if mode == "smooth":
        z = curves.clamp_to_finite(z)
        a, b = (z + half) / s, (z - half) / s
        return torch.sigmoid(a) * torch.sigmoid(-b) * _width(half, s) * _middle(a, b) / s
    if mode == "laplace":
        n = z.abs()
        near = n < half
        inner, outer = torch.where(near, half - n, 0), torch.where(near, half, n) - half
        inside = torch.exp(inner / -s) * -torch.expm1(-2 * torch.where(near, n, 0) / s)
        return torch.where(near, inside, torch.exp(outer / -s) * _width(half, s)) * -torch.sign(z) / (2 * s)
    d, m = _ramps(z, s, half)
    slope = d * (1 - 2 * m) * 6 / (10 * s)
    return slope if mode == "c1" else slope * 5 * (2 * m * (1 - m) - d * d / 2)


def _by_softness(z: Tensor, s: Any, half: float, mode: str) -> Tensor:
    """The derivative with respect to the softness, -((z + h) S'(z + h) - (z - h) S'(z - h)) / s."""
    # Beyond 160 transitions from the bin all is 0: infinity is not multiplied by it.
    far: Any = -(800 * s + half)
    z = -z.abs()
    z = torch.maximum(z, far) if isinstance(far, Tensor) else z.clamp(min=far)
    return (2 * half * curves.slope(z + half, s, mode) + (z - half) * _slopes(z, s, half, mode)) / -s


def _width(half: float, s: Any) -> Any:
    """The share of a tail that is within a bin."""
    return -torch.expm1(-2 * half / s) if isinstance(s, Tensor) else -math.expm1(-2 * half / s)


def _middle(a: Tensor, b: Tensor) -> Tensor:
    """1 - sigmoid(a) - sigmoid(b), without a difference of numbers near 1."""
    return torch.where(a + b < 0, torch.sigmoid(-a) - torch.sigmoid(b), torch.sigmoid(-b) - torch.sigmoid(a))


def _ramps(z: Tensor, s: Any, half: float) -> tuple[Tensor, Tensor]:
    """The difference of the ramps of both ends, and their mean."""
    a, b, w = z + half, z - half, 5 * s
    ends = torch.clamp((a + w) / (2 * w), 0, 1), torch.clamp((b + w) / (2 * w), 0, 1)
    is_whole = (a.detach() <= w) & (b.detach() >= -w)
    # Both from the same side of a kink, at which the slope of torch.clamp is not that of every torch.
    middle = torch.where(is_whole, (z + w) / (2 * w), (ends[0] + ends[1]) / 2)
    return torch.where(is_whole, half / w, ends[0] - ends[1]), middle


def _hard(x: Tensor, weight: Tensor | None, bins: int, low: float, high: float) -> Tensor:
    """The counts of :func:`torch.histc`, of rows."""
    wide, w = to_opmath(x, weight)
    # As torch.histc rounds: the edges first.
    first, last = [torch.full((), edge, dtype=wide.dtype, device=wide.device) for edge in (low, high)]
    is_inside = (wide >= first) & (wide <= last)
    wide = torch.where(is_inside, wide, first)
    index = torch.clamp((wide - first) * bins / (last - first), max=bins - 1).long()
    amounts = with_zero_derivative(is_inside.to(wide.dtype), wide)
    amounts = amounts if w is None else amounts * torch.where(is_inside, w, 0)
    # A sum of ones in float32 ends at 2^24.
    zeros = torch.zeros((*x.shape[:-1], bins), dtype=torch.float64, device=x.device)
    return cast(zeros.scatter_add(-1, index, amounts.double()), x.dtype)


def _to_size(term: Tensor, like: Tensor) -> Tensor:
    """A term of each element, summed to the shape of an argument that broadcasts to them."""
    return term if same_shape(term.shape, like.shape) else term.sum_to_size(like.shape)


def _sum(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
