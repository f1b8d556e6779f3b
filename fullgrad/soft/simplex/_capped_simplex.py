"""`proj_capped_simplex`: weights between 0 and 1 with a given sum."""

import math
from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.fast import replaceable
from fullgrad._core.opmath import to_opmath, wide, wide_dtype
from fullgrad._core.recomputed import saved_inputs
from fullgrad._core.shards import along_parts
from fullgrad._dispatch import holds, of_parts, row_largest, row_length, row_totals, rows_are_split
from fullgrad.soft import _curves as curves
from fullgrad.soft._mode_names import STEP_MODES, StepMode
from fullgrad.soft._relaxation import Softness, check, over_softness
from fullgrad.soft._sigmoidal import value
from fullgrad.soft.order._numbers import RowFunction
from fullgrad.soft.order.kernels.on_parts import middle_of_gap, split_on_parts
from fullgrad.soft.order.kernels.threshold import NEAR, may_be_far
from fullgrad.soft.simplex._entmax import per_row
from fullgrad.soft.simplex.kernels.capped_simplex import TAILS, capped_simplex_pivot, centered, centered_on_parts


def proj_capped_simplex(
    x: Tensor, k: Tensor | float, dim: int = -1, softness: Softness = 0.1, mode: StepMode = "smooth"
) -> Tensor:
    r"""Weights between 0 and 1 that sum to k along a dimension: a soft choice of k among many.

    .. math::
        p = S(z), \quad z = \frac{x}{s} - \theta, \quad \sum p = k, \qquad
        D\, t = w \circ \Bigl(t - \frac{\langle w, t \rangle}{\sum w}\Bigr) / s, \quad w = S'(z), \qquad D_k = \frac{w}{\sum w}

    with the curve S of :func:`sigmoidal` of softness 1 in one of its modes: ``smooth`` is the entropic top-k, ``laplace``
    LapSum's, and ``c0`` with the softness 0.1 the Euclidean projection onto the capped simplex. The derivatives are the true
    ones of every order, also of the softness and k. Where all weights are 0 or 1, those of ``c0``, ``c1`` and ``c2`` are 0;
    :math:`D_k` of ``smooth`` and ``laplace`` sums to 1 there, too, with k = 0 and k = n that of one side, but second derivatives
    with respect to k are 0 where slopes underflow, next to gaps of more than 170 softnesses in float32. Saved: z.

    On a device the host waits for the rounds that find the threshold.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        k: The sum, from 0 to the size at ``dim``: a number, whole or not, or a tensor that broadcasts with ``x``, of size 1 at
            ``dim``, and gets its own gradient.
        dim: The dimension along which the weights sum to k.
        softness: The width of the choice, positive: a number, or a tensor that broadcasts with ``x``, of size 1 at ``dim``, and
            gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"`` or ``"laplace"``.

    Returns:
        A tensor of the shape of ``x``. With k = 0 all are 0, with k = n all 1. A row is NaN where it has NaN or plus infinity, or
        fewer than k elements above minus infinity, which has the weight 0.

    Raises:
        TypeError: ``x`` is not a real tensor, or ``k`` or ``softness`` is not a real number or tensor.
        ValueError: ``k`` is outside of its range, ``softness`` a number that is not positive, or ``mode`` is unknown.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([1.0, 0.6, 0.5, -1.0])
        >>> fullgrad.soft.proj_capped_simplex(x, 2)
        tensor([9.8926e-01, 6.2781e-01, 3.8293e-01, 1.8983e-07])
        >>> fullgrad.soft.proj_capped_simplex(x, 2, mode="c0")
        tensor([0.9667, 0.5667, 0.4667, 0.0000])

    Source: Xie et al., https://arxiv.org/abs/2002.06504 (smooth); Struski et al., https://arxiv.org/abs/2503.06242 (laplace);
    ``entmax.budget_bisect`` (c0).
    """
    name = "proj_capped_simplex"
    x, k, softness = checked(name, x, k, dim, softness, mode)
    if x.ndim == 0:
        return proj_capped_simplex(x.reshape(1), k, -1, softness, mode).reshape(())
    return capped_of(name, x, k, dim, softness, mode)


@replaceable
def capped_of(name: str, x: Tensor, k: Any, dim: int, softness: Any, mode: str) -> Tensor:
    """`proj_capped_simplex` without the checks."""

    def weights(x: Tensor, k: Any, softness: Any) -> Tensor:
        return capped_rows(name, x, k, dim, softness, mode).movedim(-1, dim).to(x.dtype)

    return along_parts(name, weights, x, dim, k, softness)


def checked(name: str, x: Any, k: Any, dim: Any, softness: Any, mode: Any) -> tuple[Tensor, Any, Any]:
    """The arguments, checked; ``x`` as a floating tensor."""
    x, softness = check(name, x, softness, mode, STEP_MODES)
    checks.one_dim(name, dim, x.ndim)
    checks.real_number_or_tensor(name, "k", k)
    n = x.shape[dim] if x.ndim else 1
    if isinstance(k, Tensor):
        checks.elements_between(name, "k", k, 0, n, f"from 0 to {n}, the size along `dim`")
    elif not (holds(k >= 0) and holds(k <= n)):
        raise ValueError(f"{name}: `k` must be from 0 to {n}, the size along `dim`, got {k}.")
    return x, k, softness


def capped_rows(name: str, x: Tensor, k: Any, dim: int, softness: Any, mode: str) -> Tensor:
    """The weights, with the rows last, in float32 at least. Rows that may be far from 0 are taken less a number near the k-th
    largest element, which changes no weight and is exact near the threshold.
    """
    rows, k, softness = to_opmath(x, k, softness)
    rows, k = rows.movedim(dim, -1), per_row(name, k, x, dim, "k") if isinstance(k, Tensor) else float(k)
    if isinstance(softness, Tensor) and softness.ndim:
        softness = per_row(name, softness, x, dim, "softness")
    if not may_be_far(rows, softness):
        return Capped.apply(rows / softness, k, mode, None)[0]
    answer, origin, ends = _answer_and_origin(rows.detach(), k, softness)
    return of_parts(Capped).apply(_in_softnesses(rows * answer - origin, softness), k, mode, ends)[0] * answer


def _answer_and_origin(x: Tensor, k: Any, softness: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """Constants of each row: 1 or NaN as in `has_answer`; the number near the k-th largest element, 0 where the row is near 0;
    and, where ranks have parts of it, the k-th largest element and the next, less it and in softnesses.
    """
    k, softness = [v.detach() if isinstance(v, Tensor) else v for v in (k, softness)]
    if not rows_are_split():
        near = (x.abs() <= NEAR * softness).all(-1, keepdim=True)
        answer = has_answer(x, k)
        return answer, torch.where(near, 0, Pivot.apply(x * answer, k)), None
    k = _per_row(k, x)
    rows = x.expand(*torch.broadcast_shapes(x.shape[:-1], k.shape[:-1]), x.shape[-1])
    place = k.nan_to_num(0).ceil().clamp(1, row_length(x)).expand(*rows.shape[:-1], 1)
    split = split_on_parts(rows.sort(dim=-1, descending=True).values, place)
    possible = (split.largest < torch.inf) & ((split.kth > -torch.inf) | (k <= 0))
    near = (split.largest <= NEAR * softness) & (split.smallest >= -NEAR * softness)
    first, second = split.kth, torch.where(k == place, split.following, split.kth)
    origin = torch.where(near, 0, middle_of_gap(first, second, k))
    ends = torch.cat([_in_softnesses(v - origin, softness) for v in (first, second)], -1)
    return torch.where(possible, 1.0, torch.nan).to(x.dtype), origin, ends


def _in_softnesses(x: Tensor, softness: Any) -> Tensor:
    """x over the softness, finite where x is."""
    v = over_softness(x, softness)
    largest = torch.finfo(v.dtype).max / 4
    return torch.where(x.detach().isinf(), v, v.clamp(-largest, largest))


def has_answer(x: Tensor, k: Any) -> Tensor:
    """NaN for each row with a NaN, plus infinity, or fewer than k elements above minus infinity; 1 for the others.

    Times the input and the result, it makes the whole derivative of such a row NaN, whichever way it is taken: masks between them
    keep zeros in one way alone.
    """
    v = x.detach()
    wrong, finite = row_totals((~(v < torch.inf)).any(-1, keepdim=True), (v > -torch.inf).sum(-1, keepdim=True))
    return torch.where((wrong == 0) & (finite >= k), 1.0, torch.nan).to(x.dtype)


class Pivot(RowFunction):
    """A number between the k-th largest element of each row and the next: a constant, with the derivative 0."""

    @staticmethod
    def forward(x: Tensor, k: Tensor | float) -> Tensor:
        return capped_simplex_pivot(x, _per_row(k, x))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_forward(output)

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[None, None]:
        return None, None

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Tensor:
        return torch.zeros_like(ctx.saved_tensors[0])


def _per_row(k: Tensor | float, x: Tensor) -> Tensor:
    """k in float64: a part of an element is small next to a large k."""
    return wide(k) if isinstance(k, Tensor) else x.new_full((1,), k, dtype=wide_dtype(x))


class Capped(RowFunction):
    r"""The sigmoids of rows less the threshold at which they sum to k; and the rows less the threshold, for the derivatives.

    .. math::
        p = S(z), \quad z = v - \theta, \quad \sum p = k, \qquad
        D_v\, t = w \circ (t - \langle q, t \rangle), \quad D_k = q, \quad w = S'(z), \quad q = \frac{w}{\sum w} \\
        D_v z\, t = t - \langle q, t \rangle, \quad D_k z = \frac{1}{\sum w}

    Where every sigmoid is 0 or 1 and has no slope, the threshold is in the middle of a gap, and all derivatives are 0. The curves
    with tails have slopes that underflow: q is a ratio of slopes times a number of the row. Saved: z.
    """

    saves = (2, 5)
    splits_rows = True
    out_dims = (0, 0)

    @staticmethod
    def forward(v: Tensor, k: Tensor | float, mode: str, ends: Tensor | None) -> tuple[Tensor, Tensor]:
        k = _per_row(k, v)
        z = centered(v, k, mode) if ends is None else centered_on_parts(v, k, ends, mode)
        return value(z, 1.0, mode), z

    @classmethod
    def setup_context(cls, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.set_materialize_grads(False)  # the second output has a cotangent in second derivatives alone
        super().setup_context(ctx, inputs, output)

    @staticmethod
    def vjp(ctx: Any, g: Tensor | None, g_z: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None]:
        if g is None and g_z is None:
            return None, None, None, None
        mode, z = saved_inputs(ctx)
        u, factor = _slopes(z, mode)
        parts = [u if g is None else u * g, u if g_z is None else g_z]
        of_g, of_z, total = row_totals(*[v.sum(-1, keepdim=True) for v in (*parts, u)])
        shares, inverse = _inverses(total, factor)
        by_v: Any = 0
        by_k: Any = 0
        if g is not None:
            by_v = u * factor * (g - of_g * shares)
            by_k = parts[0].sum(-1, keepdim=True) * shares  # where ranks have parts of rows, each has its part of this sum
        if g_z is not None:
            by_v = by_v + torch.where(shares > 0, g_z - u * (shares * of_z), 0)
            by_k = by_k + g_z.sum(-1, keepdim=True) * inverse
        return by_v, by_k if ctx.needs_input_grad[1] else None, None, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor | None, t_k: Tensor | None, *_: None) -> tuple[Tensor, Tensor]:
        mode, z = saved_inputs(ctx)
        u, factor = _slopes(z, mode)
        of_t, total = row_totals(*[v.sum(-1, keepdim=True) for v in (u if t is None else u * t, u)])
        shares, inverse = _inverses(total, factor)
        moved = torch.zeros_like(z) if t is None else torch.where(shares > 0, t - of_t * shares, 0)
        p = u * factor * moved
        return (p, moved) if t_k is None else (p + u * (shares * t_k), moved + inverse * t_k)


def _slopes(z: Tensor, mode: str) -> tuple[Tensor, Tensor | float]:
    """The slopes S' as products of numbers that do not all underflow, and a number of each row."""
    z = curves.clamp_to_finite(z)
    if mode not in TAILS:
        return curves.slope(z, 1.0, mode), 1.0
    least = -row_largest(-z.abs())
    if mode == "laplace":
        return torch.exp(least - z.abs()) / 2, torch.exp(-least)
    # S' is the square of 1 / (exp(z / 2) + exp(-z / 2)). Beyond these bounds it is 0 to working precision, and exp finite.
    beyond = least - 1.5 * math.log(torch.finfo(z.dtype).tiny)
    z = torch.minimum(torch.maximum(z, -beyond), beyond)
    root = 1 / (torch.exp((z - least) / 2) + torch.exp((z + least) / -2))
    return root * root, torch.exp(-least)


def _inverses(total: Tensor, factor: Tensor | float) -> tuple[Tensor, Tensor]:
    """The reciprocals of sums of slopes without and with the factor, 0 where the sum is 0 or its reciprocal overflows."""
    positive, possible = [v >= torch.finfo(total.dtype).tiny for v in (total, total * factor)]
    shares = torch.where(positive, 1 / torch.where(positive, total, 1), 0)
    return shares, torch.where(possible, shares / torch.where(possible, factor, 1), 0)
