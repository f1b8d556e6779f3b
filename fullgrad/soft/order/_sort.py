"""`sort`: the elements in order, soft."""

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad.soft._mode_names import AnyStepMode
from fullgrad.soft._relaxation import Softness
from fullgrad.soft.order._operators.sort import sort_operator
from fullgrad.soft.order.methods import SortOrLapSum


def sort(
    x: Tensor,
    dim: int | None = -1,
    descending: bool = False,
    softness: Softness = 0.1,
    mode: AnyStepMode = "smooth",
    method: SortOrLapSum = "neuralsort",
    standardize: bool = True,
    gated_grad: bool = True,
    return_indices: bool = True,
) -> torch.return_types.sort:
    r"""The elements in order, soft.

    The method ``neuralsort``, the default, compares all pairs; on rows of thousands ``softsort`` is many times faster.

    .. math::
        y = P x, \qquad D_x\, t = P t + \dot P x

    with the weights P of :func:`argsort`, and :math:`\dot P` their derivative along t. ``fast_soft_sort`` projects onto the
    permutahedron of z, :func:`proj_permutahedron`, and ``sorting_network`` compares softly; both map the values back from (0, 1).

    In every mode ``softsort`` takes O(n log n) time and O(n) memory for the values, ``neuralsort`` O(n) memory, derivatives
    included; indices are n by n. Saved: ``x``.

    ``lapsum``, in the mode ``laplace``, finds the values at which a sum of soft steps has the height of each place,
    :math:`\sum_j S(y_i - z_j) = i - \frac12`, with :func:`sigmoidal`.

    On a device the host waits in the modes ``c0`` to ``c2`` of softsort and neuralsort, and by ``fast_soft_sort`` and ``ot``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        dim: The dimension along which the elements are compared; None treats the tensor as one row.
        descending: Whether the order is from the largest to the smallest.
        softness: How strongly elements are mixed: a positive number, or a 0-dimensional tensor, which has a gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"`` or ``"hard"``, which is torch's function with torch's derivative.
        method: ``"softsort"``, ``"neuralsort"``, ``"fast_soft_sort"``, ``"ot"``, ``"sorting_network"``, or ``"lapsum"`` in the
            mode ``"laplace"``.
        standardize: Whether the softness is relative to the spread of the row.
        gated_grad: Whether the weights have a derivative; otherwise they are constants at every order.
        return_indices: Whether the weights are returned as indices, n numbers for each element.

    Returns:
        A ``torch.return_types.sort`` of the values, and the weights of :func:`argsort` as indices, or None.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is not an integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is
            unknown, or ``gated_grad`` is False for ``fast_soft_sort``, ``sorting_network`` or ``lapsum``.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([1.0, 3.0, 2.5])
        >>> fullgrad.soft.sort(x).values
        tensor([1.0475, 2.5841, 2.8851])
        >>> fullgrad.soft.sort(x, method="fast_soft_sort", softness=1.0).values
        tensor([1.0000, 2.5000, 3.0000])

    Source: ``softtorch.sort``; Prillo, Eisenschlos, https://arxiv.org/abs/2006.16038 (softsort); Grover et al.,
    https://arxiv.org/abs/1903.08850 (neuralsort); Blondel et al., https://arxiv.org/abs/2002.08871 (fast_soft_sort); Struski et
    al., https://arxiv.org/abs/2503.06242 (lapsum).
    """
    checks.flag("sort", "return_indices", return_indices)
    outputs = "values_and_weights" if return_indices else "values"
    options = mode, method, standardize, gated_grad, outputs, False
    return sort_operator("sort", x, dim, descending, softness, options)


def sort_st(
    x: Tensor,
    dim: int | None = -1,
    descending: bool = False,
    softness: Softness = 0.1,
    mode: AnyStepMode = "smooth",
    method: SortOrLapSum = "neuralsort",
    standardize: bool = True,
    gated_grad: bool = True,
    return_indices: bool = True,
) -> torch.return_types.sort:
    r"""The elements in order, with the derivative of their relaxation.

    The method ``neuralsort``, the default, compares all pairs; on rows of thousands ``softsort`` is many times faster.

    .. math::
        y = \operatorname{sort} x, \qquad D_x\, t = P t + \dot P x

    with the weights P of :func:`fullgrad.soft.argsort`, at every order; or the derivative of :func:`fullgrad.soft.sort` by
    ``fast_soft_sort`` and ``sorting_network``. The value is that of :func:`torch.sort`, bit for bit, at the cost of
    :func:`torch.sort`: the relaxation is computed only for a derivative. In the derivative an infinity counts as the last finite
    element. Saved: ``x``.

    On a device the host waits in the modes ``c0`` to ``c2`` of softsort and neuralsort, and by ``fast_soft_sort`` and ``ot``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        dim: The dimension along which the elements are compared; None treats the tensor as one row.
        descending: Whether the order is from the largest to the smallest.
        softness: How strongly elements are mixed: a positive number, or a 0-dimensional tensor, which has a gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, or ``"hard"`` for the derivative of the hard operator.
        method: ``"softsort"``, ``"neuralsort"``, ``"fast_soft_sort"``, ``"ot"``, ``"sorting_network"``, or ``"lapsum"`` in the
            mode ``"laplace"``.
        standardize: Whether the softness is relative to the spread of the row.
        gated_grad: Whether the weights have a derivative; otherwise they are constants at every order.
        return_indices: Whether the indices are returned; otherwise they are None.

    Returns:
        The return of :func:`torch.sort`: values and integer indices, or None.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is not an integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is
            unknown, or ``gated_grad`` is False for ``fast_soft_sort``, ``sorting_network`` or ``lapsum``.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([1.0, 3.0, 2.5])
        >>> fullgrad.sort_st(x).values
        tensor([1.0000, 2.5000, 3.0000])
        >>> torch.func.grad(lambda x: fullgrad.sort_st(x, method="softsort").values @ torch.arange(3.0))(x)
        tensor([0.0679, 1.9109, 1.0212])

    Source: ``softtorch.sort_st``.
    """
    checks.flag("sort_st", "return_indices", return_indices)
    outputs = "values_and_indices" if return_indices else "values"
    options = mode, method, standardize, gated_grad, outputs, True
    return sort_operator("sort_st", x, dim, descending, softness, options)
