"""`argquantile`, `quantile`, `argmedian`, `median`: elements by their place in the order."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad import _checks
from fullgrad.soft._relaxation import Softness, widened
from fullgrad.soft.order._rows import (
    METHODS,
    SUMMING,
    WEIGHTING,
    Rows,
    bounded,
    rows_of,
    sorted_values,
    transported,
    unweighted,
    weighted,
    weights_in,
)
from fullgrad.soft.order._statistic import OrderStatistic, check_gate, kept, one_hot, prepared

INTERPOLATIONS = ("linear", "lower", "higher", "nearest", "midpoint")


def argquantile(
    x: Tensor,
    q: float | Sequence[float] | Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    softness: Softness = 0.1,
    mode: str = "smooth",
    method: str = "neuralsort",
    interpolation: str = "linear",
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
        interpolation: Between neighbouring places: ``"linear"``, ``"lower"``, ``"higher"``, ``"nearest"`` or ``"midpoint"``.
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

    Source: ``softtorch.argquantile``.
    """
    call = _prepared("argquantile", x, q, dim, softness, mode, method, interpolation, WEIGHTING)
    return _weights(call, keepdim, (mode, method, standardize, True), mode == "hard")


def argquantile_st(
    x: Tensor,
    q: float | Sequence[float] | Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    softness: Softness = 0.1,
    mode: str = "smooth",
    method: str = "neuralsort",
    interpolation: str = "linear",
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
        interpolation: Between neighbouring places: ``"linear"``, ``"lower"``, ``"higher"``, ``"nearest"`` or ``"midpoint"``.
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

    Source: ``softtorch.argquantile_st``.
    """
    call = _prepared("argquantile_st", x, q, dim, softness, mode, method, interpolation, WEIGHTING)
    return _weights(call, keepdim, (mode, method, standardize, True), True)


def quantile(
    x: Tensor,
    q: float | Sequence[float] | Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    softness: Softness = 0.1,
    mode: str = "smooth",
    method: str = "neuralsort",
    interpolation: str = "linear",
    standardize: bool = True,
    return_argquantile: bool = False,
    gated_grad: bool = True,
) -> Any:
    r"""A quantile, soft.

    .. math::
        y = \sum_j \big((1 - a)\, P_{kj} + a\, P_{k+1, j}\big)\, x_j, \qquad D_x\, t = \sum_j W_j t_j + \dot W_j x_j

    with p = q (n - 1), its place k below and a = p - k, and W the weights of :func:`argquantile`, or the same of the values of
    :func:`sort` by a method without weights. Saved: ``x``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        q: From 0 to 1: a number, or several, which come in front; a tensor gets its own gradient.
        dim: The dimension along which the elements are compared; None takes the tensor as one row.
        keepdim: Whether the dimension stays, with size 1.
        softness: How far elements are mixed, positive: a number, or a tensor without dimensions that gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"`` or ``"hard"``, which is torch's own function and derivative.
        method: ``"softsort"``, ``"neuralsort"``, ``"fast_soft_sort"``, ``"ot"`` or ``"sorting_network"``.
        interpolation: Between neighbouring places: ``"linear"``, ``"lower"``, ``"higher"``, ``"nearest"`` or ``"midpoint"``.
        standardize: Whether the softness is relative to the spread of the row.
        return_argquantile: Whether the weights are returned too (None of a method without weights).
        gated_grad: Whether the weights have a derivative. Without one they are constants, at every order.

    Returns:
        The quantile; those of several ``q`` in front. With ``return_argquantile`` the pair of it and its weights.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is no integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is not
            known, ``q`` is a number beyond 0 and 1, or ``interpolation`` is not known, or ``gated_grad`` is False for a method
            without weights.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([1.0, 3.0, 2.5])
        >>> fullgrad.soft.quantile(x, 0.5)
        >>> fullgrad.soft.quantile(x, [0.0, 1.0], method="softsort")

    Source: ``softtorch.quantile``.
    """
    call = _prepared("quantile", x, q, dim, softness, mode, method, interpolation, METHODS)
    check_gate("quantile", gated_grad, mode, method)
    how = (mode, method, standardize, gated_grad)
    if return_argquantile and method in SUMMING:
        if mode == "hard":
            values, weights = (hard_quantile(*call.hard, wants) for wants in ("values", "weights"))
        else:
            values, weights = Quantile.apply(*call.soft, how, "both", False)
        return call.values(values, keepdim), call.weights(weights, keepdim)
    y = hard_quantile(*call.hard, "values") if mode == "hard" else Quantile.apply(*call.soft, how, "values", False)
    y = call.values(y, keepdim)
    return (y, None) if return_argquantile else y


def quantile_st(
    x: Tensor,
    q: float | Sequence[float] | Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    softness: Softness = 0.1,
    mode: str = "smooth",
    method: str = "neuralsort",
    interpolation: str = "linear",
    standardize: bool = True,
    gated_grad: bool = True,
) -> Tensor:
    r"""A quantile, with the derivative of the relaxation.

    .. math::
        y = \operatorname{quantile}(x, q), \qquad D_x\, t = \sum_j W_j t_j + \dot W_j x_j

    with the weights W of :func:`fullgrad.soft.argquantile`, at every order. The value is that of :func:`torch.quantile`, bit for
    bit (in half precision, which torch refuses, that of float32, rounded). An infinity counts as the last finite element in the
    derivative. Saved: ``x``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        q: From 0 to 1: a number, or several, which come in front; a tensor gets its own gradient.
        dim: The dimension along which the elements are compared; None takes the tensor as one row.
        keepdim: Whether the dimension stays, with size 1.
        softness: How far elements are mixed, positive: a number, or a tensor without dimensions that gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, or ``"hard"`` for the derivative of the hard operator.
        method: ``"softsort"``, ``"neuralsort"``, ``"fast_soft_sort"``, ``"ot"`` or ``"sorting_network"``.
        interpolation: Between neighbouring places: ``"linear"``, ``"lower"``, ``"higher"``, ``"nearest"`` or ``"midpoint"``.
        standardize: Whether the softness is relative to the spread of the row.
        gated_grad: Whether the weights have a derivative. Without one they are constants, at every order.

    Returns:
        The quantile; those of several ``q`` in front.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is no integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is not
            known, ``q`` is a number beyond 0 and 1, or ``interpolation`` is not known, or ``gated_grad`` is False for a method
            without weights.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([1.0, 3.0, 2.5])
        >>> fullgrad.quantile_st(x, 0.25)
        >>> torch.func.grad(lambda x: fullgrad.quantile_st(x, 0.25))(x)

    Source: ``softtorch.quantile_st``.
    """
    call = _prepared("quantile_st", x, q, dim, softness, mode, method, interpolation, METHODS)
    check_gate("quantile_st", gated_grad, mode, method)
    how = (mode, method, standardize, gated_grad)
    y = hard_quantile(*call.hard, "values") if mode == "hard" else Quantile.apply(*call.soft, how, "values", True)
    return call.values(y, keepdim)


def argmedian(
    x: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    softness: Softness = 0.1,
    mode: str = "smooth",
    method: str = "neuralsort",
    standardize: bool = True,
) -> Tensor:
    r"""The place of the median, as weights.

    .. math::
        P_m, \quad m = \lfloor (n - 1) / 2 \rfloor, \qquad D_x = \dot P_m

    with the weights P of :func:`argquantile`; of an even number the lower one of the two in the middle, as in torch. Saved:
    ``x``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        dim: The dimension along which the elements are compared; None takes the tensor as one row.
        keepdim: Whether the dimension stays, with size 1.
        softness: How far elements are mixed, positive: a number, or a tensor without dimensions that gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"`` or ``"hard"``, which is torch's own function and derivative.
        method: ``"softsort"``, ``"neuralsort"``, ``"ot"`` or ``"sorting_network"``.
        standardize: Whether the softness is relative to the spread of the row.

    Returns:
        The weights, in a last dimension of their own.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is no integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is not
            known.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.argmedian(torch.tensor([1.0, 3.0, 2.5]))

    Source: ``softtorch.argmedian``.
    """
    call = _prepared("argmedian", x, 0.5, dim, softness, mode, method, "median", WEIGHTING)
    return _weights(call, keepdim, (mode, method, standardize, True), mode == "hard")


def argmedian_st(
    x: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    softness: Softness = 0.1,
    mode: str = "smooth",
    method: str = "neuralsort",
    standardize: bool = True,
) -> Tensor:
    r"""The place of the median as a one, with the derivative of the relaxation.

    .. math::
        e_{(m)}, \quad m = \lfloor (n - 1) / 2 \rfloor, \qquad D_x = \dot P_m

    with the weights P of :func:`fullgrad.soft.argquantile`, at every order. Saved: ``x``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        dim: The dimension along which the elements are compared; None takes the tensor as one row.
        keepdim: Whether the dimension stays, with size 1.
        softness: How far elements are mixed, positive: a number, or a tensor without dimensions that gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, or ``"hard"`` for the derivative of the hard operator.
        method: ``"softsort"``, ``"neuralsort"``, ``"ot"`` or ``"sorting_network"``.
        standardize: Whether the softness is relative to the spread of the row.

    Returns:
        Zeros and a one, in a last dimension of their own.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is no integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is not
            known.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.argmedian_st(torch.tensor([1.0, 3.0, 2.5]))

    Source: ``softtorch.argmedian_st``.
    """
    call = _prepared("argmedian_st", x, 0.5, dim, softness, mode, method, "median", WEIGHTING)
    return _weights(call, keepdim, (mode, method, standardize, True), True)


def median(
    x: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    softness: Softness = 0.1,
    mode: str = "smooth",
    method: str = "neuralsort",
    standardize: bool = True,
    gated_grad: bool = True,
) -> Any:
    r"""The median, soft.

    .. math::
        y = \sum_j P_{mj} x_j, \quad m = \lfloor (n - 1) / 2 \rfloor, \qquad D_x\, t = \sum_j P_{mj} t_j + \dot P_{mj} x_j

    with the weights P of :func:`argmedian`, or the value of :func:`sort` in that place by a method without weights. Saved: ``x``.

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
        With ``dim`` a ``torch.return_types.median`` of the values and their indices, which are the weights (None of a method
        without weights); without, the value.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is no integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is not
            known, or ``gated_grad`` is False for a method without weights.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.median(torch.tensor([1.0, 3.0, 2.5]))

    Source: ``softtorch.median``.
    """
    call = _prepared("median", x, 0.5, dim, softness, mode, method, "median", METHODS)
    check_gate("median", gated_grad, mode, method)
    how = (mode, method, standardize, gated_grad)
    if dim is None or method not in SUMMING:
        y = hard_quantile(*call.hard, "values") if mode == "hard" else Quantile.apply(*call.soft, how, "values", False)
        y = call.values(y, keepdim)
        return y if dim is None else torch.return_types.median((y, None))
    if mode == "hard":
        values, weights = (hard_quantile(*call.hard, wants) for wants in ("values", "weights"))
    else:
        values, weights = Quantile.apply(*call.soft, how, "both", False)
    return torch.return_types.median((call.values(values, keepdim), call.weights(weights, keepdim)))


def median_st(
    x: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    softness: Softness = 0.1,
    mode: str = "smooth",
    method: str = "neuralsort",
    standardize: bool = True,
    gated_grad: bool = True,
) -> Any:
    r"""The median, with the derivative of the relaxation.

    .. math::
        y = \operatorname{median} x, \qquad D_x\, t = \sum_j P_{mj} t_j + \dot P_{mj} x_j

    with the weights P of :func:`fullgrad.soft.argmedian`, at every order. The value is that of :func:`torch.median`, bit for bit.
    An infinity counts as the last finite element in the derivative. Saved: ``x``.

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
        What :func:`torch.median` gives: with ``dim`` values and integer indices, without it the value.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is no integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is not
            known, or ``gated_grad`` is False for a method without weights.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([1.0, 3.0, 2.5])
        >>> fullgrad.median_st(x)
        >>> torch.func.grad(fullgrad.median_st)(x)

    Source: ``softtorch.median_st``.
    """
    call = _prepared("median_st", x, 0.5, dim, softness, mode, method, "median", METHODS)
    check_gate("median_st", gated_grad, mode, method)
    how = (mode, method, standardize, gated_grad)
    wants = "values" if dim is None else "indices"
    y = hard_quantile(*call.hard, wants) if mode == "hard" else Quantile.apply(*call.soft, how, wants, True)
    if dim is None:
        return call.values(y, keepdim)
    return type(y)([call.values(v, keepdim) for v in y])


def _weights(call: "_Call", keepdim: bool, how: tuple[Any, ...], hard: bool) -> Tensor:
    if how[0] == "hard":
        return call.weights(hard_quantile(*call.hard, "weights"), keepdim)
    return call.weights(Quantile.apply(*call.soft, how, "weights", hard), keepdim)


class _Call:
    """A checked call: arguments of the operator, whose quantiles come in the last dimension, and the way back."""

    def __init__(
        self,
        x: Tensor,
        rows: Tensor,
        q: Tensor | tuple[float, ...],
        vector: bool,
        dim: int | None,
        d: int,
        softness: Softness,
        by: str,
    ) -> None:
        self.hard = rows, q, d, by
        self.soft = rows, q, softness, d, by
        self._x, self._dim, self._d, self._vector = x, dim, d, vector

    def values(self, y: Tensor, keepdim: bool) -> Tensor:
        """(…, Q) as torch has it."""
        if not self._vector:
            y = y.squeeze(-1)
            return kept(y, self._x, self._dim, self._d) if keepdim else y
        y = y.movedim(-1, 0)
        return kept(y, self._x, self._dim, self._d, 1) if keepdim else y

    def weights(self, y: Tensor, keepdim: bool) -> Tensor:
        """(…, Q, n) likewise."""
        if not self._vector:
            y = y.squeeze(-2)
            return kept(y, self._x, self._dim, self._d - 1) if keepdim else y
        y = y.movedim(-2, 0)
        return kept(y, self._x, self._dim, self._d - 1, 1) if keepdim else y


def _prepared(
    name: str, x: Any, q: Any, dim: Any, softness: Any, mode: Any, method: Any, by: Any, methods: tuple[str, ...]
) -> _Call:
    rows, d = prepared(name, x, dim, softness, mode, method, methods, some=True)
    if by == "median":
        return _Call(x, rows, (0.5,), False, dim, d, softness, by)
    _checks.choice(name, "interpolation", by, INTERPOLATIONS)
    if isinstance(q, Tensor):
        _checks.real_tensor(name, "q", q)
        if q.ndim > 1:
            raise ValueError(f"{name}: `q` must be a number or a tensor of at most one dimension, got shape {tuple(q.shape)}.")
        return _Call(x, rows, q.to(widened(rows)[0].dtype).reshape(-1), q.ndim == 1, dim, d, softness, by)
    several = isinstance(q, (tuple, list))
    for number in q if several else (q,):
        _checks.real_number(name, "q", number)
        if not 0 <= number <= 1:
            raise ValueError(f"{name}: `q` must be from 0 to 1, got {number}.")
    return _Call(x, rows, tuple(map(float, q)) if several else (float(q),), several, dim, d, softness, by)


def _tensor(q: Tensor | tuple[float, ...], x: Tensor) -> Tensor:
    return q if isinstance(q, Tensor) else torch.tensor(q, dtype=widened(x)[0].dtype, device=x.device)


class Quantile(OrderStatistic):
    """The operator of the four and their twins. ``how`` is mode, method, standardize, gated_grad; ``wants`` is "values",
    "weights", "both", or of a hard median "indices", which are values and indices.
    """

    @staticmethod
    def forward(
        x: Tensor,
        q: Tensor | tuple[float, ...],
        softness: Softness,
        dim: int,
        by: str,
        how: tuple[Any, ...],
        wants: str,
        hard: bool,
    ) -> Any:
        if hard:
            return hard_quantile(x, q, dim, by, wants)
        return Quantile.relaxed(x, q, softness, dim, by, how, wants, hard)

    @staticmethod
    def relaxed(
        x: Tensor,
        q: Tensor | tuple[float, ...],
        softness: Softness,
        dim: int,
        by: str,
        how: tuple[Any, ...],
        wants: str,
        hard: bool,
    ) -> Any:
        mode, method, standardize, gated = how
        r = rows_of(x, softness, dim, mode, method, standardize)
        if hard and wants != "weights":
            r, wants = bounded(r), "values"
        r = r if gated else unweighted(r)
        low, high, a = _places(_tensor(q, x), r.n, by)
        second = by in ("linear", "midpoint")
        if wants == "values" and method not in SUMMING:
            ordered = sorted_values(r)
            ends = [ordered.gather(-1, p.expand(*ordered.shape[:-1], p.shape[-1])) for p in (low, high)]
            return torch.lerp(*ends, a.to(r.x.dtype).expand(ends[0].shape)).to(x.dtype)
        ends = _transported(r, low, high, second) if method == "ot" else [weights_in(r, p) for p in (low, high)[: 1 + second]]
        weights = torch.lerp(*ends, a.to(r.x.dtype).unsqueeze(-1).expand(ends[0].shape)) if second else ends[0]
        if wants == "weights":
            return weights.to(x.dtype)
        values = weighted(weights, r.x).to(x.dtype)
        return values if wants == "values" else (values, weights.to(x.dtype))


def _transported(r: Rows, low: Tensor, high: Tensor, second: bool) -> list[Tensor]:
    """Weights (…, Q, n) of one place or two. To transport the rest of the row are two groups, below and above."""
    # A plan for each quantile: one more dimension of batch.
    softness = r.softness.unsqueeze(-2) if isinstance(r.softness, Tensor) and r.softness.ndim else r.softness
    r = r._replace(x=r.x.unsqueeze(-2), z=r.z.unsqueeze(-2), softness=softness)
    above = r.n - 1 - (high if second else low)
    sizes = [low, torch.ones_like(low), *[high - low] * second, above]
    anchors = torch.arange(len(sizes), dtype=r.x.dtype, device=r.x.device) / (len(sizes) - 1)
    plan = transported(r, anchors, torch.stack(sizes, -1).to(r.x.dtype))
    return [plan[..., 1, :], plan[..., 2, :]][: 1 + second]


def _places(q: Tensor, n: int, by: str) -> tuple[Tensor, Tensor, Tensor]:
    """Two neighbouring places and how far the quantile lies from the first to the second."""
    if by == "median":
        middle = torch.full(q.shape, (n - 1) // 2, device=q.device)
        return middle, middle, torch.zeros_like(q)
    p = q.clamp(0, 1) * (n - 1)
    floor = p.detach().floor()
    if by in ("lower", "higher", "nearest"):
        place = {"lower": torch.floor, "higher": torch.ceil, "nearest": torch.round}[by](p.detach()).long()
        return place, place, torch.zeros_like(p)
    low = floor.long()
    a = p - floor
    if by == "midpoint":
        a = (a.detach() > 0).to(p.dtype) / 2
    return low, (low + 1).clamp(max=n - 1), a


def hard_quantile(x: Tensor, q: Tensor | tuple[float, ...], dim: int, by: str, wants: str) -> Any:
    """What torch gives, with the quantiles in the last dimension."""
    if by == "median":
        if wants == "values" and x.ndim == 1:
            return torch.median(x).unsqueeze(-1)
        both = torch.median(x, dim)
        if wants == "weights":
            return one_hot(both.indices.unsqueeze(-1), x.shape[dim], x.dtype)
        return both.values.unsqueeze(-1) if wants == "values" else type(both)([v.unsqueeze(-1) for v in both])
    # torch.quantile has no quantiles of their own for the rows of a batch, no half precision, and no linearisation: it works in
    # place. These are its steps.
    low, high, a = _places(_tensor(q, x), x.shape[dim], by)
    values, order = torch.sort(x.movedim(dim, -1), stable=wants == "weights")
    shape = (*values.shape[:-1], a.shape[-1])
    low, high, a = low.expand(shape), high.expand(shape), a.expand(shape)
    if wants == "weights":
        ends = [one_hot(order.gather(-1, p), values.shape[-1], a.dtype) for p in (low, high)]
        return torch.lerp(*ends, a.unsqueeze(-1).expand(ends[0].shape)).to(x.dtype)
    wide = widened(values)[0]
    y = wide.gather(-1, low)
    if by in ("linear", "midpoint"):
        above = wide.gather(-1, torch.where(a > 0, high, low))
        y = torch.lerp(y, above, a if by == "linear" else torch.full_like(a, 0.5))
    return torch.where(values[..., -1:].isnan(), torch.nan, y).to(x.dtype)
