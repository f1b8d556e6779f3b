"""`proj_capped_simplex`: weights between 0 and 1 with a given sum."""

from typing import Any

import torch
from torch import Tensor

from fullgrad import _checks
from fullgrad._dispatch import opaque
from fullgrad._half_precision import to_opmath
from fullgrad.soft import _curves as curves
from fullgrad.soft._mode_names import STEP_MODES, StepMode
from fullgrad.soft._relaxation import Softness, check, floating
from fullgrad.soft._sigmoidal import Sigmoidal
from fullgrad.soft.order._numbers import RowFunction
from fullgrad.soft.order.projections.simplex import MOST_STEPS
from fullgrad.soft.simplex._entmax import per_row

_PATIENCE = 8


def proj_capped_simplex(
    x: Tensor, k: Tensor | float, dim: int = -1, softness: Softness = 0.1, mode: StepMode = "smooth"
) -> Tensor:
    r"""Weights between 0 and 1 that sum to k along a dimension: a soft choice of k among many.

    .. math::
        p = S(z), \quad z = \frac{x}{s} - \theta, \quad \sum p = k, \qquad
        D\, t = w \circ \Bigl(t - \frac{\langle w, t \rangle}{\sum w}\Bigr) / s, \quad w = S'(z), \qquad D_k = \frac{w}{\sum w}

    with the curve S of :func:`sigmoidal` of softness 1 in one of its modes: ``smooth`` is the entropic top-k, ``laplace`` LapSum's,
    and ``c0`` with the softness 0.1 the Euclidean projection onto the capped simplex. The derivative is the true one of every
    order, of the softness, and of k too. Saved: z.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        k: The sum, from 0 to the size at ``dim``: a number, whole or not, or a tensor that broadcasts with ``x``, of size 1 at
            ``dim``, and gets its own gradient.
        dim: The dimension along which the weights sum to k.
        softness: The width of the choice, positive: a number, or a tensor that broadcasts with ``x``, of size 1 at ``dim``, and
            gets its own gradient.
        mode: ``"smooth"``, ``"c0"``, ``"c1"``, ``"c2"`` or ``"laplace"``.

    Returns:
        A tensor of the shape of ``x``. With k = 0 all are 0, with k = n all 1. A row is NaN where it has NaN or plus infinity;
        minus infinity has the weight 0.

    Raises:
        TypeError: ``x`` is not a real tensor, or ``k`` or ``softness`` is not a real number or tensor.
        ValueError: ``k`` is a number outside of its range, ``softness`` a number that is not positive, or ``mode`` is unknown.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([1.0, 0.6, 0.5, -1.0])
        >>> fullgrad.soft.proj_capped_simplex(x, 2)
        tensor([9.8926e-01, 6.2781e-01, 3.8293e-01, 1.8983e-07])
        >>> fullgrad.soft.proj_capped_simplex(x, 2, mode="c0")
        tensor([0.9667, 0.5667, 0.4667, 0.0000])

    Source: Xie et al., https://arxiv.org/abs/2002.06504 (smooth); Struski et al., https://arxiv.org/abs/2503.06242 (laplace);
    ``entmax.budget_bisect`` (c0).
    """
    name = "proj_capped_simplex"
    x, k, softness = checked(name, x, k, dim, softness, mode)
    if x.ndim == 0:
        return proj_capped_simplex(x.reshape(1), k, -1, softness, mode).reshape(())
    return capped_rows(*rows_and_sum(name, x, k, dim, softness), mode).movedim(-1, dim).to(x.dtype)


def checked(name: str, x: Any, k: Any, dim: Any, softness: Any, mode: Any) -> tuple[Tensor, Any, Any]:
    """The arguments, of which x is a floating tensor."""
    check(name, x, softness, mode, STEP_MODES)
    _checks.dim(name, dim, x.ndim)
    if not isinstance(dim, (int, torch.SymInt)):
        raise TypeError(f"{name}: `dim` must be an integer, got {dim!r}.")
    _checks.real_number_or_tensor(name, "k", k)
    n = x.shape[dim] if x.ndim else 1
    if not isinstance(k, Tensor) and not 0 <= k <= n:
        raise ValueError(f"{name}: `k` must be from 0 to {n}, the size along `dim`, got {k}.")
    return floating(x), k, softness


def rows_and_sum(name: str, x: Tensor, k: Any, dim: int, softness: Any) -> tuple[Tensor, Any]:
    """x over the softness, in float32 at least, with the rows last; and k, one number per row."""
    wide, k, softness = to_opmath(x, k, softness)
    if isinstance(softness, Tensor):
        per_row(name, softness, x, dim, "softness")
        # Minus infinity has no part in the derivative by the softness.
        masked = wide.detach().isinf()
        v = torch.where(masked, wide, torch.where(masked, 0, wide) / softness)
    else:
        v = wide / softness
    return v.movedim(dim, -1), per_row(name, k, x, dim, "k") if isinstance(k, Tensor) else float(k)


def capped_rows(v: Tensor, k: Any, mode: str) -> Tensor:
    """The projection of rows of softness 1."""
    return Sigmoidal.apply(Centered.apply(v, k, mode), 1.0, mode, False)


class Centered(RowFunction):
    r"""Rows less the threshold at which their sigmoids sum to k.

    .. math::
        z = v - \theta, \quad \sum S(z) = k, \qquad D_v\, t = t - \frac{\langle w, t \rangle}{\sum w}, \quad
        D_k = \frac{1}{\sum w}, \quad w = S'(z)

    Where every sigmoid is 0 or 1 the threshold is in the middle of a gap, and all derivatives are 0. The output is what is saved.
    """

    @staticmethod
    def forward(v: Tensor, k: Tensor | float, mode: str) -> Tensor:
        return centered(v, k.to(v.dtype) if isinstance(k, Tensor) else v.new_full((1,), k), mode)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Any, str], output: Tensor) -> None:
        ctx.mode = inputs[2]
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (z,) = ctx.saved_tensors
        w, inverse = _shares(z, ctx.mode)
        total = g.sum(-1, keepdim=True) * inverse
        by_v = torch.where(inverse > 0, g - w * total, 0) if ctx.needs_input_grad[0] else None
        return by_v, total if ctx.needs_input_grad[1] else None, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor | None, t_k: Tensor | None, _: None) -> Tensor:
        (z,) = ctx.saved_tensors
        w, inverse = _shares(z, ctx.mode)
        total: Any = None
        if t is not None:
            total = torch.where(inverse > 0, t - (w * t).sum(-1, keepdim=True) * inverse, 0)
        if t_k is not None:
            part = (t_k * inverse).expand(z.shape)
            total = part if total is None else total + part
        return total


def _shares(z: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    """S' and 1 over its sum, which is 0 where that is 0."""
    w = curves.slope(curves.clamp_to_finite(z), 1.0, mode)
    total = w.sum(-1, keepdim=True)
    positive = total > 0
    return w, torch.where(positive, 1 / torch.where(positive, total, 1), 0)


def _like(v: Tensor, k: Tensor, mode: str) -> Tensor:
    return v.new_empty(torch.broadcast_shapes(v.shape, (*k.shape[:-1], 1)))


@opaque("centered", fake=_like, schema="(Tensor v, Tensor k, str mode) -> Tensor", reads_values=True)
def centered(v: Tensor, k: Tensor, mode: str) -> Tensor:
    """The value of `Centered`: Newton's method in a bracket, from between the k-th and the next element."""
    n = v.shape[-1]
    v = v.expand(torch.broadcast_shapes(v.shape, (*k.shape[:-1], 1)))
    if n == 0:
        return v.clone()
    k = k.expand(*v.shape[:-1], 1)
    top, bottom = v.amax(-1, keepdim=True), torch.where(v == -torch.inf, torch.inf, v).amin(-1, keepdim=True)
    low, high = bottom - _reach(n, mode), top + _reach(n, mode)
    theta = torch.minimum(torch.maximum(_between(v, k), low), high)
    best = theta
    best_error = torch.full_like(theta, torch.inf)
    done = torch.zeros_like(theta, dtype=torch.bool)
    eps = 2 * torch.finfo(v.dtype).eps
    for i in range(MOST_STEPS):
        z = v - theta
        total = curves.sigmoid(z, 1.0, mode).sum(-1, keepdim=True)
        error = (total - k).abs()
        better = (error < best_error) & ~done
        best, best_error = torch.where(better, theta, best), torch.where(better, error, best_error)
        done = done | (total == k) | total.isnan()
        slope = curves.slope(z, 1.0, mode).sum(-1, keepdim=True)
        before, above = high - low, total > k
        low, high = torch.where(above, theta, low), torch.where(total < k, theta, high)
        if mode in ("smooth", "laplace"):  # which are straighter in the log-odds of the mean
            odds = torch.log(total / k) - torch.log((n - total) / (n - k))
            step = odds * total * (n - total) / (n * slope)
        else:
            step = (total - k) / slope
        following = theta + step
        inside = (following > low) & (following < high)
        slow = (high - low > before / 2) if i > _PATIENCE and i % 2 else torch.zeros_like(done)
        following = torch.where(inside & ~slow, following, (low + high) / 2)
        done = done | ((following - theta).abs() <= eps * theta.abs().clamp(min=eps))
        theta = torch.where(done, theta, following)
        if done.all():
            break
    z = v - best
    z = torch.where(k <= 0, -torch.inf, torch.where(k >= n, torch.inf, z))
    return torch.where((top < torch.inf) & (v == v).all(-1, keepdim=True), z, torch.nan)


def _reach(n: int, mode: str) -> float:
    """How far beyond the elements the threshold may lie."""
    return 5.0 if mode in ("c0", "c1", "c2") else 800.0


def _between(v: Tensor, k: Tensor) -> Tensor:
    """The middle between the k-th largest element and the next, for k that is rounded down; where one is missing, the other."""
    n = v.shape[-1]
    s = v.sort(-1, descending=True).values
    at = k.nan_to_num(0).floor().long().clamp(0, n)
    first, second = s.gather(-1, (at - 1).clamp(0, n - 1)), s.gather(-1, at.clamp(0, n - 1))
    second = torch.where(second == -torch.inf, first, second)
    return torch.where(k == k.floor(), (first + second) / 2, second)
