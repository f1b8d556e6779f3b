"""`norm`: vector norms, with derivative 0 at vectors of zeros."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.bits import digits, exponent, power_of_two, times_power_of_two
from fullgrad._core.function import Function
from fullgrad._core.opmath import cast
from fullgrad._dispatch import surely
from fullgrad.safe._pow import Pow

Dim = int | Sequence[int] | None


def norm(x: Tensor, ord: float = 2, dim: Dim = None, keepdim: bool = False) -> Tensor:
    r"""The norm of vectors along some dimensions, with derivative 0 at vectors of zeros.

    .. math::
        y = \Bigl(\sum_i |x_i|^p\Bigr)^{1/p}, \qquad
        D_i = \begin{cases} \operatorname{sgn}(x_i)\, (|x_i| / y)^{p - 1} & x_i \ne 0,\ y \ne 0 \\ 0 & \text{otherwise}
        \end{cases}

    The value is that of :func:`torch.linalg.vector_norm`, bit for bit, for every ``ord``. Those of 0, infinity and minus infinity
    have the derivative 0, and the signs of the elements of largest or smallest size, which share it if they tie. Derivatives of
    every order are true where these are finite, else 0: at vectors of zeros, and, with ``ord`` below 2, of single zeros. They are
    also those of vectors whose powers overflow or underflow, where the value is infinite or 0; torch gives 0 or NaN there. Half
    precision has its derivative computed in float32. Saved: ``x`` alone.

    Args:
        x: Any shape, floating. A 0-dimensional tensor is a vector of one element. An empty vector has the norm 0, or is an error
            where its extreme is asked for, as in torch.
        ord: The order p: any number, infinite and negative ones included.
        dim: The dimensions of a vector, an integer or several; None for all.
        keepdim: Whether the dimensions are kept with size 1.

    Returns:
        A tensor of the shape of ``x`` without ``dim``, in the unit of ``x``.

    Raises:
        TypeError: ``x`` is not a floating tensor, ``ord`` is not a number, or ``dim`` is not an integer or several.
        IndexError: ``x`` has no such dimension.
        ValueError: ``dim`` is empty or names a dimension twice.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
        >>> fullgrad.safe.norm(x, dim=1)
        tensor([5., 0.])
        >>> torch.func.grad(lambda x: fullgrad.safe.norm(x, dim=1).sum())(x)
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
        >>> torch.func.hessian(lambda x: fullgrad.safe.norm(x))(torch.zeros(2))
        tensor([[0., 0.],
                [0., 0.]])

    Source: :func:`torch.linalg.vector_norm`; the gradient at 0, as in https://github.com/pytorch/pytorch/issues/6394.
    """
    checks.real_tensor("norm", "x", x)
    checks.floating_tensor("norm", "x", x)
    checks.real_number("norm", "ord", ord)
    checks.dim("norm", dim, x.ndim)
    dims = _dims_of(dim, x.ndim)
    y = Norm.apply(x, ord, dims)
    return y if keepdim or not dims else y.squeeze(dims)


class Norm(Function):
    """The operator of :func:`norm`, which keeps the dimensions with size 1."""

    whole_dims = "dim"

    @staticmethod
    def forward(x: Tensor, ord: float = 2, dim: tuple[int, ...] = ()) -> Tensor:
        return torch.linalg.vector_norm(x, ord, dim, keepdim=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, ctx.ord, ctx.dim = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return _slope_times(g, x, ctx.ord, ctx.dim), None, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, *_: None) -> Tensor:
        (x,) = ctx.saved_tensors
        wide = t.to(torch.promote_types(x.dtype, torch.float32))
        return _slope_times(wide, x, ctx.ord, ctx.dim).sum(ctx.dim, keepdim=True).to(x.dtype)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None, None], x: Tensor, ord: float, dim: tuple[int, ...]) -> tuple[Tensor, int]:
        x = x.movedim(in_dims[0], 0)
        if x.ndim == 1:  # a sample is one number
            return Norm.apply(x.unsqueeze(-1), ord, (1,)).squeeze(-1), 0
        return Norm.apply(x, ord, tuple([d + 1 for d in dim])), 0


def _slope_times(v: Tensor, x: Tensor, p: float, dims: tuple[int, ...]) -> Tensor:
    """``v``, of the shape of ``x`` or of the norm, times the derivative by each element."""
    dtype = v.dtype
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    v = v.to(x.dtype)
    if surely(p == 0) or surely(x.numel() == 0):
        found = torch.zeros_like(x)
    elif surely(p == 1):
        found = _sign(x) * v
    elif surely(abs(p) == math.inf):
        found = _to_extremes(v, x, p, dims)
    else:
        found = _to_powers(v, x, p, dims)
    return cast(found, dtype)


def _sign(x: Tensor) -> Tensor:
    """The sign of each element, NaN for NaN."""
    return torch.where(x.isnan(), x.detach(), torch.sgn(x))


def _to_extremes(v: Tensor, x: Tensor, p: float, dims: tuple[int, ...]) -> Tensor:
    size = x.detach().abs()
    chosen = (size == torch.linalg.vector_norm(size, p, dims, keepdim=True)) | size.isnan()
    return _sign(x) * (v / chosen.sum(dims, keepdim=True) * chosen)


def _to_powers(v: Tensor, x: Tensor, p: float, dims: tuple[int, ...]) -> Tensor:
    """The general formula, for vectors in a unit in which powers do not overflow. The derivative does not depend on it."""
    x = _in_unit(x, p, dims)
    y = Norm.apply(x, p, dims)
    zero = y == 0
    y = torch.where(zero, 1, y)
    if p == 2:
        return torch.where(zero, 0, v * (x / y))
    if p > 2:
        return torch.where(zero, 0, x * Pow.apply(x.abs(), p - 2) * (v / Pow.apply(y, p - 1)))
    if p > 1:
        return torch.where(zero, 0, _sign(x) * Pow.apply(x.abs(), p - 1) * (v / Pow.apply(y, p - 1)))
    none = x == 0
    powers = _sign(x) * torch.where(none, 0, Pow.apply(torch.where(none, 1, x.abs()), p - 1))
    return torch.where(zero, 0, powers * v * Pow.apply(y, 1 - p))


def _in_unit(x: Tensor, p: float, dims: tuple[int, ...]) -> Tensor:
    """``x``, or where its powers could overflow times a constant that makes the element that decides about the norm about 1.

    A derivative of order n has powers of order p - n: next to 1 they are far from overflowing, and as they are torch's own bits.
    """
    largest, order = digits(x.dtype)[1], abs(p)
    of_all = torch.amin if p < 0 else torch.amax
    decides = of_all(x.detach().abs(), dims, keepdim=True)
    e = exponent(decides)
    most = min((largest - 1) / max(2 * order, 2), 8)
    if order <= 4:  # one factor brings the smallest number near enough
        e = e.clamp(1 - largest, largest - 1)
        return x * power_of_two(torch.where(e.abs() > most, -e, 0), x.dtype)
    # A subnormal number has no exponent of its own.
    e = torch.where(e < 1 - largest, exponent(decides * 2.0**60) - 60, e)
    x = times_power_of_two(x, torch.where((e.abs() > most) & (decides != 0), -e, 0))
    if order <= largest / 4:
        return x
    # A power of two leaves up to 2, whose powers overflow.
    decides = of_all(x.detach().abs(), dims, keepdim=True)
    return x / torch.where((decides == 0) | decides.isinf(), 1, decides)


def _dims_of(dim: Dim, ndim: int) -> tuple[int, ...]:
    """The dimensions from the front. The one of a 0-dimensional tensor is 0, as in torch, which then takes no powers."""
    if dim is None:
        return tuple(range(ndim))
    return tuple([d % max(ndim, 1) for d in ((dim,) if isinstance(dim, int) else dim)])
