"""`topk_mask_st`."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.fast import replaceable
from fullgrad._core.recomputed import Recomputed
from fullgrad._dispatch import row_length, row_totals, rows_are_split
from fullgrad.soft._mode_names import StepMode
from fullgrad.soft._relaxation import Softness
from fullgrad.soft.order.kernels.on_parts import largest_on_parts
from fullgrad.soft.order.kernels.threshold import may_be_far
from fullgrad.soft.simplex._capped_simplex import capped_rows, checked
from fullgrad.soft.simplex._entmax import per_row


def topk_mask_st(x: Tensor, k: int, dim: int = -1, softness: Softness = 0.1, mode: StepMode = "smooth") -> Tensor:
    r"""Ones at the k largest elements and zeros elsewhere, with the derivative of their relaxation.

    .. math::
        y_i = [\,i \in \operatorname{topk} x\,], \qquad D = \text{that of } p,\ p = S(x / s - \theta),\ \sum p = k

    with :func:`fullgrad.soft.proj_capped_simplex`, at every order. The ones are where :func:`torch.topk` finds its elements: any
    of equal ones; where ranks have parts of a row, the first of equal ones. The relaxation is computed only for a derivative, in
    which equal elements have equal shares, plus infinity is chosen and the others share the rest. In a row of fewer than k
    elements above minus infinity some of minus infinity are chosen. Saved: ``x``.

    On a device the host waits for the rounds that find the threshold of the relaxation.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        k: How many elements, from 0 to the size at ``dim``.
        dim: The dimension along which the elements are compared.
        softness: The width of the choice, positive: a number, or a tensor that broadcasts with ``x``, of size 1 at ``dim``, and
            gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"`` or ``"laplace"``.

    Returns:
        A tensor of the shape of ``x``.

    Raises:
        TypeError: ``x`` is not a real tensor, ``k`` not an integer, or ``softness`` not a real number or tensor.
        ValueError: ``k`` is outside of its range, ``softness`` is a number that is not positive, or ``mode`` is unknown.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([1.0, 0.6, 0.5, -1.0])
        >>> fullgrad.topk_mask_st(x, 2)
        tensor([1., 1., 0., 0.])
        >>> torch.func.grad(lambda x: fullgrad.topk_mask_st(x, 2)[1])(x)
        tensor([-5.1664e-02,  1.2005e+00, -1.1489e+00, -9.2296e-07])

    Source: Xie et al., https://arxiv.org/abs/2002.06504; Struski et al., https://arxiv.org/abs/2503.06242.
    """
    name = "topk_mask_st"
    x, _, softness = checked(name, x, 0, dim, softness, mode)
    if x.ndim == 0:
        return topk_mask_st(x.reshape(1), k, -1, softness, mode).reshape(())
    checks.integer_between(name, "k", k, 0, x.shape[dim])
    if isinstance(softness, Tensor):
        softness = per_row(name, softness, x, dim, "softness")
    return topk_mask_of(x.movedim(dim, -1), softness, k, mode).movedim(-1, dim)


@replaceable
def topk_mask_of(x: Tensor, softness: Softness, k: int, mode: str) -> Tensor:
    """`topk_mask_st` of rows, without the checks."""
    return TopKMaskST.apply(x, softness, k, mode)


class TopKMaskST(Recomputed):
    """The operator of :func:`topk_mask_st`, on rows."""

    splits_rows = True

    @staticmethod
    def forward(x: Tensor, softness: Softness, k: int, mode: str) -> Tensor:
        if rows_are_split():
            return largest_on_parts(x, k).to(x.dtype)
        zeros = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
        return zeros if k == 0 else zeros.scatter(-1, x.topk(k, -1, sorted=False).indices, 1.0)

    @staticmethod
    def relaxed(x: Tensor, softness: Any, k: int, mode: str) -> Tensor:
        if may_be_far(x, softness):
            # Plus infinity is chosen, whatever the others are, and minus infinity where no others are left; the finite elements
            # share the rest.
            certain = x.detach() == torch.inf
            counts = [(x.detach() == v).sum(-1, keepdim=True) for v in (torch.inf, -torch.inf)]
            nan, chosen, never = row_totals(x.detach().isnan().any(-1, keepdim=True), *counts)
            finite = row_length(x) - chosen - never
            x = x * torch.where(nan > 0, torch.nan, 1.0).to(x.dtype)
            x = torch.where(certain, -torch.inf, x)
            x = torch.where(finite == 0, 0, x)
            rest: Any = torch.minimum((k - chosen).clamp(min=0), finite).to(x.dtype)
        else:
            rest = k
        return capped_rows("topk_mask_st", x, rest, -1, softness, mode).to(x.dtype)
