"""`argmax`: the index of the largest element, soft."""

from torch import Tensor

from fullgrad._core import checks
from fullgrad.soft._mode_names import Mode
from fullgrad.soft._relaxation import Softness
from fullgrad.soft.order._log_weights import log_weights
from fullgrad.soft.order._operators.extremum import extremum_operator
from fullgrad.soft.order.methods import PermutationMethod


def argmax(
    x: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    softness: Softness = 0.1,
    mode: Mode = "smooth",
    method: PermutationMethod = "softsort",
    standardize: bool = True,
    *,
    return_log_probs: bool = False,
) -> Tensor:
    r"""The index of the largest element, as weights.

    By default the tensor is one row, as in torch and softtorch; ``dim=-1`` is the last dimension, the default of :func:`sort`.
    The method ``neuralsort`` compares all pairs in the modes ``c0`` to ``c2`` and for second derivatives; on rows of thousands
    ``softsort`` is many times faster there.

    .. math::
        P_n, \qquad D_x = \frac{\partial P_n}{\partial x}

    with the row of weights :math:`P_n` of :func:`argsort`, which sum to 1: for ``softsort`` the projection of z / s onto the
    simplex, :func:`proj_simplex`. Saved: ``x``, for small rows in smooth mode also the weights.

    On a device the host waits in the modes ``c0`` to ``c2`` of softsort and neuralsort, and by ``ot``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        dim: The dimension along which the elements are compared; None treats the tensor as one row.
        keepdim: Whether the dimension stays, with size 1.
        softness: How strongly elements are mixed: a positive number, or a 0-dimensional tensor, which has a gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"`` or ``"hard"``, which is torch's function with torch's derivative.
        method: ``"softsort"``, ``"neuralsort"``, ``"ot"`` or ``"sorting_network"``.
        standardize: Whether the softness is relative to the spread of the row.
        return_log_probs: Whether the values are the logarithms of the weights, finite where these underflow: in smooth mode, by
            softsort or neuralsort.

    Returns:
        The weights, in a new last dimension: the shape of ``x`` without ``dim``, and n last.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is not an integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is
            unknown, or has weights that may be 0 with ``return_log_probs``.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.argmax(torch.tensor([1.0, 3.0, 2.5]))
        tensor([0.0041, 0.7833, 0.2126])

    Source: ``softtorch.argmax``; Prillo, Eisenschlos, https://arxiv.org/abs/2006.16038 (softsort); Grover et al.,
    https://arxiv.org/abs/1903.08850 (neuralsort).
    """
    checks.flag("argmax", "return_log_probs", return_log_probs)
    if return_log_probs:
        return log_weights("argmax", x, dim, softness, mode, method, standardize, keepdim=keepdim, largest=True)
    options = mode, method, standardize, True, "weights", False
    return extremum_operator("argmax", x, dim, keepdim, softness, options, largest=True)


def argmax_st(
    x: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    softness: Softness = 0.1,
    mode: Mode = "smooth",
    method: PermutationMethod = "softsort",
    standardize: bool = True,
) -> Tensor:
    r"""The index of the largest element as a one-hot vector, with the derivative of its relaxation.

    By default the tensor is one row, as in torch and softtorch; ``dim=-1`` is the last dimension, the default of :func:`sort_st
    <fullgrad.sort_st>`. The method ``neuralsort`` compares all pairs in the modes ``c0`` to ``c2`` and for second derivatives; on
    rows of thousands ``softsort`` is many times faster there.

    .. math::
        e_{\operatorname{argmax} x}, \qquad D_x = \frac{\partial P_n}{\partial x}

    with the weights P of :func:`fullgrad.soft.argsort`, at every order. Saved: ``x``.

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
        Zeros and a one, in a new last dimension: the shape of ``x`` without ``dim``, and n last.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is not an integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is
            unknown.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([1.0, 3.0, 2.5])
        >>> fullgrad.argmax_st(x)
        tensor([0., 1., 0.])
        >>> torch.func.grad(lambda x: fullgrad.argmax_st(x) @ torch.arange(3.0))(x)
        tensor([-0.1177, -0.3530,  0.4706])

    Source: ``softtorch.argmax_st``.
    """
    options = mode, method, standardize, True, "weights", True
    return extremum_operator("argmax_st", x, dim, keepdim, softness, options, largest=True)
