"""`topk`: the k largest elements, soft."""

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad.soft._mode_names import Mode
from fullgrad.soft._relaxation import Softness
from fullgrad.soft.order._operators.sort import sort_operator
from fullgrad.soft.order.methods import SortMethod


def topk(
    x: Tensor,
    k: int,
    dim: int | None = None,
    softness: Softness = 0.1,
    mode: Mode = "smooth",
    method: SortMethod = "neuralsort",
    standardize: bool = True,
    gated_grad: bool = True,
    return_indices: bool = True,
) -> torch.return_types.topk:
    r"""The k largest elements, soft.

    The method ``neuralsort``, the default, compares all pairs in the modes ``c0`` to ``c2`` and for second derivatives; on rows
    of thousands ``softsort`` is many times faster there.

    .. math::
        y_i = \sum_j P_{n + 1 - i, j}\, x_j, \qquad D_x\, t = P t + \dot P x

    with the weights P of :func:`argsort`; for ``ot`` the rest of the row is one group. ``fast_soft_sort`` projects onto the
    permutahedron of z, :func:`proj_permutahedron`, and ``sorting_network`` compares softly; both map the values back from (0, 1).
    Saved: ``x``.

    On a device the host waits in the modes ``c0`` to ``c2`` of softsort and neuralsort, and by ``fast_soft_sort`` and ``ot``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        k: How many elements, from 1 to n.
        dim: The dimension along which the elements are compared; None is the last one.
        softness: How strongly elements are mixed: a positive number, or a 0-dimensional tensor, which has a gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"`` or ``"hard"``, which is torch's function with torch's derivative.
        method: ``"softsort"``, ``"neuralsort"``, ``"fast_soft_sort"``, ``"ot"`` or ``"sorting_network"``.
        standardize: Whether the softness is relative to the spread of the row.
        gated_grad: Whether the weights have a derivative; otherwise they are constants at every order.
        return_indices: Whether the weights are returned as indices, n numbers for each element.

    Returns:
        A ``torch.return_types.topk`` of the values, the largest first, and their weights as indices, k by n, or None.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is not an integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is
            unknown, or ``gated_grad`` is False for ``fast_soft_sort`` or ``sorting_network``, or ``k`` is not from 1 to n.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([1.0, 3.0, 2.4])
        >>> fullgrad.soft.topk(x, 2)
        torch.return_types.topk(
        values=tensor([2.8875, 2.4735]),
        indices=tensor([[1.5718e-06, 8.1242e-01, 1.8757e-01],
                [1.2280e-02, 1.5115e-01, 8.3657e-01]]))

    Source: ``softtorch.topk``.
    """
    checks.flag("topk", "return_indices", return_indices)
    dim, outputs = -1 if dim is None else dim, "values_and_weights" if return_indices else "values"
    options = mode, method, standardize, gated_grad, outputs, False
    return sort_operator("topk", x, dim, True, softness, options, k=k)


def topk_st(
    x: Tensor,
    k: int,
    dim: int | None = None,
    softness: Softness = 0.1,
    mode: Mode = "smooth",
    method: SortMethod = "neuralsort",
    standardize: bool = True,
    gated_grad: bool = True,
    return_indices: bool = True,
) -> torch.return_types.topk:
    r"""The k largest elements, with the derivative of their relaxation.

    The method ``neuralsort``, the default, compares all pairs in the modes ``c0`` to ``c2`` and for second derivatives; on rows
    of thousands ``softsort`` is many times faster there.

    .. math::
        y = \operatorname{topk} x, \qquad D_x\, t = P t + \dot P x

    with the weights P of :func:`fullgrad.soft.topk`, at every order. The value is that of :func:`torch.topk`, bit for bit, at the
    cost of :func:`torch.topk`. In the derivative an infinity counts as the last finite element. Saved: ``x``.

    On a device the host waits in the modes ``c0`` to ``c2`` of softsort and neuralsort, and by ``fast_soft_sort`` and ``ot``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        k: How many elements, from 1 to n.
        dim: The dimension along which the elements are compared; None is the last one.
        softness: How strongly elements are mixed: a positive number, or a 0-dimensional tensor, which has a gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, or ``"hard"`` for the derivative of the hard operator.
        method: ``"softsort"``, ``"neuralsort"``, ``"fast_soft_sort"``, ``"ot"`` or ``"sorting_network"``.
        standardize: Whether the softness is relative to the spread of the row.
        gated_grad: Whether the weights have a derivative; otherwise they are constants at every order.
        return_indices: Whether the indices are returned; otherwise they are None.

    Returns:
        The return of :func:`torch.topk`: values and integer indices, or None.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is not an integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is
            unknown, or ``gated_grad`` is False for ``fast_soft_sort`` or ``sorting_network``, or ``k`` is not from 1 to n.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([1.0, 3.0, 2.5])
        >>> fullgrad.topk_st(x, 2)
        torch.return_types.topk(
        values=tensor([3.0000, 2.5000]),
        indices=tensor([1, 2]))
        >>> torch.func.grad(lambda x: fullgrad.topk_st(x, 2).values.sum())(x)
        tensor([-0.0042,  0.9259,  1.0783])

    Source: ``softtorch.topk_st``.
    """
    dim = -1 if dim is None else dim
    checks.flag("topk_st", "return_indices", return_indices)
    outputs = "values_and_indices" if return_indices else "values"
    options = mode, method, standardize, gated_grad, outputs, True
    return sort_operator("topk_st", x, dim, True, softness, options, k=k)
