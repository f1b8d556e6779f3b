"""`min`: the smallest element, soft."""

import torch
from torch import Tensor

from fullgrad.soft._mode_names import Mode
from fullgrad.soft._relaxation import Softness
from fullgrad.soft.order._operators.extremum import extremum_operator
from fullgrad.soft.order._outputs import reduction
from fullgrad.soft.order.methods import SortMethod


@reduction
def min(
    x: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    softness: Softness = 0.1,
    mode: Mode = "smooth",
    method: SortMethod = "softsort",
    standardize: bool = True,
    gated_grad: bool = True,
) -> Tensor | torch.return_types.min:
    r"""The smallest element, soft.

    By default the tensor is one row, as in torch and softtorch; ``dim=-1`` is the last dimension, the default of :func:`sort`.
    The method ``neuralsort`` compares all pairs in the modes ``c0`` to ``c2`` and for second derivatives; on rows of thousands
    ``softsort`` is many times faster there.

    .. math::
        y = \sum_j P_{1 j} x_j, \qquad D_x\, t = \sum_j P_{1 j} t_j + \sum_j x_j \dot P_{1 j}

    with the weights P of :func:`argsort`, and :math:`\dot P` their derivative along t; the methods ``fast_soft_sort`` and
    ``sorting_network`` give the value of :func:`sort`. Saved: ``x``.

    On a device the host waits in the modes ``c0`` to ``c2`` of softsort and neuralsort, and by ``fast_soft_sort`` and ``ot``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        dim: The dimension along which the elements are compared; None treats the tensor as one row.
        keepdim: Whether the dimension stays, with size 1.
        softness: How strongly elements are mixed: a positive number, or a 0-dimensional tensor, which has a gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"`` or ``"hard"``, which is torch's function with torch's derivative.
        method: ``"softsort"``, ``"neuralsort"``, ``"fast_soft_sort"``, ``"ot"`` or ``"sorting_network"``.
        standardize: Whether the softness is relative to the spread of the row.
        gated_grad: Whether the weights have a derivative; otherwise they are constants at every order.

    Returns:
        With ``dim`` a ``torch.return_types.min`` of the values and their indices, which are the weights of :func:`argmin` (None
        by ``fast_soft_sort`` and ``sorting_network``); without it, the value.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is not an integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is
            unknown, or ``gated_grad`` is False for ``fast_soft_sort`` or ``sorting_network``.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([1.0, 3.0, 2.5])
        >>> fullgrad.soft.min(x)
        tensor(1.0385)
        >>> fullgrad.soft.min(x, dim=0, mode="c0").indices
        tensor([1., 0., 0.])

    Source: ``softtorch.min``; Prillo, Eisenschlos, https://arxiv.org/abs/2006.16038 (softsort); Grover et al.,
    https://arxiv.org/abs/1903.08850 (neuralsort).
    """
    options = mode, method, standardize, gated_grad, "values_and_weights", False
    return extremum_operator("min", x, dim, keepdim, softness, options, largest=False)


@reduction
def min_st(
    x: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    softness: Softness = 0.1,
    mode: Mode = "smooth",
    method: SortMethod = "softsort",
    standardize: bool = True,
    gated_grad: bool = True,
) -> Tensor | torch.return_types.min:
    r"""The smallest element, with the derivative of its relaxation.

    By default the tensor is one row, as in torch and softtorch; ``dim=-1`` is the last dimension, the default of :func:`sort_st
    <fullgrad.sort_st>`. The method ``neuralsort`` compares all pairs in the modes ``c0`` to ``c2`` and for second derivatives; on
    rows of thousands ``softsort`` is many times faster there.

    .. math::
        y = \min x, \qquad D_x\, t = \sum_j P_{1 j} t_j + \sum_j x_j \dot P_{1 j}

    with the weights P of :func:`fullgrad.soft.argsort`, at every order. The value is that of :func:`torch.min`, bit for bit. An
    infinity counts as the last finite element in the derivative. Saved: ``x``.

    On a device the host waits in the modes ``c0`` to ``c2`` of softsort and neuralsort, and by ``fast_soft_sort`` and ``ot``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        dim: The dimension along which the elements are compared; None treats the tensor as one row.
        keepdim: Whether the dimension stays, with size 1.
        softness: How strongly elements are mixed: a positive number, or a 0-dimensional tensor, which has a gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, or ``"hard"`` for the derivative of the hard operator.
        method: ``"softsort"``, ``"neuralsort"``, ``"fast_soft_sort"``, ``"ot"`` or ``"sorting_network"``.
        standardize: Whether the softness is relative to the spread of the row.
        gated_grad: Whether the weights have a derivative; otherwise they are constants at every order.

    Returns:
        The return of :func:`torch.min`: with ``dim`` values and integer indices, without it the value.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is not an integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is
            unknown, or ``gated_grad`` is False for ``fast_soft_sort`` or ``sorting_network``.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([1.0, 3.0, 2.5])
        >>> fullgrad.min_st(x)
        tensor(1.)
        >>> torch.func.grad(fullgrad.min_st)(x)
        tensor([ 0.9881,  0.0413, -0.0293])

    Source: ``softtorch.min_st``.
    """
    options = mode, method, standardize, gated_grad, "values_and_indices", True
    return extremum_operator("min_st", x, dim, keepdim, softness, options, largest=False)
