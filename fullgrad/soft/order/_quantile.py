"""`quantile`: a quantile, soft."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, cast, overload

from torch import Tensor

from fullgrad._core import checks
from fullgrad.soft._mode_names import Mode
from fullgrad.soft._relaxation import Softness
from fullgrad.soft.order._operators.quantile import Interpolation, quantile_operator
from fullgrad.soft.order.methods import SortMethod


class _Quantile(Protocol):
    """The overloads of ``quantile`` and ``quantile_st``: with ``return_argquantile`` they return a pair."""

    @overload
    def __call__(
        self,
        x: Tensor,
        q: float | Sequence[float] | Tensor,
        dim: int | None = ...,
        keepdim: bool = ...,
        softness: Softness = ...,
        mode: Mode = ...,
        method: SortMethod = ...,
        interpolation: Interpolation = ...,
        standardize: bool = ...,
        return_argquantile: Literal[False] = ...,
        gated_grad: bool = ...,
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        x: Tensor,
        q: float | Sequence[float] | Tensor,
        dim: int | None = ...,
        keepdim: bool = ...,
        softness: Softness = ...,
        mode: Mode = ...,
        method: SortMethod = ...,
        interpolation: Interpolation = ...,
        standardize: bool = ...,
        *,
        return_argquantile: Literal[True],
        gated_grad: bool = ...,
    ) -> tuple[Tensor, Tensor | None]: ...


def _overloaded(function: Callable[..., Tensor | tuple[Tensor, Tensor | None]]) -> _Quantile:
    """The function itself, seen by type checkers with the overloads of `_Quantile`."""
    return cast("Any", function)


@_overloaded
def quantile(
    x: Tensor,
    q: float | Sequence[float] | Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    softness: Softness = 0.1,
    mode: Mode = "smooth",
    method: SortMethod = "neuralsort",
    interpolation: Interpolation = "linear",
    standardize: bool = True,
    return_argquantile: bool = False,
    gated_grad: bool = True,
) -> Tensor | tuple[Tensor, Tensor | None]:
    r"""A quantile, soft.

    By default the tensor is one row, as in torch and softtorch; ``dim=-1`` is the last dimension, the default of :func:`sort`.
    The method ``neuralsort``, the default, compares all pairs in the modes ``c0`` to ``c2`` and for second derivatives; on rows
    of thousands ``softsort`` is many times faster there.

    .. math::
        y = \sum_j \big((1 - a)\, P_{kj} + a\, P_{k+1, j}\big)\, x_j, \qquad D_x\, t = \sum_j W_j t_j + \dot W_j x_j

    with p = q (n - 1), k the integer below p and a = p - k, and W the weights of :func:`argquantile`. ``fast_soft_sort``
    and ``sorting_network`` interpolate the values of :func:`sort`. Saved: ``x``.

    On a device the host waits in the modes ``c0`` to ``c2`` of softsort and neuralsort, and by ``fast_soft_sort`` and ``ot``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        q: Quantiles in [0, 1]: a number, or several, which come first in the result; a tensor has a gradient.
        dim: The dimension along which the elements are compared; None treats the tensor as one row.
        keepdim: Whether the dimension stays, with size 1.
        softness: How strongly elements are mixed: a positive number, or a 0-dimensional tensor, which has a gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"`` or ``"hard"``, which is torch's function with torch's derivative.
        method: ``"softsort"``, ``"neuralsort"``, ``"fast_soft_sort"``, ``"ot"`` or ``"sorting_network"``.
        interpolation: Between neighboring elements: ``"linear"``, ``"lower"``, ``"higher"``, ``"nearest"`` or ``"midpoint"``.
        standardize: Whether the softness is relative to the spread of the row.
        return_argquantile: Whether the weights are returned too.
        gated_grad: Whether the weights have a derivative; otherwise they are constants at every order.

    Returns:
        The quantile; several ``q`` give a first dimension. With ``return_argquantile`` the pair of quantile and weights.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is not an integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is
            unknown, ``q`` is outside [0, 1], or ``interpolation`` is unknown, or ``gated_grad`` is False or
            ``return_argquantile`` True for ``fast_soft_sort`` or ``sorting_network``, which have no weights.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([1.0, 3.0, 2.5])
        >>> fullgrad.soft.quantile(x, 0.5)
        tensor(2.5841)
        >>> fullgrad.soft.quantile(x, [0.0, 1.0], method="softsort")
        tensor([1.0385, 2.8855])

    Source: ``softtorch.quantile``.
    """
    checks.flag("quantile", "return_argquantile", return_argquantile)
    outputs = "values_and_weights" if return_argquantile else "values"
    options = mode, method, standardize, gated_grad, outputs, False
    return quantile_operator("quantile", x, q, dim, keepdim, softness, options, interpolation)


@_overloaded
def quantile_st(
    x: Tensor,
    q: float | Sequence[float] | Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    softness: Softness = 0.1,
    mode: Mode = "smooth",
    method: SortMethod = "neuralsort",
    interpolation: Interpolation = "linear",
    standardize: bool = True,
    return_argquantile: bool = False,
    gated_grad: bool = True,
) -> Tensor | tuple[Tensor, Tensor | None]:
    r"""A quantile, with the derivative of its relaxation.

    By default the tensor is one row, as in torch and softtorch; ``dim=-1`` is the last dimension, the default of :func:`sort_st
    <fullgrad.sort_st>`. The method ``neuralsort``, the default, compares all pairs; on rows of thousands ``softsort`` is many
    times faster.

    .. math::
        y = \operatorname{quantile}(x, q), \qquad D_x\, t = \sum_j W_j t_j + \dot W_j x_j

    with the weights W of :func:`fullgrad.soft.argquantile`, at every order. The value is that of :func:`torch.quantile`, bit for
    bit (in half precision, which torch refuses, that of float32, rounded). Among zeros of both signs it is the one that sorting
    finds; torch 2.15 may find another. An infinity counts as the last finite element in the
    derivative. Saved: ``x``.

    On a device the host waits in the modes ``c0`` to ``c2`` of softsort and neuralsort, and by ``fast_soft_sort`` and ``ot``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        q: Quantiles in [0, 1]: a number, or several, which come first in the result; a tensor has a gradient.
        dim: The dimension along which the elements are compared; None treats the tensor as one row.
        keepdim: Whether the dimension stays, with size 1.
        softness: How strongly elements are mixed: a positive number, or a 0-dimensional tensor, which has a gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"``, or ``"hard"`` for the derivative of the hard operator.
        method: ``"softsort"``, ``"neuralsort"``, ``"fast_soft_sort"``, ``"ot"`` or ``"sorting_network"``.
        interpolation: Between neighboring elements: ``"linear"``, ``"lower"``, ``"higher"``, ``"nearest"`` or ``"midpoint"``.
        standardize: Whether the softness is relative to the spread of the row.
        return_argquantile: Whether the weights are returned too: those of :func:`argquantile_st`.
        gated_grad: Whether the weights have a derivative; otherwise they are constants at every order.

    Returns:
        The quantile; several ``q`` give a first dimension. With ``return_argquantile`` the pair of quantile and weights.

    Raises:
        TypeError: ``x`` is not a real tensor, ``softness`` is not a real number or tensor, or ``dim`` is not an integer.
        ValueError: ``softness`` is a number that is not positive or a tensor with dimensions, or ``mode`` or ``method`` is
            unknown, ``q`` is outside [0, 1], or ``interpolation`` is unknown, or ``gated_grad`` is False for
            ``fast_soft_sort`` or ``sorting_network``.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([1.0, 3.0, 2.5])
        >>> fullgrad.quantile_st(x, 0.25)
        tensor(1.7500)
        >>> torch.func.grad(lambda x: fullgrad.quantile_st(x, 0.25))(x)
        tensor([0.4643, 0.0246, 0.5110])

    Source: ``softtorch.quantile_st``.
    """
    checks.flag("quantile_st", "return_argquantile", return_argquantile)
    outputs = "values_and_weights" if return_argquantile else "values"
    options = mode, method, standardize, gated_grad, outputs, True
    return quantile_operator("quantile_st", x, q, dim, keepdim, softness, options, interpolation)
