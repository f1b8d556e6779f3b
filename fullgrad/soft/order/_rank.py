"""`rank`: the rank of each element, soft."""

from torch import Tensor

from fullgrad.soft._mode_names import AnyStepMode
from fullgrad.soft._relaxation import Softness
from fullgrad.soft.order._operators.rank import rank_operator
from fullgrad.soft.order.methods import RankOrLapSum


def rank(
    x: Tensor,
    dim: int | None = None,
    softness: Softness = 0.1,
    mode: AnyStepMode = "smooth",
    method: RankOrLapSum = "neuralsort",
    descending: bool = True,
    standardize: bool = True,
) -> Tensor:
    r"""The rank of each element, soft, from 1 to n.

    By default the tensor is one row, as in softtorch; ``dim=-1`` is the last dimension, the default of :func:`sort`. Ranks
    descend by default, as in softtorch: the largest element has rank 1. In scipy it is the last: ``descending=False``. The
    method ``neuralsort``, the default, compares all pairs; on rows of thousands ``softsort`` is many times faster.

    .. math::
        y_j = \frac{\sum_i i\, P_{ij}}{\sum_i P_{ij}}, \qquad D_x = \frac{\partial y}{\partial x}

    with the weights P of :func:`argsort`; an element without weight in any place has its hard rank and the derivative 0;
    ``softsort`` weights the positions for each element, :math:`y_j = \sum_i i\,
    \Pi_i(-|z_j - z_{(i)}|)`. ``fast_soft_sort`` projects z onto the permutahedron of 1, …, n, :func:`proj_permutahedron`;
    ``sigmoid`` compares each pair, :math:`y_j = \frac12 + \sum_k S(z_k - z_j)`, or :math:`S(z_j - z_k)` for ascending ranks, with
    :func:`sigmoidal`.

    ``softsort`` takes O(n log n) time and O(n) memory, ``neuralsort`` and ``sigmoid`` O(n) memory, ``sorting_network``
    O(n log² n) of both, derivatives included. Half precision does not have all integers above 256 (bfloat16) or 2048. Saved:
    ``x``.

    On a device the host waits in the modes ``c0`` to ``c2`` of softsort and neuralsort, and by ``fast_soft_sort`` and ``ot``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        dim: The dimension along which the elements are ranked; None ranks all.
        softness: How strongly elements are mixed: a positive number, or a 0-dimensional tensor, which has a gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"`` or ``"hard"``, which is torch's function with torch's derivative.
        method: ``"softsort"``, ``"neuralsort"``, ``"fast_soft_sort"``, ``"ot"``, ``"sorting_network"``, ``"sigmoid"``, or
            ``"lapsum"``; the mode ``"laplace"`` has the last two, which are the same.
        descending: Whether the largest has rank 1.
        standardize: Whether the softness is relative to the spread of the row.

    Returns:
        A tensor of the shape of ``x``.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is not an integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is
            unknown.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.rank(torch.tensor([1.0, 3.0, 2.5]))
        tensor([2.9905, 1.2040, 1.8115])

    Source: ``softtorch.rank``; Blondel et al., https://arxiv.org/abs/2002.08871 (fast_soft_sort); Qin, Liu, Li,
    https://doi.org/10.1007/s10791-009-9124-x (sigmoid).
    """
    options = mode, method, standardize, True, "ranks", False
    return rank_operator("rank", x, dim, softness, descending, options)


def rank_st(
    x: Tensor,
    dim: int | None = None,
    softness: Softness = 0.1,
    mode: AnyStepMode = "smooth",
    method: RankOrLapSum = "neuralsort",
    descending: bool = True,
    standardize: bool = True,
) -> Tensor:
    r"""The rank of each element, with the derivative of its relaxation.

    By default the tensor is one row, as in softtorch; ``dim=-1`` is the last dimension, the default of :func:`sort_st
    <fullgrad.sort_st>`. Ranks descend by default, as in softtorch: the largest element has rank 1. In scipy it is the last:
    ``descending=False``. The method ``neuralsort``, the default, compares all pairs; on rows of thousands ``softsort`` is many
    times faster.

    .. math::
        y = \operatorname{argsort}(\operatorname{argsort} x) + 1, \qquad D_x = \operatorname{rank}_{\text{soft}}'(x)

    the derivative of :func:`fullgrad.soft.rank`, at every order. The value is exact; equal elements are ranked in the order of
    their positions. Saved: ``x``.

    On a device the host waits in the modes ``c0`` to ``c2`` of softsort and neuralsort, and by ``fast_soft_sort`` and ``ot``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        dim: The dimension along which the elements are ranked; None ranks all.
        softness: How strongly elements are mixed: a positive number, or a 0-dimensional tensor, which has a gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, or ``"hard"`` for the derivative of the hard operator.
        method: ``"softsort"``, ``"neuralsort"``, ``"fast_soft_sort"``, ``"ot"``, ``"sorting_network"``, ``"sigmoid"``, or
            ``"lapsum"``; the mode ``"laplace"`` has the last two, which are the same.
        descending: Whether the largest has rank 1.
        standardize: Whether the softness is relative to the spread of the row.

    Returns:
        A tensor of the shape of ``x``.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is not an integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is
            unknown.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([1.0, 3.0, 2.5])
        >>> fullgrad.rank_st(x)
        tensor([3., 1., 2.])
        >>> torch.func.grad(lambda x: fullgrad.rank_st(x)[0])(x)
        tensor([-0.0063, -0.0189,  0.0252])

    Source: ``softtorch.rank_st``.
    """
    options = mode, method, standardize, True, "ranks", True
    return rank_operator("rank_st", x, dim, softness, descending, options)
