"""`median`: the median, soft."""

import torch
from torch import Tensor

from fullgrad.soft._mode_names import Mode
from fullgrad.soft._relaxation import Softness
from fullgrad.soft.order._operators.quantile import quantile_operator
from fullgrad.soft.order._outputs import reduction
from fullgrad.soft.order.methods import SortMethod


@reduction
def median(
    x: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    softness: Softness = 0.1,
    mode: Mode = "smooth",
    method: SortMethod = "neuralsort",
    standardize: bool = True,
    gated_grad: bool = True,
) -> Tensor | torch.return_types.median:
    r"""The median, soft.

    By default the tensor is one row, as in torch and softtorch; ``dim=-1`` is the last dimension, the default of :func:`sort`.
    The method ``neuralsort``, the default, compares all pairs in the modes ``c0`` to ``c2`` and for second derivatives; on rows
    of thousands ``softsort`` is many times faster there.

    .. math::
        y = \sum_j P_{mj} x_j, \quad m = \lfloor (n - 1) / 2 \rfloor, \qquad D_x\, t = \sum_j P_{mj} t_j + \dot P_{mj} x_j

    with the weights P of :func:`argmedian`, or the value of :func:`sort` in that position by ``fast_soft_sort`` and
    ``sorting_network``. Saved: ``x``.

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
        With ``dim`` a ``torch.return_types.median`` of the values and their indices, which are the weights;
        without it, the value.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is not an integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is
            unknown, or ``gated_grad`` is False for ``fast_soft_sort`` or ``sorting_network``, which have no weights: so is a
            ``dim`` for them, and ``quantile(x, 0.5, dim, interpolation="lower")`` is that value.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.median(torch.tensor([1.0, 3.0, 2.5]))
        tensor(2.5841)

    Source: ``softtorch.median``.
    """
    outputs = "values" if dim is None else "values_and_weights"
    options = mode, method, standardize, gated_grad, outputs, False
    return quantile_operator("median", x, None, dim, keepdim, softness, options, "median")


@reduction
def median_st(
    x: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    softness: Softness = 0.1,
    mode: Mode = "smooth",
    method: SortMethod = "neuralsort",
    standardize: bool = True,
    gated_grad: bool = True,
) -> Tensor | torch.return_types.median:
    r"""The median, with the derivative of its relaxation.

    By default the tensor is one row, as in torch and softtorch; ``dim=-1`` is the last dimension, the default of :func:`sort_st
    <fullgrad.sort_st>`. The method ``neuralsort``, the default, compares all pairs; on rows of thousands ``softsort`` is many
    times faster.

    .. math::
        y = \operatorname{median} x, \qquad D_x\, t = \sum_j P_{mj} t_j + \dot P_{mj} x_j

    with the weights P of :func:`fullgrad.soft.argmedian`, at every order. The value is that of :func:`torch.median`, bit for bit.
    In the derivative an infinity counts as the last finite element. Saved: ``x``.

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
        The return of :func:`torch.median`: with ``dim`` values and integer indices, without it the value.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is not an integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is
            unknown, or ``gated_grad`` is False for ``fast_soft_sort`` or ``sorting_network``.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([1.0, 3.0, 2.5])
        >>> fullgrad.median_st(x)
        tensor(2.5000)
        >>> torch.func.grad(fullgrad.median_st)(x)
        tensor([-0.0609, -0.0144,  1.0754])

    Source: ``softtorch.median_st``.
    """
    outputs = "values" if dim is None else "values_and_indices"
    options = mode, method, standardize, gated_grad, outputs, True
    return quantile_operator("median_st", x, None, dim, keepdim, softness, options, "median")
