"""`ndcg`: one minus the normalized discounted cumulative gain."""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._dispatch import surely
from fullgrad.losses._rows import checked_rows, quotient, soft_ranks
from fullgrad.soft._mode_names import AnyStepMode
from fullgrad.soft._relaxation import Softness, floating
from fullgrad.soft.order.methods import RankOrLapSum

GAINS = ("linear", "exponential")


def ndcg(
    scores: Tensor,
    relevance: Tensor,
    k: int | None = None,
    *,
    dim: int = -1,
    gain: Literal["linear", "exponential"] = "linear",
    softness: Softness | None = None,
    mode: AnyStepMode | None = None,
    method: RankOrLapSum = "sigmoid",
    standardize: bool = True,
    mask: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: Literal["none", "mean", "sum"] = "mean",
) -> Tensor:
    r"""One minus the normalized discounted cumulative gain, by soft ranks of the scores.

    .. math::
        L = 1 - \frac1Z \sum_i \frac{a_i\,S(k + \tfrac12 - r_i)}{\log_2(1 + r_i)}, \qquad r = \operatorname{rank}(x), \qquad
        D_x = \frac{\partial L}{\partial r} \frac{\partial r}{\partial x}

    for each row: the gain *a* of an element is its relevance *v*, or :math:`2^v - 1`; its rank, 1 for the highest score, is that
    of :func:`fullgrad.soft.rank`; *S* is :func:`fullgrad.soft.heaviside` of the same softness and mode, and 1 without ``k``. *Z*
    is the sum for hard ranks in the best order, for which the loss is 0. As the softness becomes small the loss tends to
    ``1 - sklearn.metrics.ndcg_score``, but for equal scores, which share the mean of their discounts there, and the discount of
    their mean rank here. Derivatives of every order are the true ones of the soft loss.

    The loss may fall below 0: soft ranks of several elements may share the first places, the more so the longer the row and
    the larger the softness. A row without any gain has the loss 1 with the derivative 0; a row with a NaN has the loss NaN.
    Elements that only fill a row have the relevance 0 and the score minus infinity, which ``standardize`` allows. At the
    softness 0.1 the ranks of ``fast_soft_sort`` may be hard, with the derivative 0: take 1. Half precision is computed in
    float32. Saved: the scores, and numbers of each element.

    Args:
        scores: Any shape; floating, or integer (which gives the default dtype).
        relevance: A tensor of the same shape, of any real dtype, not negative; it gets no gradient.
        k: How many of the first elements count, a positive integer; None for all.
        dim: The dimension along which elements are ranked.
        gain: ``"linear"`` or ``"exponential"``.
        softness: How soft the ranks are, as in :func:`fullgrad.soft.rank`: a positive number, or a 0-dimensional tensor, which
            gets its own gradient.
        mode: As in :func:`fullgrad.soft.rank`.
        method: As in :func:`fullgrad.soft.rank`.
        standardize: Whether the softness is relative to the spread of the row.
        reduction: ``"none"``, ``"mean"`` or ``"sum"`` over rows.

    Returns:
        A number; with ``"none"`` a tensor of the shape of ``scores`` without ``dim``.

    Raises:
        TypeError: ``scores`` or ``relevance`` is not a real tensor, ``softness`` is not a real number or tensor, or ``k`` or
            ``dim`` is not an integer.
        ValueError: ``relevance`` has another shape, a row has no element, ``k`` or ``softness`` is not positive, or ``gain``,
            ``mode``, ``method`` or ``reduction`` is unknown.
        IndexError: ``scores`` has no such dimension.

    Example:
        >>> import torch
        >>> from fullgrad import losses
        >>> scores, relevance = torch.tensor([0.2, 0.9, 0.4]), torch.tensor([3, 0, 1])
        >>> losses.ndcg(scores, relevance, softness=1e-3)
        tensor(0.4131)
        >>> torch.func.grad(losses.ndcg)(scores, relevance)
        tensor([-0.0332, -0.0133,  0.0465])

    Source: Qin, Liu, Li, https://doi.org/10.1007/s10791-009-9124-x; ``sklearn.metrics.ndcg_score``.
    """
    checks.choice("ndcg", "gain", gain, GAINS)
    if k is not None:
        k = checks.positive_integer("ndcg", "k", k, 2**53)
    rows = checked_rows("ndcg", "scores", scores, "relevance", relevance, dim, reduction, mask, weight)
    checks.no_negative_elements("ndcg", "relevance", rows.only(rows.y, 0), "; `mask=relevance >= 0` leaves elements out")
    r, softness_in_ranks = soft_ranks("ndcg", rows, softness, mode, method, standardize, descending=True)
    v = rows.only(rows.y, 0).to(r.dtype)
    v = torch.where(v < 0, torch.nan, v)  # what could not be read without waiting
    gains = v if gain == "linear" else torch.exp2(v) - 1
    n = r.shape[-1]
    places = torch.arange(1, n + 1, dtype=r.dtype, device=r.device)
    parts, best = gains / torch.log1p(r), torch.sort(gains, -1, descending=True).values / torch.log1p(places)
    if k is not None and not surely(k >= n):
        hard = mode == "hard"
        parts, best = [y * _cut(s, k, softness_in_ranks, rows.count, hard) for y, s in ((parts, r), (best, places))]
    largest = best.sum(-1)
    losses = 1 - quotient(parts.sum(-1), largest, (largest == 0) & (rows.x == rows.x).all(-1))
    return rows.reduced(losses, reduction, floating(scores).dtype)


def _cut(r: Tensor, k: int, width: Any, count: Any, hard: bool) -> Tensor:
    """How much a rank counts among the first k, from 1 to 0; 1 where a row has no more than k elements. The tail is that of a
    reciprocal, so that no element is too far below the cut to have a gradient.
    """
    t = r - k - 0.5
    y = (t < 0).to(r.dtype) if hard else torch.atan2(width + torch.zeros_like(t), t) / math.pi
    return torch.where(count <= k, 1, y) if isinstance(count, Tensor) else y
