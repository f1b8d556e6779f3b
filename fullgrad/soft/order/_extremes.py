"""`argmax`, `max`, `argmin`, `min`: the largest and the least element."""

from typing import Any

import torch
from torch import Tensor

from fullgrad.soft._relaxation import Softness
from fullgrad.soft.order._rows import METHODS, SUMMING, WEIGHTING, bounded, largest_value, largest_weights, rows_of, unweighted
from fullgrad.soft.order._statistic import OrderStatistic, check_gate, kept, one_hot, prepared


def argmax(
    x: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    softness: Softness = 0.1,
    mode: str = "smooth",
    method: str = "softsort",
    standardize: bool = True,
) -> Tensor:
    r"""The place of the largest element, as weights.

    .. math::
        P_n, \qquad D_x = \frac{\partial P_n}{\partial x}

    with the row of weights :math:`P_n` of :func:`argsort`, which sum to 1: of ``softsort`` the projection of x / s onto the
    simplex, :func:`proj_simplex`. Saved: ``x``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        dim: The dimension along which the elements are compared; None takes the tensor as one row.
        keepdim: Whether the dimension stays, with size 1.
        softness: How far elements are mixed, positive: a number, or a tensor without dimensions that gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"`` or ``"hard"``, which is torch's own function and derivative.
        method: ``"softsort"``, ``"neuralsort"``, ``"ot"`` or ``"sorting_network"``.
        standardize: Whether the softness is relative to the spread of the row.

    Returns:
        The weights, in a last dimension of their own: the shape of ``x`` without ``dim``, and n behind it.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is no integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is not
            known.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.argmax(torch.tensor([1.0, 3.0, 2.5]))

    Source: ``softtorch.argmax``; Prillo, Eisenschlos, https://arxiv.org/abs/2006.16038 (softsort); Grover et al.,
    https://arxiv.org/abs/1903.08850 (neuralsort).
    """
    return _weights("argmax", x, dim, keepdim, softness, (mode, method, standardize), True, mode == "hard")


def argmin(
    x: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    softness: Softness = 0.1,
    mode: str = "smooth",
    method: str = "softsort",
    standardize: bool = True,
) -> Tensor:
    r"""The place of the least element, as weights.

    .. math::
        P_1, \qquad D_x = \frac{\partial P_1}{\partial x}

    with the row of weights :math:`P_1` of :func:`argsort`, which sum to 1: of ``softsort`` the projection of -x / s onto the
    simplex, :func:`proj_simplex`. Saved: ``x``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        dim: The dimension along which the elements are compared; None takes the tensor as one row.
        keepdim: Whether the dimension stays, with size 1.
        softness: How far elements are mixed, positive: a number, or a tensor without dimensions that gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"`` or ``"hard"``, which is torch's own function and derivative.
        method: ``"softsort"``, ``"neuralsort"``, ``"ot"`` or ``"sorting_network"``.
        standardize: Whether the softness is relative to the spread of the row.

    Returns:
        The weights, in a last dimension of their own: the shape of ``x`` without ``dim``, and n behind it.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is no integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is not
            known.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.argmin(torch.tensor([1.0, 3.0, 2.5]))

    Source: ``softtorch.argmin``; Prillo, Eisenschlos, https://arxiv.org/abs/2006.16038 (softsort); Grover et al.,
    https://arxiv.org/abs/1903.08850 (neuralsort).
    """
    return _weights("argmin", x, dim, keepdim, softness, (mode, method, standardize), False, mode == "hard")


def argmax_st(
    x: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    softness: Softness = 0.1,
    mode: str = "smooth",
    method: str = "softsort",
    standardize: bool = True,
) -> Tensor:
    r"""The place of the largest element as a one, with the derivative of its relaxation.

    .. math::
        e_{\operatorname{argmax} x}, \qquad D_x = \frac{\partial P_n}{\partial x}

    with the weights P of :func:`fullgrad.soft.argsort`, at every order. Saved: ``x``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        dim: The dimension along which the elements are compared; None takes the tensor as one row.
        keepdim: Whether the dimension stays, with size 1.
        softness: How far elements are mixed, positive: a number, or a tensor without dimensions that gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, or ``"hard"`` for the derivative of the hard operator.
        method: ``"softsort"``, ``"neuralsort"``, ``"ot"`` or ``"sorting_network"``.
        standardize: Whether the softness is relative to the spread of the row.

    Returns:
        Zeros and a one, in a last dimension of their own: the shape of ``x`` without ``dim``, and n behind it.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is no integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is not
            known.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([1.0, 3.0, 2.5])
        >>> fullgrad.argmax_st(x)
        >>> torch.func.grad(lambda x: fullgrad.argmax_st(x) @ torch.arange(3.0))(x)

    Source: ``softtorch.argmax_st``.
    """
    return _weights("argmax_st", x, dim, keepdim, softness, (mode, method, standardize), True, True)


def argmin_st(
    x: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    softness: Softness = 0.1,
    mode: str = "smooth",
    method: str = "softsort",
    standardize: bool = True,
) -> Tensor:
    r"""The place of the least element as a one, with the derivative of its relaxation.

    .. math::
        e_{\operatorname{argmin} x}, \qquad D_x = \frac{\partial P_1}{\partial x}

    with the weights P of :func:`fullgrad.soft.argsort`, at every order. Saved: ``x``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        dim: The dimension along which the elements are compared; None takes the tensor as one row.
        keepdim: Whether the dimension stays, with size 1.
        softness: How far elements are mixed, positive: a number, or a tensor without dimensions that gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, or ``"hard"`` for the derivative of the hard operator.
        method: ``"softsort"``, ``"neuralsort"``, ``"ot"`` or ``"sorting_network"``.
        standardize: Whether the softness is relative to the spread of the row.

    Returns:
        Zeros and a one, in a last dimension of their own: the shape of ``x`` without ``dim``, and n behind it.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is no integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is not
            known.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([1.0, 3.0, 2.5])
        >>> fullgrad.argmin_st(x)
        >>> torch.func.grad(lambda x: fullgrad.argmin_st(x) @ torch.arange(3.0))(x)

    Source: ``softtorch.argmin_st``.
    """
    return _weights("argmin_st", x, dim, keepdim, softness, (mode, method, standardize), False, True)


def max(
    x: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    softness: Softness = 0.1,
    mode: str = "smooth",
    method: str = "softsort",
    standardize: bool = True,
    gated_grad: bool = True,
) -> Any:
    r"""The largest element, soft.

    .. math::
        y = \sum_j P_{n j} x_j, \qquad D_x\, t = \sum_j P_{n j} t_j + \sum_j x_j \dot P_{n j}

    with the weights P of :func:`argsort`, and :math:`\dot P` their derivative along t; the methods ``fast_soft_sort`` and
    ``sorting_network`` give the value of :func:`sort`. Saved: ``x``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        dim: The dimension along which the elements are compared; None takes the tensor as one row.
        keepdim: Whether the dimension stays, with size 1.
        softness: How far elements are mixed, positive: a number, or a tensor without dimensions that gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"`` or ``"hard"``, which is torch's own function and derivative.
        method: ``"softsort"``, ``"neuralsort"``, ``"fast_soft_sort"``, ``"ot"`` or ``"sorting_network"``.
        standardize: Whether the softness is relative to the spread of the row.
        gated_grad: Whether the weights have a derivative. Without one they are constants, at every order.

    Returns:
        With ``dim`` a ``torch.return_types.max`` of the values and their indices, which are the weights of :func:`argmax` (None
        of a method without weights); without, the value.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is no integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is not
            known, or ``gated_grad`` is False for a method without weights.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([1.0, 3.0, 2.5])
        >>> fullgrad.soft.max(x)
        >>> fullgrad.soft.max(x, dim=0, mode="c0").indices

    Source: ``softtorch.max``; Prillo, Eisenschlos, https://arxiv.org/abs/2006.16038 (softsort); Grover et al.,
    https://arxiv.org/abs/1903.08850 (neuralsort).
    """
    return _soft("max", x, dim, keepdim, softness, (mode, method, standardize, gated_grad), True)


def min(
    x: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    softness: Softness = 0.1,
    mode: str = "smooth",
    method: str = "softsort",
    standardize: bool = True,
    gated_grad: bool = True,
) -> Any:
    r"""The least element, soft.

    .. math::
        y = \sum_j P_{1 j} x_j, \qquad D_x\, t = \sum_j P_{1 j} t_j + \sum_j x_j \dot P_{1 j}

    with the weights P of :func:`argsort`, and :math:`\dot P` their derivative along t; the methods ``fast_soft_sort`` and
    ``sorting_network`` give the value of :func:`sort`. Saved: ``x``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        dim: The dimension along which the elements are compared; None takes the tensor as one row.
        keepdim: Whether the dimension stays, with size 1.
        softness: How far elements are mixed, positive: a number, or a tensor without dimensions that gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"`` or ``"hard"``, which is torch's own function and derivative.
        method: ``"softsort"``, ``"neuralsort"``, ``"fast_soft_sort"``, ``"ot"`` or ``"sorting_network"``.
        standardize: Whether the softness is relative to the spread of the row.
        gated_grad: Whether the weights have a derivative. Without one they are constants, at every order.

    Returns:
        With ``dim`` a ``torch.return_types.min`` of the values and their indices, which are the weights of :func:`argmin` (None
        of a method without weights); without, the value.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is no integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is not
            known, or ``gated_grad`` is False for a method without weights.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([1.0, 3.0, 2.5])
        >>> fullgrad.soft.min(x)
        >>> fullgrad.soft.min(x, dim=0, mode="c0").indices

    Source: ``softtorch.min``; Prillo, Eisenschlos, https://arxiv.org/abs/2006.16038 (softsort); Grover et al.,
    https://arxiv.org/abs/1903.08850 (neuralsort).
    """
    return _soft("min", x, dim, keepdim, softness, (mode, method, standardize, gated_grad), False)


def max_st(
    x: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    softness: Softness = 0.1,
    mode: str = "smooth",
    method: str = "softsort",
    standardize: bool = True,
    gated_grad: bool = True,
) -> Any:
    r"""The largest element, with the derivative of its relaxation.

    .. math::
        y = \max x, \qquad D_x\, t = \sum_j P_{n j} t_j + \sum_j x_j \dot P_{n j}

    with the weights P of :func:`fullgrad.soft.argsort`, at every order. The value is that of :func:`torch.max`, bit for bit. An
    infinity counts as the last finite element in the derivative. Saved: ``x``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        dim: The dimension along which the elements are compared; None takes the tensor as one row.
        keepdim: Whether the dimension stays, with size 1.
        softness: How far elements are mixed, positive: a number, or a tensor without dimensions that gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, or ``"hard"`` for the derivative of the hard operator.
        method: ``"softsort"``, ``"neuralsort"``, ``"fast_soft_sort"``, ``"ot"`` or ``"sorting_network"``.
        standardize: Whether the softness is relative to the spread of the row.
        gated_grad: Whether the weights have a derivative. Without one they are constants, at every order.

    Returns:
        What :func:`torch.max` gives: with ``dim`` values and integer indices, without it the value.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is no integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is not
            known, or ``gated_grad`` is False for a method without weights.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([1.0, 3.0, 2.5])
        >>> fullgrad.max_st(x)
        >>> torch.func.grad(fullgrad.max_st)(x)

    Source: ``softtorch.max_st``.
    """
    return _straight("max_st", x, dim, keepdim, softness, (mode, method, standardize, gated_grad), True)


def min_st(
    x: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    softness: Softness = 0.1,
    mode: str = "smooth",
    method: str = "softsort",
    standardize: bool = True,
    gated_grad: bool = True,
) -> Any:
    r"""The least element, with the derivative of its relaxation.

    .. math::
        y = \min x, \qquad D_x\, t = \sum_j P_{1 j} t_j + \sum_j x_j \dot P_{1 j}

    with the weights P of :func:`fullgrad.soft.argsort`, at every order. The value is that of :func:`torch.min`, bit for bit. An
    infinity counts as the last finite element in the derivative. Saved: ``x``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        dim: The dimension along which the elements are compared; None takes the tensor as one row.
        keepdim: Whether the dimension stays, with size 1.
        softness: How far elements are mixed, positive: a number, or a tensor without dimensions that gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, or ``"hard"`` for the derivative of the hard operator.
        method: ``"softsort"``, ``"neuralsort"``, ``"fast_soft_sort"``, ``"ot"`` or ``"sorting_network"``.
        standardize: Whether the softness is relative to the spread of the row.
        gated_grad: Whether the weights have a derivative. Without one they are constants, at every order.

    Returns:
        What :func:`torch.min` gives: with ``dim`` values and integer indices, without it the value.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is no integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is not
            known, or ``gated_grad`` is False for a method without weights.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([1.0, 3.0, 2.5])
        >>> fullgrad.min_st(x)
        >>> torch.func.grad(fullgrad.min_st)(x)

    Source: ``softtorch.min_st``.
    """
    return _straight("min_st", x, dim, keepdim, softness, (mode, method, standardize, gated_grad), False)


def _weights(
    name: str, x: Tensor, dim: int | None, keepdim: bool, softness: Softness, how: tuple[Any, ...], largest: bool, hard: bool
) -> Tensor:
    rows, d = prepared(name, x, dim, softness, how[0], how[1], WEIGHTING, some=True)
    if how[0] == "hard":
        y = one_hot((torch.argmax if largest else torch.argmin)(rows, d), rows.shape[d], rows.dtype)
    else:
        y = Extreme.apply(rows, softness, d, largest, (*how, True), "weights", hard)
    return kept(y, x, dim, d - 1) if keepdim else y


def _soft(name: str, x: Tensor, dim: int | None, keepdim: bool, softness: Softness, how: tuple[Any, ...], largest: bool) -> Any:
    rows, d = prepared(name, x, dim, softness, how[0], how[1], METHODS, some=True)
    check_gate(name, how[3], how[0], how[1])
    hard = how[0] == "hard"
    if dim is None:
        y = (
            (torch.max if largest else torch.min)(rows)
            if hard
            else Extreme.apply(rows, softness, d, largest, how, "values", False)
        )
        return kept(y, x, dim, d) if keepdim else y
    if hard:
        values, index = (torch.max if largest else torch.min)(rows, d)
        weights = one_hot(index, rows.shape[d], rows.dtype)
    elif how[1] in SUMMING:
        values, weights = Extreme.apply(rows, softness, d, largest, how, "both", False)
    else:
        values, weights = Extreme.apply(rows, softness, d, largest, how, "values", False), None
    if keepdim:
        values, weights = kept(values, x, dim, d), None if weights is None else kept(weights, x, dim, d - 1)
    return (torch.return_types.max if largest else torch.return_types.min)((values, weights))


def _straight(
    name: str, x: Tensor, dim: int | None, keepdim: bool, softness: Softness, how: tuple[Any, ...], largest: bool
) -> Any:
    rows, d = prepared(name, x, dim, softness, how[0], how[1], METHODS, some=True)
    check_gate(name, how[3], how[0], how[1])
    wants = "values" if dim is None else "both"
    y = hard_extreme(rows, d, largest, wants) if how[0] == "hard" else Extreme.apply(rows, softness, d, largest, how, wants, True)
    if not keepdim or x.ndim == 0:
        return y
    return kept(y, x, dim, d) if dim is None else type(y)([kept(v, x, dim, d) for v in y])


class Extreme(OrderStatistic):
    """The operator of the four and their twins. ``how`` is mode, method, standardize, gated_grad; ``wants`` is "values",
    "weights" or "both", which of a hard call are values and indices.
    """

    @staticmethod
    def forward(x: Tensor, softness: Softness, dim: int, largest: bool, how: tuple[Any, ...], wants: str, hard: bool) -> Any:
        if not hard:
            return Extreme.relaxed(x, softness, dim, largest, how, wants, hard)
        return hard_extreme(x, dim, largest, wants)

    @staticmethod
    def relaxed(x: Tensor, softness: Softness, dim: int, largest: bool, how: tuple[Any, ...], wants: str, hard: bool) -> Any:
        mode, method, standardize, gated = how
        r = rows_of(x if largest else -x, softness, dim, mode, method, standardize)
        if wants == "weights":
            return largest_weights(r).to(x.dtype)
        if hard:
            r = bounded(r)
        if hard or wants == "values":
            values = largest_value(r if gated else unweighted(r))
            return (values if largest else -values).to(x.dtype)
        weights = largest_weights(r if gated else unweighted(r))
        values = (weights * r.x).sum(-1)
        return (values if largest else -values).to(x.dtype), weights.to(x.dtype)


def hard_extreme(x: Tensor, dim: int, largest: bool, wants: str) -> Any:
    """What torch gives."""
    if wants == "weights":
        return one_hot((torch.argmax if largest else torch.argmin)(x, dim), x.shape[dim], x.dtype)
    reduce = torch.max if largest else torch.min
    if wants == "values" and x.ndim == 1:
        return reduce(x)  # several times faster than with indices
    both = reduce(x, dim)
    return both.values if wants == "values" else both
