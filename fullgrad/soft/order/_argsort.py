"""`argsort`: the order of the elements, soft."""

from torch import Tensor

from fullgrad._core import checks
from fullgrad.soft._mode_names import Mode
from fullgrad.soft._relaxation import Softness
from fullgrad.soft.order._log_weights import log_weights
from fullgrad.soft.order._operators.sort import sort_operator
from fullgrad.soft.order.methods import PermutationMethod


def argsort(
    x: Tensor,
    dim: int | None = -1,
    descending: bool = False,
    softness: Softness = 0.1,
    mode: Mode = "smooth",
    method: PermutationMethod = "neuralsort",
    standardize: bool = True,
    *,
    return_log_probs: bool = False,
) -> Tensor:
    r"""The order of the elements, as the weights of each element in each position.

    .. math::
        P, \qquad D_x = \frac{\partial P}{\partial x}

    P is n by n, and each of its rows sums to 1. With z the row, standardized to (0, 1), and :math:`\Pi` the projection onto the
    simplex, :func:`proj_simplex`, in the mode and with the softness:

    * ``softsort``: :math:`P_i = \Pi(-|z_{(i)} - z|)`, with :math:`z_{(i)}` the i-th element in order.

    * ``neuralsort``: :math:`P_i = \Pi((2i - n - 1)\, z - A)`, :math:`A_j = \sum_k A(z_j - z_k)`, with the soft absolute value
      :func:`abs`.

    * ``ot``: n times the plan of :func:`proj_transport_polytope` that moves z to n equally spaced points of [0, 1], at the cost
      of the squared distance.

    * ``sorting_network``: the exchanges of a bitonic network, each as far as :func:`sigmoidal` says.

    Standardizing is :math:`z = 1 / (1 + e^{-(x - \mu) / \sigma})`, with the variance of the row plus 1e-6 for :math:`\sigma^2`.
    Infinities become 0 and 1. At ties the derivative of the distance is 0. The derivatives are the true ones, of every order.
    Saved: ``x``, for small rows in smooth mode also the weights.

    On a device the host waits in the modes ``c0`` to ``c2`` of softsort and neuralsort, and by ``ot``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        dim: The dimension along which the elements are compared; None treats the tensor as one row.
        descending: Whether the order is from the largest to the smallest.
        softness: How strongly elements are mixed: a positive number, or a 0-dimensional tensor, which has a gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"`` or ``"hard"``, which is torch's function with torch's derivative.
        method: ``"softsort"``, ``"neuralsort"``, ``"ot"`` or ``"sorting_network"``.
        standardize: Whether the softness is relative to the spread of the row.
        return_log_probs: Whether the values are the logarithms of the weights, finite where these underflow: in smooth mode, by
            softsort or neuralsort.

    Returns:
        The weights: the positions where ``dim`` was, and the elements in a new last dimension.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is not an integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is
            unknown, or has weights that may be 0 with ``return_log_probs``.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.argsort(torch.tensor([1.0, 3.0, 2.5]), method="softsort")
        tensor([[0.9760, 0.0051, 0.0189],
                [0.0150, 0.2103, 0.7747],
                [0.0041, 0.7833, 0.2126]])

    Source: ``softtorch.argsort``; Prillo, Eisenschlos, https://arxiv.org/abs/2006.16038 (softsort); Grover et al.,
    https://arxiv.org/abs/1903.08850 (neuralsort); Cuturi, Teboul, Vert, https://arxiv.org/abs/1905.11885 (ot); Petersen et al.,
    https://arxiv.org/abs/2105.04019 (sorting_network).
    """
    checks.flag("argsort", "return_log_probs", return_log_probs)
    if return_log_probs:
        return log_weights("argsort", x, dim, softness, mode, method, standardize, descending=descending)
    options = mode, method, standardize, True, "weights", False
    return sort_operator("argsort", x, dim, descending, softness, options)


def argsort_st(
    x: Tensor,
    dim: int | None = -1,
    descending: bool = False,
    softness: Softness = 0.1,
    mode: Mode = "smooth",
    method: PermutationMethod = "neuralsort",
    standardize: bool = True,
) -> Tensor:
    r"""The order of the elements as a permutation matrix, with the derivative of its relaxation.

    .. math::
        e_{\operatorname{argsort} x}, \qquad D_x = \frac{\partial P}{\partial x}

    with the weights P of :func:`fullgrad.soft.argsort`, at every order. Saved: ``x``.

    On a device the host waits in the modes ``c0`` to ``c2`` of softsort and neuralsort, and by ``ot``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        dim: The dimension along which the elements are compared; None treats the tensor as one row.
        descending: Whether the order is from the largest to the smallest.
        softness: How strongly elements are mixed: a positive number, or a 0-dimensional tensor, which has a gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, or ``"hard"`` for the derivative of the hard operator.
        method: ``"softsort"``, ``"neuralsort"``, ``"ot"`` or ``"sorting_network"``.
        standardize: Whether the softness is relative to the spread of the row.

    Returns:
        Zeros and ones: the positions where ``dim`` was, and the elements in a new last dimension.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is not an integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is
            unknown.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.argsort_st(torch.tensor([1.0, 3.0, 2.5]))
        tensor([[1., 0., 0.],
                [0., 0., 1.],
                [0., 1., 0.]])

    Source: ``softtorch.argsort_st``.
    """
    options = mode, method, standardize, True, "weights", True
    return sort_operator("argsort_st", x, dim, descending, softness, options)
