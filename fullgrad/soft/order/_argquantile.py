"""`argquantile`: the place of a quantile, soft."""

from collections.abc import Sequence

from torch import Tensor

from fullgrad.soft._modes import Mode
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
    r"""The place of a quantile, as weights.

    .. math::
        (1 - a)\, P_k + a\, P_{k+1}, \qquad D_x = (1 - a)\, \dot P_k + a\, \dot P_{k+1}

    with p = q (n - 1), its place k below and a = p - k, and the weights P of :func:`argsort`, counted from 0; to ``ot`` the
    elements below and above are two groups. Saved: ``x``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        q: From 0 to 1: a number, or several, which come in front; a tensor gets its own gradient.
        dim: The dimension along which the elements are compared; None takes the tensor as one row.
        keepdim: Whether the dimension stays, with size 1.
        softness: How far elements are mixed, positive: a number, or a tensor without dimensions that gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"`` or ``"hard"``, which is torch's own function and derivative.
        method: ``"softsort"``, ``"neuralsort"``, ``"ot"`` or ``"sorting_network"``.
        interpolation: Between neighboring places: ``"linear"``, ``"lower"``, ``"higher"``, ``"nearest"`` or ``"midpoint"``.
        standardize: Whether the softness is relative to the spread of the row.

    Returns:
        The weights, in a last dimension of their own; those of several ``q`` in front.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is no integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is not
            known, ``q`` is a number beyond 0 and 1, or ``interpolation`` is not known.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.argquantile(torch.tensor([1.0, 3.0, 2.5]), 0.5)
        tensor([0.0093, 0.1962, 0.7946])

    Source: ``softtorch.argquantile``.
    """
    options = mode, method, standardize, True
    return quantile_operator("argquantile", x, q, dim, keepdim, softness, options, interpolation, "weights", hard=False)


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
    r"""The place of a quantile as at most two weights, with the derivative of the relaxation.

    .. math::
        (1 - a)\, e_{(k)} + a\, e_{(k+1)}, \qquad D_x = (1 - a)\, \dot P_k + a\, \dot P_{k+1}

    with p = q (n - 1), its place k below and a = p - k, and the weights P of :func:`fullgrad.soft.argquantile`, at every order.
    Saved: ``x``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        q: From 0 to 1: a number, or several, which come in front; a tensor gets its own gradient.
        dim: The dimension along which the elements are compared; None takes the tensor as one row.
        keepdim: Whether the dimension stays, with size 1.
        softness: How far elements are mixed, positive: a number, or a tensor without dimensions that gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, or ``"hard"`` for the derivative of the hard operator.
        method: ``"softsort"``, ``"neuralsort"``, ``"ot"`` or ``"sorting_network"``.
        interpolation: Between neighboring places: ``"linear"``, ``"lower"``, ``"higher"``, ``"nearest"`` or ``"midpoint"``.
        standardize: Whether the softness is relative to the spread of the row.

    Returns:
        The weights, in a last dimension of their own; those of several ``q`` in front.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is no integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is not
            known, ``q`` is a number beyond 0 and 1, or ``interpolation`` is not known.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.argquantile_st(torch.tensor([1.0, 3.0, 2.5]), 0.25)
        tensor([0.5000, 0.0000, 0.5000])

    Source: ``softtorch.argquantile_st``.
    """
    options = mode, method, standardize, True
    return quantile_operator("argquantile_st", x, q, dim, keepdim, softness, options, interpolation, "weights", hard=True)
