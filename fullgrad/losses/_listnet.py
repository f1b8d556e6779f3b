"""`listnet`: the cross entropy of two softmaxes, of relevance and of scores."""

from typing import Literal

import torch
from torch import Tensor

from fullgrad.losses._rows import Rows, checked_rows
from fullgrad.soft._relaxation import floating


def listnet(
    scores: Tensor,
    relevance: Tensor,
    *,
    dim: int = -1,
    mask: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: Literal["none", "mean", "sum"] = "mean",
) -> Tensor:
    r"""The cross entropy of the softmax of the relevance and the softmax of the scores.

    .. math::
        L = -\sum_i q_i \log p_i, \qquad p = \operatorname{softmax}(x), \quad q = \operatorname{softmax}(v), \qquad
        D_x = p - q

    for each row, with its elements alone: a cheap surrogate of NDCG, convex in the scores. The loss is least, the entropy of q,
    where scores differ as relevance does. Derivatives of every order are the true ones. Equal elements are treated alike.

    Elements that ``mask`` leaves out change no loss and have the gradient 0; a row without an element has the loss 0, and does
    not count in the mean. A row with a NaN has the loss NaN. Half precision is computed in float32. Saved: numbers of each
    element.

    Args:
        scores: Any shape; floating, or integer (which gives the default dtype).
        relevance: A tensor of the same shape, of any real dtype, divided by a temperature as you like; it gets no gradient.
        dim: The dimension along which elements are ranked.
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
        ValueError: ``relevance``, ``mask`` or ``weight`` has another shape, ``weight`` is negative, the size of ``dim`` is 0, or
            ``reduction`` is unknown.
        IndexError: ``scores`` has no such dimension.

    Example:
        >>> import torch
        >>> from fullgrad import losses
        >>> scores, relevance = torch.tensor([0.2, 0.9, 0.4]), torch.tensor([3, 0, 1])
        >>> losses.listnet(scores, relevance)
        tensor(1.3912)
        >>> torch.func.grad(losses.listnet)(scores, relevance)
        tensor([-0.6077,  0.4335,  0.1742])

    Source: Cao et al., https://doi.org/10.1145/1273496.1273513, the probability of the first place; ``allrank``'s ``listNet``.
    """
    rows = checked_rows("listnet", "scores", scores, "relevance", relevance, dim, reduction, mask, weight)
    return rows.reduced(rows.losses("listnet", _cross_entropy), reduction, floating(scores).dtype)


def _cross_entropy(rows: Rows, _: None) -> Tensor:
    x, y, valid = rows[:3]
    if valid is not None:
        others = torch.where(valid.any(-1, keepdim=True), -torch.inf, 0.0)  # a row without an element has no softmax
        x, y = [torch.where(valid, v, others) for v in (x, y)]
    q, log_p = torch.softmax(y, -1), torch.log_softmax(x, -1)
    return -(torch.where(q == 0, 0, log_p) * q).sum(-1)
