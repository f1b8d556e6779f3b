"""`proj_capped_simplex`: weights between 0 and 1 with a given sum."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.fast import replaceable
from fullgrad._core.opmath import to_opmath
from fullgrad._core.recomputed import saved_inputs
from fullgrad._core.shards import along_parts
from fullgrad._dispatch import holds, of_parts, row_length, row_sum, row_totals, rows_are_split
from fullgrad.soft import _curves as curves
from fullgrad.soft._mode_names import STEP_MODES, StepMode
from fullgrad.soft._relaxation import Softness, check
from fullgrad.soft._sigmoidal import Sigmoidal
from fullgrad.soft.order._numbers import RowFunction
from fullgrad.soft.order.kernels.on_parts import middle_of_gap, split_on_parts
from fullgrad.soft.order.kernels.threshold import NEAR, may_be_far
from fullgrad.soft.simplex._entmax import per_row
from fullgrad.soft.simplex.kernels.capped_simplex import capped_simplex_pivot, centered, centered_on_parts


def proj_capped_simplex(
    x: Tensor, k: Tensor | float, dim: int = -1, softness: Softness = 0.1, mode: StepMode = "smooth"
) -> Tensor:
    r"""Weights between 0 and 1 that sum to k along a dimension: a soft choice of k among many.

    .. math::
        p = S(z), \quad z = \frac{x}{s} - \theta, \quad \sum p = k, \qquad
        D\, t = w \circ \Bigl(t - \frac{\langle w, t \rangle}{\sum w}\Bigr) / s, \quad w = S'(z), \qquad D_k = \frac{w}{\sum w}

    with the curve S of :func:`sigmoidal` of softness 1 in one of its modes: ``smooth`` is the entropic top-k, ``laplace``
    LapSum's, and ``c0`` with the softness 0.1 the Euclidean projection onto the capped simplex. The derivatives are the true
    ones of every order, also of the softness and k. Saved: z, in smooth mode also p.

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
        A tensor of the shape of ``x``. With k = 0 all are 0, with k = n all 1. A row is NaN where it has NaN or plus infinity;
        minus infinity has the weight 0.

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
    wide, k, softness = to_opmath(x, k, softness)
    wide, k = wide.movedim(dim, -1), per_row(name, k, x, dim, "k") if isinstance(k, Tensor) else float(k)
    if isinstance(softness, Tensor) and softness.ndim:
        softness = per_row(name, softness, x, dim, "softness")
    if not may_be_far(wide, softness):
        return Sigmoidal.apply(Centered.apply(wide / softness, k, mode, None), 1.0, mode, False)
    answer, origin, start = _answer_and_origin(wide.detach(), k, softness)
    z = of_parts(Centered).apply(_in_softnesses(wide * answer - origin, softness), k, mode, start)
    return Sigmoidal.apply(z, 1.0, mode, False) * answer


def _answer_and_origin(x: Tensor, k: Any, softness: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """Constants of each row: 1 or NaN as in `has_answer`; the number near the k-th largest element, 0 where the row is near 0;
    and, where ranks have parts of it, the same number of the row less it, in softnesses.
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
    start = middle_of_gap(_in_softnesses(first - origin, softness), _in_softnesses(second - origin, softness), k)
    return torch.where(possible, 1.0, torch.nan).to(x.dtype), origin, start


def _in_softnesses(x: Tensor, softness: Any) -> Tensor:
    """x over the softness, finite where x is."""
    infinite = x.detach().isinf()
    # Minus infinity takes no part in the derivative with respect to the softness.
    v = torch.where(infinite, 0, x) / softness if isinstance(softness, Tensor) else x / softness
    largest = torch.finfo(v.dtype).max / 4
    return torch.where(infinite, x, v.clamp(-largest, largest))


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
    return k.to(x.dtype) if isinstance(k, Tensor) else x.new_full((1,), k)


class Centered(RowFunction):
    r"""Rows less the threshold at which their sigmoids sum to k.

    .. math::
        z = v - \theta, \quad \sum S(z) = k, \qquad D_v\, t = t - \frac{\langle w, t \rangle}{\sum w}, \quad
        D_k = \frac{1}{\sum w}, \quad w = S'(z)

    Where every sigmoid is 0 or 1 the threshold is in the middle of a gap, and all derivatives are 0. Saved: the output.
    """

    saves = (2, 4)
    splits_rows = True

    @staticmethod
    def forward(v: Tensor, k: Tensor | float, mode: str, start: Tensor | None) -> Tensor:
        k = _per_row(k, v)
        return centered(v, k, mode) if start is None else centered_on_parts(v, k, start, mode)

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        mode, z = saved_inputs(ctx)
        part = g.sum(-1, keepdim=True)
        w, inverse, of_g = _shares(z, mode, part)
        by_v = torch.where(inverse > 0, g - w * (of_g * inverse), 0) if ctx.needs_input_grad[0] else None
        # Where ranks have parts of rows, each has its part of this sum.
        return by_v, part * inverse if ctx.needs_input_grad[1] else None, None, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor | None, t_k: Tensor | None, *_: None) -> Tensor:
        mode, z = saved_inputs(ctx)
        w, inverse = _shares(z, mode)
        moved = torch.zeros_like(z)
        if t is not None:
            moved = torch.where(inverse > 0, t - row_sum(w * t) * inverse, 0)
        return moved if t_k is None else moved + t_k * inverse


def _shares(z: Tensor, mode: str, *others: Tensor) -> tuple[Tensor, ...]:
    """The slopes S' and 1 over their sum, or 0 where the sum is 0 or its reciprocal overflows; and other sums of whole rows."""
    w = curves.slope(curves.clamp_to_finite(z), 1.0, mode)
    total, *of_others = row_totals(w.sum(-1, keepdim=True), *others)
    positive = total >= torch.finfo(total.dtype).tiny
    return w, torch.where(positive, 1 / torch.where(positive, total, 1), 0), *of_others
