"""`argquantile`: the index of a quantile, soft."""

from collections.abc import Sequence

from torch import Tensor

from fullgrad.soft._mode_names import Mode
from fullgrad.soft._relaxation import Softness
from fullgrad.soft.order._operators.quantile import Interpolation, quantile_operator
from fullgrad.soft.order.methods import PermutationMethod


def argquantile(
    x: Tensor,
    q: float | Sequence[float] | Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    softness: Softness = 0.1,
    mode: Mode = "smooth",
    method: PermutationMethod = "neuralsort",
    interpolation: Interpolation = "linear",
    standardize: bool = True,
) -> Tensor:
    r"""The index of a quantile, as weights.

    By default the tensor is one row, as in torch and softtorch; ``dim=-1`` is the last dimension, the default of :func:`sort`.
    The method ``neuralsort``, the default, compares all pairs in the modes ``c0`` to ``c2`` and for second derivatives; on rows
    of thousands ``softsort`` is many times faster there.

    .. math::
        (1 - a)\, P_k + a\, P_{k+1}, \qquad D_x = (1 - a)\, \dot P_k + a\, \dot P_{k+1}

    with p = q (n - 1), k the integer below p and a = p - k, and the weights P of :func:`argsort`, counted from 0; for ``ot`` the
    elements below and above are two groups. Saved: ``x``.

    On a device the host waits in the modes ``c0`` to ``c2`` of softsort and neuralsort, and by ``ot``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        q: Quantiles in [0, 1]: a number, or several, which come first in the result; a tensor has a gradient.
        dim: The dimension along which the elements are compared; None treats the tensor as one row.
        keepdim: Whether the dimension stays, with size 1.
        softness: How strongly elements are mixed: a positive number, or a 0-dimensional tensor, which has a gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"`` or ``"hard"``, which is torch's function with torch's derivative.
        method: ``"softsort"``, ``"neuralsort"``, ``"ot"`` or ``"sorting_network"``.
        interpolation: Between neighboring elements: ``"linear"``, ``"lower"``, ``"higher"``, ``"nearest"`` or ``"midpoint"``.
        standardize: Whether the softness is relative to the spread of the row.

    Returns:
        The weights, in a new last dimension; several ``q`` give a first dimension.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is not an integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is
            unknown, ``q`` is outside [0, 1], or ``interpolation`` is unknown.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.argquantile(torch.tensor([1.0, 3.0, 2.5]), 0.5)
        tensor([0.0093, 0.1962, 0.7946])

    Source: ``softtorch.argquantile``.
    """
    options = mode, method, standardize, True, "weights", False
    return quantile_operator("argquantile", x, q, dim, keepdim, softness, options, interpolation)


def argquantile_st(
    x: Tensor,
    q: float | Sequence[float] | Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    softness: Softness = 0.1,
    mode: Mode = "smooth",
    method: PermutationMethod = "neuralsort",
    interpolation: Interpolation = "linear",
    standardize: bool = True,
) -> Tensor:
    r"""The index of a quantile as at most two weights, with the derivative of its relaxation.

    By default the tensor is one row, as in torch and softtorch; ``dim=-1`` is the last dimension, the default of :func:`sort_st
    <fullgrad.sort_st>`. The method ``neuralsort``, the default, compares all pairs; on rows of thousands ``softsort`` is many
    times faster.

    .. math::
        (1 - a)\, e_{(k)} + a\, e_{(k+1)}, \qquad D_x = (1 - a)\, \dot P_k + a\, \dot P_{k+1}

    with p = q (n - 1), k the integer below p and a = p - k, and the weights P of :func:`fullgrad.soft.argquantile`, at every
    order. Saved: ``x``.

    On a device the host waits in the modes ``c0`` to ``c2`` of softsort and neuralsort, and by ``ot``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        q: Quantiles in [0, 1]: a number, or several, which come first in the result; a tensor has a gradient.
        dim: The dimension along which the elements are compared; None treats the tensor as one row.
        keepdim: Whether the dimension stays, with size 1.
        softness: How strongly elements are mixed: a positive number, or a 0-dimensional tensor, which has a gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, or ``"hard"`` for the derivative of the hard operator.
        method: ``"softsort"``, ``"neuralsort"``, ``"ot"`` or ``"sorting_network"``.
        interpolation: Between neighboring elements: ``"linear"``, ``"lower"``, ``"higher"``, ``"nearest"`` or ``"midpoint"``.
        standardize: Whether the softness is relative to the spread of the row.

    Returns:
        The weights, in a new last dimension; several ``q`` give a first dimension.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is not an integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is
            unknown, ``q`` is outside [0, 1], or ``interpolation`` is unknown.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.argquantile_st(torch.tensor([1.0, 3.0, 2.5]), 0.25)
        tensor([0.5000, 0.0000, 0.5000])

    Source: ``softtorch.argquantile_st``.
    """
    options = mode, method, standardize, True, "weights", True
    return quantile_operator("argquantile_st", x, q, dim, keepdim, softness, options, interpolation)
