"""`spearman`: one minus Spearman's rank correlation."""

from typing import Literal

import torch
from torch import Tensor

from fullgrad._dispatch import perhaps
from fullgrad.losses._rows import Rows, checked_rows, mean_ranks, quotient, soft_ranks
from fullgrad.soft._mode_names import AnyStepMode
from fullgrad.soft._relaxation import Softness, floating
from fullgrad.soft.order.methods import RankOrLapSum


def spearman(
    prediction: Tensor,
    target: Tensor,
    *,
    dim: int = -1,
    softness: Softness | None = None,
    mode: AnyStepMode | None = None,
    method: RankOrLapSum = "sigmoid",
    standardize: bool = True,
    mask: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: Literal["none", "mean", "sum"] = "mean",
) -> Tensor:
    r"""One minus Spearman's rank correlation, by soft ranks of the prediction.

    .. math::
        L = 1 - \frac{\sum_i (r_i - \bar r)(q_i - \bar q)}
        {\sqrt{\sum_i (r_i - \bar r)^2 \sum_i (q_i - \bar q)^2}}, \qquad r = \operatorname{rank}(x), \qquad
        D_x = \frac{\partial L}{\partial r} \frac{\partial r}{\partial x}

    for each row: 0 where prediction and target have the same order, 2 where it is reversed. The ranks *r* are those of
    :func:`fullgrad.soft.rank`, but nothing is added to the variance of a row that is standardized, so that the unit of
    predictions does not matter. The ranks *q* of the target are hard; equal targets share the mean of their ranks. As the
    softness becomes small the loss tends to ``1 - scipy.stats.spearmanr``, which it is with the mode ``"hard"``. Derivatives of
    every order are the true ones of the soft loss.

    By default the softness is half of the spread of the row, and 6 neighbors in a row of less than 12: sharper ranks have local
    minima, in which elements are not in order. The ranks take O(n log n) time and O(n) memory. In a row of two elements the
    spread, to which the softness is relative, is a constant to derivatives, and so is the root of the sum of the squares of *r*;
    derivatives would be 0, as that by the softness is. Elements that ``mask`` leaves out change no loss and have the gradient 0;
    a row without an element has the loss 0, and does not count in the mean.

    A row in which all predictions or all targets are equal has no correlation: its loss is 1 with the derivative 0. The gradient
    of a row that is standardized is inversely proportional to its spread, which the loss does not depend on: that of a row of two
    or three elements is large where they are nearly equal, so clip its norm, or give such rows a small weight. A row with a
    NaN has the loss NaN. Infinite predictions are ranked, which ``standardize`` allows. Half precision is computed in float32.
    Saved: the prediction, and numbers of each element.

    Args:
        prediction: Any shape; floating, or integer (which gives the default dtype).
        target: A tensor of the same shape, of any real dtype; it gets no gradient.
        dim: The dimension along which elements are ranked.
        softness: How soft the ranks are, as in :func:`fullgrad.soft.rank`: a positive number, or a 0-dimensional tensor, which
            gets its own gradient; None for max(1/2, 6/n) in a row of n elements.
        mode: As in :func:`fullgrad.soft.rank`; None for ``"laplace"`` with the methods that have it, else ``"smooth"``.
        method: As in :func:`fullgrad.soft.rank`.
        standardize: Whether the softness is relative to the spread of the row.
        mask: A bool tensor of the shape of ``prediction``, True for the elements of a row; None if all are.
        weight: How much each row counts, not negative: a tensor that broadcasts to the shape of ``prediction`` without ``dim``,
            and gets its own gradient; None for 1.
        reduction: ``"none"``, ``"mean"`` or ``"sum"`` over rows: :math:`w L`, :math:`\sum w L / \sum w` or :math:`\sum w L` with
            the weights *w*, which are 0 for rows without an element.

    Returns:
        A number; with ``"none"`` a tensor of the shape of ``prediction`` without ``dim``.

    Raises:
        TypeError: ``prediction``, ``target`` or ``weight`` is not a real tensor, ``mask`` not a bool tensor, ``softness`` is not
            a real number or tensor, or ``dim`` is not an integer.
        ValueError: ``target``, ``mask`` or ``weight`` has another shape, ``weight`` is negative, the size of ``dim`` is 0,
            ``softness`` is not positive, ``mode``, ``method`` or ``reduction`` is unknown, or ``mask`` is given with a method
            other than ``"sigmoid"`` and ``"lapsum"``.
        IndexError: ``prediction`` has no such dimension.

    Example:
        >>> import torch
        >>> from fullgrad import losses
        >>> prediction, target = torch.tensor([0.1, 0.9, 0.4, 0.3]), torch.tensor([1.0, 3.0, 4.0, 2.0])
        >>> losses.spearman(prediction, target, softness=1e-3)
        tensor(0.2000)
        >>> torch.func.grad(losses.spearman)(prediction, target)
        tensor([ 0.5532,  0.3918, -1.2442,  0.2993])

    Source: Blondel et al., https://arxiv.org/abs/2002.08871; ``scipy.stats.spearmanr``.
    """
    rows = checked_rows("spearman", "prediction", prediction, "target", target, dim, reduction, mask, weight)

    def of_rows(rows: Rows, softness: Softness | None) -> Tensor:
        r, _ = soft_ranks("spearman", rows, softness, mode, method, standardize, descending=False)
        n = rows.count
        if isinstance(softness, Tensor) and (isinstance(n, Tensor) or perhaps(n == 2)):  # on which two elements do not depend
            fixed, _ = soft_ranks("spearman", rows, softness.detach(), mode, method, standardize, descending=False)
            r = torch.where(rows.only(torch.ones_like(r)).sum(-1, keepdim=True) == 2, fixed, r)
        q = mean_ranks(rows.y, rows.valid, descending=False).to(r.dtype)
        n = n.clamp(min=1) if isinstance(n, Tensor) else n
        # Divided by n, so that sums do not overflow.
        r, q = [rows.only(v - rows.only(v).sum(-1, keepdim=True) / n) / n for v in (r, q)]
        of_r, of_q = [(v * v).sum(-1, keepdim=True) for v in (r, q)]
        x = rows.x.detach()
        # Soft ranks of equal numbers may differ by rounding.
        constant = rows.only(x, -torch.inf).amax(-1, keepdim=True) == rows.only(x, torch.inf).amin(-1, keepdim=True)
        constant = constant | (of_r == 0) | (of_q == 0)
        spread = torch.where(constant, 1, rows.constant_of_two(of_r)).sqrt() * torch.where(constant, 1, of_q).sqrt()
        return (1 - quotient((r * q).sum(-1, keepdim=True), spread, constant)).squeeze(-1)

    return rows.reduced(rows.losses("spearman", of_rows, softness), reduction, floating(prediction).dtype)
