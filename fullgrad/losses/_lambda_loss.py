"""`lambda_loss`: logistic losses of pairs, weighted by what they mean for NDCG."""

import math
from typing import Literal

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad.losses._gains import GAINS, gains_of, graded_rows
from fullgrad.losses._rows import Rows
from fullgrad.soft._relaxation import floating
from fullgrad.soft._softrelu import Softrelu

SCHEMES = ("ndcg2", "lambdarank")


def lambda_loss(
    scores: Tensor,
    relevance: Tensor,
    *,
    dim: int = -1,
    gain: Literal["linear", "exponential"] = "linear",
    scheme: Literal["ndcg2", "lambdarank"] = "ndcg2",
    mask: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: Literal["none", "mean", "sum"] = "mean",
) -> Tensor:
    r"""Logistic losses of all pairs in a row, each weighted by what its order means for NDCG: LambdaLoss, LambdaRank.

    .. math::
        L = \sum_{v_i > v_j} w_{ij} \log_2(1 + e^{x_j - x_i}), \quad
        w_{ij} = \frac{a_i - a_j}{Z} \cdot \begin{cases} d(|r_i - r_j|) - d(|r_i - r_j| + 1) & \text{ndcg2} \\
        |d(r_i) - d(r_j)| & \text{lambdarank} \end{cases}, \qquad
        D_{x_i} = -\sum_j \frac{w_{ij}}{\ln 2}\, \sigma(x_j - x_i) + \sum_j \frac{w_{ji}}{\ln 2}\, \sigma(x_i - x_j)

    for each row, with the discount :math:`d(r) = 1 / \log_2(1 + r)`, the gain *a* of :func:`ndcg`, its sum *Z* in the best
    order, and the places *r* of the scores, 1 for the highest; equal scores stand in the order of the row. ``"lambdarank"``
    weights a pair by the change of NDCG if the two change places, ``"ndcg2"`` by the step of the discount at their distance, so
    that pairs far below the top count, too. The weights are constants to derivatives, which are otherwise the true ones, of every
    order. No place is cut off: there is no ``k``, the truncation level of LambdaMART. Time and memory grow with the square of the
    length of a row.

    A row whose elements all have one relevance has the loss 0. Elements that ``mask`` leaves out change no loss and have the
    gradient 0; a row without an element has the loss 0, and does not count in the mean. A row with a NaN has the loss NaN. Half
    precision is computed in float32. Saved: numbers of each pair.

    Args:
        scores: Any shape; floating, or integer (which gives the default dtype).
        relevance: A tensor of the same shape, of any real dtype, not negative; it gets no gradient. Where it cannot be read
            without waiting, a negative one makes the loss of its row NaN.
        dim: The dimension along which elements are ranked.
        gain: ``"linear"`` or ``"exponential"``, the gain *v* or :math:`2^v - 1` of a relevance *v*.
        scheme: The weights of pairs, ``"ndcg2"`` or ``"lambdarank"``.
        mask: A bool tensor of the shape of ``scores``, True for the elements of a row; None if all are.
        weight: How much each row counts, not negative: a tensor that broadcasts to the shape of ``scores`` without ``dim``, and
            gets its own gradient; None for 1.
        reduction: ``"none"``, ``"mean"`` or ``"sum"`` over rows: :math:`w L`, :math:`\sum w L / \sum w` or :math:`\sum w L` with
            the weights *w*, which are 0 for rows without an element.

    Returns:
        A number; with ``"none"`` a tensor of the shape of ``scores`` without ``dim``.

    Raises:
        TypeError: ``scores``, ``relevance`` or ``weight`` is not a real tensor, ``mask`` not a bool tensor, or ``dim`` is not an
            integer.
        ValueError: ``relevance``, ``mask`` or ``weight`` has another shape, ``relevance`` or ``weight`` is negative, the size of
            ``dim`` is 0, or ``gain``, ``scheme`` or ``reduction`` is unknown.
        IndexError: ``scores`` has no such dimension.

    Example:
        >>> import torch
        >>> from fullgrad import losses
        >>> scores, relevance = torch.tensor([0.2, 0.9, 0.4]), torch.tensor([3, 0, 1])
        >>> losses.lambda_loss(scores, relevance)
        tensor(0.5491)
        >>> torch.func.grad(losses.lambda_loss)(scores, relevance)
        tensor([-0.2655,  0.1956,  0.0700])

    Source: Wang et al., https://doi.org/10.1145/3269206.3271784, ``NDCG-Loss2`` and ``LambdaRank``; ``allrank``'s
    ``lambdaLoss``.
    """
    checks.choice("lambda_loss", "gain", gain, GAINS)
    checks.choice("lambda_loss", "scheme", scheme, SCHEMES)
    rows = graded_rows("lambda_loss", scores, relevance, dim, reduction, mask, weight)

    def of_rows(rows: Rows, _: None) -> Tensor:
        x, y, valid = rows[:3]
        pairs, weights = _pairs(x.detach(), y, gains_of(y, gain).to(x.dtype), valid, scheme)
        behind = torch.where(pairs, x.unsqueeze(-2) - x.unsqueeze(-1), 0)
        return (Softrelu.apply(behind, 1.0, False, "smooth", False) * torch.where(pairs, weights, 0)).sum((-1, -2))

    return rows.reduced(rows.losses("lambda_loss", of_rows), reduction, floating(scores).dtype)


def _pairs(x: Tensor, y: Tensor, gains: Tensor, valid: Tensor | None, scheme: str) -> tuple[Tensor, Tensor]:
    """Which elements of a row are more relevant than which others, and their weights over log 2."""
    n = x.shape[-1]
    places = torch.arange(1, n + 1, dtype=x.dtype, device=x.device)
    (x, other), (i, j), (y, y_j), (a, a_j) = [(v.unsqueeze(-1), v.unsqueeze(-2)) for v in (x, places, y, gains)]
    ahead, pairs = (other > x) | ((other == x) & (j < i)), y > y_j
    if valid is not None:
        ahead, pairs = ahead & valid.unsqueeze(-2), pairs & valid.unsqueeze(-1) & valid.unsqueeze(-2)
    place = 1 + ahead.sum(-1).to(x.dtype)
    r, s = place.unsqueeze(-1), place.unsqueeze(-2)
    low, apart = ((r - s).abs(), 1) if scheme == "ndcg2" else (torch.minimum(r, s), (r - s).abs())
    # The difference of two discounts, over log 2, without the loss of digits.
    gap = torch.log1p(apart / (1 + low)) / (torch.log1p(low) * torch.log1p(low + apart))
    best = math.log(2) * (torch.sort(gains, -1, descending=True).values / torch.log1p(places)).sum(-1)
    return pairs, (a - a_j) * gap / best[..., None, None]
