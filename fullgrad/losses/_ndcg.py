"""`ndcg`: one minus the normalized discounted cumulative gain."""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._dispatch import surely
from fullgrad.losses._gains import GAINS, gains_of, graded_rows
from fullgrad.losses._rows import Rows, quotient, shared_by_equals, soft_ranks
from fullgrad.soft._mode_names import AnyStepMode
from fullgrad.soft._relaxation import Softness, floating
from fullgrad.soft.order.methods import RankOrLapSum


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
        L = 1 - \frac1Z \sum_i \frac{a_i\,C(r_i)}{\log_2(1 + r_i)}, \qquad
        C(r) = \frac12 + \frac1\pi \arctan \frac{k + \frac12 - r}{n s}, \qquad r = \operatorname{rank}(x), \qquad
        D_x = \frac{\partial L}{\partial r} \frac{\partial r}{\partial x}

    for each row: the gain *a* of an element is its relevance *v*, or :math:`2^v - 1`; its rank, 1 for the highest score, is that
    of :func:`fullgrad.soft.rank`, but nothing is added to the variance of a row that is standardized, so that the unit of scores
    does not matter. *C* is 1 without ``k``, and in a row of no more than ``k`` elements. The cut is as wide as the softness *s*,
    counted in ranks: *n s* of a row that is standardized, else *n s* over the range of the row; with the mode ``"hard"`` it is a
    step. Its tail is that of a reciprocal, so that elements far below the cut have a gradient. *Z* is the sum for hard ranks in
    the best order. The mode ``"hard"`` is ``1 - sklearn.metrics.ndcg_score``, in which equal scores share the mean of their
    discounts; the loss tends to it as the softness becomes small, but for equal scores, which have the discount of their mean
    rank then. Derivatives of every order are the true ones of the soft loss, to which that range is a constant.

    By default the softness is half of the spread of the row, and 6 neighbors in a row of less than 12: sharper ranks have local
    minima, in which elements are not in order. The ranks take O(n log n) time and O(n) memory. In a row of two elements the
    spread, to which the softness is relative, is a constant to derivatives; they would be 0. Elements that ``mask`` leaves out
    change no loss and have the gradient 0; a row without an element has the loss 0, and does not count in the mean.

    The gradient of a row that is standardized is inversely proportional to its spread, which the loss does not depend on: it is
    large where scores are nearly equal. In a row of equal scores it is finite, as for a spread of 0.001, and not 0.

    Soft ranks lie closer together than hard ones, so that the loss of the right order is not 0: measure with a small softness. A
    row without any gain has the loss 1 with the derivative 0; a row with a NaN has the loss NaN. Half precision is computed in
    float32. Saved: the scores, and numbers of each element.

    Args:
        scores: Any shape; floating, or integer (which gives the default dtype).
        relevance: A tensor of the same shape, of any real dtype, not negative; it gets no gradient. Where it cannot be read
            without waiting, a negative one makes the loss of its row NaN.
        k: How many of the first elements count, a positive integer; None for all.
        dim: The dimension along which elements are ranked.
        gain: ``"linear"`` or ``"exponential"``.
        softness: How soft the ranks are, as in :func:`fullgrad.soft.rank`: a positive number, or a 0-dimensional tensor, which
            gets its own gradient; None for max(1/2, 6/n) in a row of n elements.
        mode: As in :func:`fullgrad.soft.rank`; None for ``"laplace"`` with the methods that have it, else ``"smooth"``.
        method: As in :func:`fullgrad.soft.rank`.
        standardize: Whether the softness is relative to the spread of the row.
        mask: A bool tensor of the shape of ``scores``, True for the elements of a row; None if all are.
        weight: How much each row counts, not negative: a tensor that broadcasts to the shape of ``scores`` without ``dim``, and
            gets its own gradient; None for 1.
        reduction: ``"none"``, ``"mean"`` or ``"sum"`` over rows: :math:`w L`, :math:`\sum w L / \sum w` or :math:`\sum w L` with
            the weights *w*, which are 0 for rows without an element.

    Returns:
        A number; with ``"none"`` a tensor of the shape of ``scores`` without ``dim``.

    Raises:
        TypeError: ``scores``, ``relevance`` or ``weight`` is not a real tensor, ``mask`` not a bool tensor, ``softness`` is not a
            real number or tensor, or ``k`` or ``dim`` is not an integer.
        ValueError: ``relevance``, ``mask`` or ``weight`` has another shape, ``relevance`` or ``weight`` is negative, the size of
            ``dim`` is 0, ``k`` or ``softness`` is not positive, ``gain``, ``mode``, ``method`` or ``reduction`` is unknown, or
            ``mask`` is given with a method other than ``"sigmoid"`` and ``"lapsum"``.
        IndexError: ``scores`` has no such dimension.

    Example:
        >>> import torch
        >>> from fullgrad import losses
        >>> scores, relevance = torch.tensor([0.2, 0.9, 0.4]), torch.tensor([3, 0, 1])
        >>> losses.ndcg(scores, relevance, softness=1e-3)
        tensor(0.4131)
        >>> torch.func.grad(losses.ndcg)(scores, relevance)
        tensor([-0.0110, -0.0044,  0.0153])

    Source: Qin, Liu, Li, https://doi.org/10.1007/s10791-009-9124-x; ``sklearn.metrics.ndcg_score``.
    """
    checks.choice("ndcg", "gain", gain, GAINS)
    if k is not None:
        k = checks.positive_integer("ndcg", "k", k, 2**53)
    rows = graded_rows("ndcg", scores, relevance, dim, reduction, mask, weight)

    def of_rows(rows: Rows, softness: Softness | None) -> Tensor:
        r, softness_in_ranks = soft_ranks("ndcg", rows, softness, mode, method, standardize, descending=True)
        gains, n = gains_of(rows.y, gain).to(r.dtype), r.shape[-1]
        places = torch.arange(1, n + 1, dtype=r.dtype, device=r.device)
        best, first = 1 / torch.log1p(places), None if k is None or surely(k >= n) else k
        if mode == "hard":
            best = best if first is None else best * (places <= first)
            discounts = 0 * r + shared_by_equals(rows.x, rows.valid, best.double(), descending=True).to(r.dtype)
        else:
            discounts = 1 / torch.log1p(r)
            if first is not None:
                best, discounts = [y * _cut(s, first, softness_in_ranks, rows.count) for y, s in ((best, places), (discounts, r))]
        best, parts = torch.sort(gains, -1, descending=True).values * best, gains * discounts
        largest = best.sum(-1)
        return 1 - quotient(parts.sum(-1), largest, (largest == 0) & (rows.x == rows.x).all(-1))

    return rows.reduced(rows.losses("ndcg", of_rows, softness), reduction, floating(scores).dtype)


def _cut(r: Tensor, k: int, width: Any, count: Any) -> Tensor:
    """How much a rank counts among the first k, from 1 to 0; 1 where a row has no more than k elements. The tail is that of a
    reciprocal, so that no element is too far below the cut to have a gradient.
    """
    t = r - k - 0.5
    y = torch.atan2(width + torch.zeros_like(t), t) / math.pi
    return torch.where(count <= k, 1, y) if isinstance(count, Tensor) else y
