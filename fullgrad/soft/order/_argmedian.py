"""`argmedian`: the index of the median, soft."""

from torch import Tensor

from fullgrad.soft._mode_names import Mode
from fullgrad.soft._relaxation import Softness
from fullgrad.soft.order._operators.quantile import quantile_operator
from fullgrad.soft.order.methods import PermutationMethod


def argmedian(
    x: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    softness: Softness = 0.1,
    mode: Mode = "smooth",
    method: PermutationMethod = "neuralsort",
    standardize: bool = True,
) -> Tensor:
    r"""The index of the median, as weights.

    By default the tensor is one row, as in torch and softtorch; ``dim=-1`` is the last dimension, the default of :func:`sort`.
    The method ``neuralsort``, the default, compares all pairs in the modes ``c0`` to ``c2`` and for second derivatives; on rows
    of thousands ``softsort`` is many times faster there.

    .. math::
        P_m, \quad m = \lfloor (n - 1) / 2 \rfloor, \qquad D_x = \dot P_m

    with the weights P of :func:`argquantile`; for an even number of elements, the lower one of the middle two, as in torch.
    Saved: ``x``.

    On a device the host waits in the modes ``c0`` to ``c2`` of softsort and neuralsort, and by ``ot``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        dim: The dimension along which the elements are compared; None treats the tensor as one row.
        keepdim: Whether the dimension stays, with size 1.
        softness: How strongly elements are mixed: a positive number, or a 0-dimensional tensor, which has a gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"`` or ``"hard"``, which is torch's function with torch's derivative.
        method: ``"softsort"``, ``"neuralsort"``, ``"ot"`` or ``"sorting_network"``.
        standardize: Whether the softness is relative to the spread of the row.

    Returns:
        The weights, in a new last dimension.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is not an integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is
            unknown.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.argmedian(torch.tensor([1.0, 3.0, 2.5]))
        tensor([0.0093, 0.1962, 0.7946])

    Source: ``softtorch.argmedian``.
    """
    options = mode, method, standardize, True, "weights", False
    return quantile_operator("argmedian", x, None, dim, keepdim, softness, options, "median")


def argmedian_st(
    x: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    softness: Softness = 0.1,
    mode: Mode = "smooth",
    method: PermutationMethod = "neuralsort",
    standardize: bool = True,
) -> Tensor:
    r"""The index of the median as a one-hot vector, with the derivative of its relaxation.

    By default the tensor is one row, as in torch and softtorch; ``dim=-1`` is the last dimension, the default of :func:`sort_st
    <fullgrad.sort_st>`. The method ``neuralsort``, the default, compares all pairs; on rows of thousands ``softsort`` is many
    times faster.

    .. math::
        e_{(m)}, \quad m = \lfloor (n - 1) / 2 \rfloor, \qquad D_x = \dot P_m

    with the weights P of :func:`fullgrad.soft.argquantile`, at every order. Saved: ``x``.

    On a device the host waits in the modes ``c0`` to ``c2`` of softsort and neuralsort, and by ``ot``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        dim: The dimension along which the elements are compared; None treats the tensor as one row.
        keepdim: Whether the dimension stays, with size 1.
        softness: How strongly elements are mixed: a positive number, or a 0-dimensional tensor, which has a gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, or ``"hard"`` for the derivative of the hard operator.
        method: ``"softsort"``, ``"neuralsort"``, ``"ot"`` or ``"sorting_network"``.
        standardize: Whether the softness is relative to the spread of the row.

    Returns:
        Zeros and a one, in a new last dimension.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is not an integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is
            unknown.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.argmedian_st(torch.tensor([1.0, 3.0, 2.5]))
        tensor([0., 0., 1.])

    Source: ``softtorch.argmedian_st``.
    """
    options = mode, method, standardize, True, "weights", True
    return quantile_operator("argmedian_st", x, None, dim, keepdim, softness, options, "median")
