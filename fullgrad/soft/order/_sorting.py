"""`argsort`, `sort`, `topk`: the elements in order."""

from typing import Any

import torch
from torch import Tensor

from fullgrad import _checks
from fullgrad.soft._relaxation import Softness
from fullgrad.soft.order._rows import (
    METHODS,
    SUMMING,
    WEIGHTING,
    Rows,
    all_weights,
    bounded,
    rows_of,
    sorted_values,
    transported,
    unweighted,
    weighted,
    weights_in,
)
from fullgrad.soft.order._statistic import OrderStatistic, check_gate, one_hot, prepared


def argsort(
    x: Tensor,
    dim: int | None = -1,
    descending: bool = False,
    softness: Softness = 0.1,
    mode: str = "smooth",
    method: str = "neuralsort",
    standardize: bool = True,
) -> Tensor:
    r"""The order of the elements, as weights of each element in each place.

    .. math::
        P, \qquad D_x = \frac{\partial P}{\partial x}

    P is n by n, and each of its rows sums to 1. With z the row, standardised to (0, 1), and :math:`\Pi` the projection onto the
    simplex, :func:`proj_simplex`, in the mode and with the softness:

    * ``softsort``: :math:`P_i = \Pi(-|z_{(i)} - z|)`, with the i-th element in order.

    * ``neuralsort``: :math:`P_i = \Pi((2i - n - 1)\, z - A),\ A_j = \sum_k A(z_j - z_k)`, with the soft absolute value
    :func:`abs`.

    * ``ot``: n times the plan of :func:`proj_transport_polytope` that moves z to n even places in [0, 1], at the square of the
    distance.

    * ``sorting_network``: the exchanges of a bitonic network, each as far as :func:`sigmoidal` says.

    Standardising is :math:`z = 1 / (1 + e^{-(x - \mu) / \sigma})`, with the variance of the row plus 1e-6 for :math:`\sigma^2`.
    Infinities become 0 and 1. At ties the derivative of the distance is 0. The derivatives are the true ones, of every order.
    Saved: ``x``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        dim: The dimension along which the elements are compared; None takes the tensor as one row.
        descending: Whether the order is from the largest to the least.
        softness: How far elements are mixed, positive: a number, or a tensor without dimensions that gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"`` or ``"hard"``, which is torch's own function and derivative.
        method: ``"softsort"``, ``"neuralsort"``, ``"ot"`` or ``"sorting_network"``.
        standardize: Whether the softness is relative to the spread of the row.

    Returns:
        The weights: k = n places where ``dim`` was, and the elements in a last dimension of their own.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is no integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is not
            known.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.argsort(torch.tensor([1.0, 3.0, 2.5]), method="softsort")

    Source: ``softtorch.argsort``; Prillo, Eisenschlos, https://arxiv.org/abs/2006.16038 (softsort); Grover et al.,
    https://arxiv.org/abs/1903.08850 (neuralsort); Cuturi, Teboul, Vert, https://arxiv.org/abs/1905.11885 (ot); Petersen et al.,
    https://arxiv.org/abs/2105.04019 (sorting_network).
    """
    return _weights("argsort", x, dim, descending, softness, (mode, method, standardize, True), mode == "hard")


def argsort_st(
    x: Tensor,
    dim: int | None = -1,
    descending: bool = False,
    softness: Softness = 0.1,
    mode: str = "smooth",
    method: str = "neuralsort",
    standardize: bool = True,
) -> Tensor:
    r"""The order of the elements as a permutation matrix, with the derivative of its relaxation.

    .. math::
        e_{\operatorname{argsort} x}, \qquad D_x = \frac{\partial P}{\partial x}

    with the weights P of :func:`fullgrad.soft.argsort`, at every order. Saved: ``x``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        dim: The dimension along which the elements are compared; None takes the tensor as one row.
        descending: Whether the order is from the largest to the least.
        softness: How far elements are mixed, positive: a number, or a tensor without dimensions that gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, or ``"hard"`` for the derivative of the hard operator.
        method: ``"softsort"``, ``"neuralsort"``, ``"ot"`` or ``"sorting_network"``.
        standardize: Whether the softness is relative to the spread of the row.

    Returns:
        Zeros and ones: n places where ``dim`` was, and the elements in a last dimension of their own.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is no integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is not
            known.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.argsort_st(torch.tensor([1.0, 3.0, 2.5]))

    Source: ``softtorch.argsort_st``.
    """
    return _weights("argsort_st", x, dim, descending, softness, (mode, method, standardize, True), True)


def sort(
    x: Tensor,
    dim: int | None = -1,
    descending: bool = False,
    softness: Softness = 0.1,
    mode: str = "smooth",
    method: str = "neuralsort",
    standardize: bool = True,
    gated_grad: bool = True,
    return_indices: bool = True,
) -> torch.return_types.sort:
    r"""The elements in order, soft.

    .. math::
        y = P x, \qquad D_x\, t = P t + \dot P x

    with the weights P of :func:`argsort`, and :math:`\dot P` their derivative along t. ``fast_soft_sort`` projects onto the
    permutahedron of z, :func:`proj_permutahedron`, and ``sorting_network`` compares softly; both take the values back from (0,
    1).

    In smooth mode, and in the others, ``softsort`` takes O(n log n) time and O(n) memory for the values, ``neuralsort`` O(n)
    memory, derivatives included; indices are n by n. Saved: ``x``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        dim: The dimension along which the elements are compared; None takes the tensor as one row.
        descending: Whether the order is from the largest to the least.
        softness: How far elements are mixed, positive: a number, or a tensor without dimensions that gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"`` or ``"hard"``, which is torch's own function and derivative.
        method: ``"softsort"``, ``"neuralsort"``, ``"fast_soft_sort"``, ``"ot"`` or ``"sorting_network"``.
        standardize: Whether the softness is relative to the spread of the row.
        gated_grad: Whether the weights have a derivative. Without one they are constants, at every order.
        return_indices: Whether there are indices, n numbers for each place.

    Returns:
        A ``torch.return_types.sort`` of the values, and the weights of :func:`argsort` as indices, or None.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is no integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is not
            known, or ``gated_grad`` is False for a method without weights.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([1.0, 3.0, 2.5])
        >>> fullgrad.soft.sort(x).values
        >>> fullgrad.soft.sort(x, method="fast_soft_sort", softness=1.0).values

    Source: ``softtorch.sort``; Prillo, Eisenschlos, https://arxiv.org/abs/2006.16038 (softsort); Grover et al.,
    https://arxiv.org/abs/1903.08850 (neuralsort); Blondel et al., https://arxiv.org/abs/2002.08871 (fast_soft_sort).
    """
    rows, d = prepared("sort", x, dim, softness, mode, method, METHODS)
    check_gate("sort", gated_grad, mode, method)
    return _soft(x, rows, d, softness, descending, 0, (mode, method, standardize, gated_grad), return_indices)


def sort_st(
    x: Tensor,
    dim: int | None = -1,
    descending: bool = False,
    softness: Softness = 0.1,
    mode: str = "smooth",
    method: str = "neuralsort",
    standardize: bool = True,
    gated_grad: bool = True,
) -> torch.return_types.sort:
    r"""The elements in order, with the derivative of the relaxation.

    .. math::
        y = \operatorname{sort} x, \qquad D_x\, t = P t + \dot P x

    with the weights P of :func:`fullgrad.soft.argsort`, at every order; or the derivative of :func:`fullgrad.soft.sort` by a
    method without weights. The value is that of :func:`torch.sort`, bit for bit, at its price: the relaxation is computed when a
    derivative is. An infinity counts as the last finite element in the derivative. Saved: ``x``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        dim: The dimension along which the elements are compared; None takes the tensor as one row.
        descending: Whether the order is from the largest to the least.
        softness: How far elements are mixed, positive: a number, or a tensor without dimensions that gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, or ``"hard"`` for the derivative of the hard operator.
        method: ``"softsort"``, ``"neuralsort"``, ``"fast_soft_sort"``, ``"ot"`` or ``"sorting_network"``.
        standardize: Whether the softness is relative to the spread of the row.
        gated_grad: Whether the weights have a derivative. Without one they are constants, at every order.

    Returns:
        What :func:`torch.sort` gives: values and integer indices.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is no integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is not
            known, or ``gated_grad`` is False for a method without weights.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([1.0, 3.0, 2.5])
        >>> fullgrad.sort_st(x).values
        >>> torch.func.grad(lambda x: fullgrad.sort_st(x, method="softsort").values @ torch.arange(3.0))(x)

    Source: ``softtorch.sort_st``.
    """
    rows, d = prepared("sort_st", x, dim, softness, mode, method, METHODS)
    check_gate("sort_st", gated_grad, mode, method)
    return _straight(x, rows, d, softness, descending, 0, (mode, method, standardize, gated_grad))


def topk(
    x: Tensor,
    k: int,
    dim: int | None = None,
    softness: Softness = 0.1,
    mode: str = "smooth",
    method: str = "neuralsort",
    standardize: bool = True,
    gated_grad: bool = True,
    return_indices: bool = True,
) -> torch.return_types.topk:
    r"""The k largest elements, soft.

    .. math::
        y_i = \sum_j P_{n + 1 - i, j}\, x_j, \qquad D_x\, t = P t + \dot P x

    with the weights P of :func:`argsort`; to ``ot`` the rest is one group. ``fast_soft_sort`` projects onto the permutahedron of
    z, :func:`proj_permutahedron`, and ``sorting_network`` compares softly; both take the values back from (0, 1). Saved: ``x``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        k: How many elements, from 1 to n.
        dim: The dimension along which the elements are compared; None is the last one.
        softness: How far elements are mixed, positive: a number, or a tensor without dimensions that gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"`` or ``"hard"``, which is torch's own function and derivative.
        method: ``"softsort"``, ``"neuralsort"``, ``"fast_soft_sort"``, ``"ot"`` or ``"sorting_network"``.
        standardize: Whether the softness is relative to the spread of the row.
        gated_grad: Whether the weights have a derivative. Without one they are constants, at every order.
        return_indices: Whether there are indices, n numbers for each place.

    Returns:
        A ``torch.return_types.topk`` of the values, the largest first, and their weights as indices, k by n, or None.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is no integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is not
            known, or ``gated_grad`` is False for a method without weights, or ``k`` is not from 1 to n.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([1.0, 3.0, 2.5])
        >>> fullgrad.soft.topk(x, 2)

    Source: ``softtorch.topk``.
    """
    rows, d = prepared("topk", x, -1 if dim is None else dim, softness, mode, method, METHODS)
    check_gate("topk", gated_grad, mode, method)
    k = _checks.positive_integer("topk", "k", k, at_most=rows.shape[d])
    return _soft(x, rows, d, softness, True, k, (mode, method, standardize, gated_grad), return_indices)


def topk_st(
    x: Tensor,
    k: int,
    dim: int | None = None,
    softness: Softness = 0.1,
    mode: str = "smooth",
    method: str = "neuralsort",
    standardize: bool = True,
    gated_grad: bool = True,
) -> torch.return_types.topk:
    r"""The k largest elements, with the derivative of the relaxation.

    .. math::
        y = \operatorname{topk} x, \qquad D_x\, t = P t + \dot P x

    with the weights P of :func:`fullgrad.soft.topk`, at every order. The value is that of :func:`torch.topk`, bit for bit, at its
    price. An infinity counts as the last finite element in the derivative. Saved: ``x``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        k: How many elements, from 1 to n.
        dim: The dimension along which the elements are compared; None is the last one.
        softness: How far elements are mixed, positive: a number, or a tensor without dimensions that gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, or ``"hard"`` for the derivative of the hard operator.
        method: ``"softsort"``, ``"neuralsort"``, ``"fast_soft_sort"``, ``"ot"`` or ``"sorting_network"``.
        standardize: Whether the softness is relative to the spread of the row.
        gated_grad: Whether the weights have a derivative. Without one they are constants, at every order.

    Returns:
        What :func:`torch.topk` gives: values and integer indices.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is no integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is not
            known, or ``gated_grad`` is False for a method without weights, or ``k`` is not from 1 to n.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([1.0, 3.0, 2.5])
        >>> fullgrad.topk_st(x, 2)
        >>> torch.func.grad(lambda x: fullgrad.topk_st(x, 2).values.sum())(x)

    Source: ``softtorch.topk_st``.
    """
    rows, d = prepared("topk_st", x, -1 if dim is None else dim, softness, mode, method, METHODS)
    check_gate("topk_st", gated_grad, mode, method)
    k = _checks.positive_integer("topk_st", "k", k, at_most=rows.shape[d])
    return _straight(x, rows, d, softness, True, k, (mode, method, standardize, gated_grad))


def _weights(
    name: str, x: Tensor, dim: int | None, descending: bool, softness: Softness, how: tuple[Any, ...], hard: bool
) -> Tensor:
    rows, d = prepared(name, x, dim, softness, how[0], how[1], WEIGHTING)
    if how[0] == "hard":
        y = hard_sorted(rows, d, descending, 0, "weights")
    else:
        y = Sorted.apply(rows, softness, d, descending, 0, how, "weights", hard)
    return y.reshape(1) if x.ndim == 0 else y


def _soft(
    x: Tensor, rows: Tensor, d: int, softness: Softness, descending: bool, k: int, how: tuple[Any, ...], indices: bool
) -> Any:
    if how[0] == "hard":
        values, index = hard_sorted(rows, d, descending, k, "both")
        weights = one_hot(index.movedim(d, -1), rows.shape[d], rows.dtype).movedim(-2, d - 1) if indices else None
    elif indices and how[1] in SUMMING:
        values, weights = Sorted.apply(rows, softness, d, descending, k, how, "both", False)
    else:
        values, weights = Sorted.apply(rows, softness, d, descending, k, how, "values", False), None
    if x.ndim == 0:
        values, weights = values.reshape(()), None if weights is None else weights.reshape(1)
    return (torch.return_types.topk if k else torch.return_types.sort)((values, weights))


def _straight(x: Tensor, rows: Tensor, d: int, softness: Softness, descending: bool, k: int, how: tuple[Any, ...]) -> Any:
    if how[0] == "hard":
        y = hard_sorted(rows, d, descending, k, "both")
    else:
        y = Sorted.apply(rows, softness, d, descending, k, how, "both", True)
    return type(y)([v.reshape(()) for v in y]) if x.ndim == 0 else y


class Sorted(OrderStatistic):
    """The operator of the three and their twins: all places, or with ``k`` the first k of the descending order. ``how`` is mode,
    method, standardize, gated_grad; ``wants`` is "values", "weights" or "both", which of a hard call are values and indices.
    """

    @staticmethod
    def forward(
        x: Tensor, softness: Softness, dim: int, descending: bool, k: int, how: tuple[Any, ...], wants: str, hard: bool
    ) -> Any:
        if hard:
            return hard_sorted(x, dim, descending, k, wants)
        return Sorted.relaxed(x, softness, dim, descending, k, how, wants, hard)

    @staticmethod
    def relaxed(
        x: Tensor, softness: Softness, dim: int, descending: bool, k: int, how: tuple[Any, ...], wants: str, hard: bool
    ) -> Any:
        mode, method, standardize, gated = how
        r = rows_of(x, softness, dim, mode, method, standardize)
        if hard and wants == "both":
            r, wants = bounded(r), "values"
        r = r if gated else unweighted(r)
        all_of_them = k in (0, r.n)
        if wants == "values":
            values = sorted_values(r) if all_of_them else _first_values(r, k)
            weights = None
        else:
            weights = all_weights(r) if all_of_them else _first_weights(r, k)
            values = weighted(weights, r.x) if wants == "both" else None
        if descending and all_of_them:
            values, weights = (None if v is None else v.flip(d) for v, d in ((values, -1), (weights, -2)))
        if values is not None:
            values = values.movedim(-1, dim).to(x.dtype)
        if weights is not None:
            weights = weights.movedim(-2, dim - 1).to(x.dtype)
        return weights if values is None else values if weights is None else (values, weights)


def _first_values(r: Rows, k: int) -> Tensor:
    if r.method in SUMMING:
        return weighted(_first_weights(r, k), r.x)
    return sorted_values(r)[..., -k:].flip(-1)


def _first_weights(r: Rows, k: int) -> Tensor:
    """The weights in the k last places, the last one first; to transport the rest is one group."""
    if r.method == "ot":
        anchors = torch.arange(k, -1, -1, dtype=r.x.dtype, device=r.x.device) / k
        return transported(r, anchors, r.tensor([1.0] * k + [r.n - k]))[..., :k, :]
    return weights_in(r, torch.arange(r.n - 1, r.n - 1 - k, -1, device=r.x.device))


def hard_sorted(x: Tensor, dim: int, descending: bool, k: int, wants: str) -> Any:
    """What torch gives."""
    both = torch.topk(x, k, dim) if k else torch.sort(x, dim, descending)
    if wants != "weights":
        return both
    return one_hot(both.indices.movedim(dim, -1), x.shape[dim], x.dtype).movedim(-2, dim - 1)
