"""`proj_capped_simplex`: weights between 0 and 1 with a given sum."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.opmath import to_opmath
from fullgrad._dispatch import holds, opaque
from fullgrad.soft import _curves as curves
from fullgrad.soft._mode_names import STEP_MODES, StepMode
from fullgrad.soft._relaxation import Softness, check
from fullgrad.soft._sigmoidal import Sigmoidal
from fullgrad.soft.order._numbers import RowFunction
from fullgrad.soft.order.projections.simplex import MOST_STEPS, may_be_far
from fullgrad.soft.simplex._entmax import per_row

_PATIENCE = 8


def proj_capped_simplex(
    x: Tensor, k: Tensor | float, dim: int = -1, softness: Softness = 0.1, mode: StepMode = "smooth"
) -> Tensor:
    r"""Weights between 0 and 1 that sum to k along a dimension: a soft choice of k among many.

    .. math::
        p = S(z), \quad z = \frac{x}{s} - \theta, \quad \sum p = k, \qquad
        D\, t = w \circ \Bigl(t - \frac{\langle w, t \rangle}{\sum w}\Bigr) / s, \quad w = S'(z), \qquad D_k = \frac{w}{\sum w}

    with the curve S of :func:`sigmoidal` of softness 1 in one of its modes: ``smooth`` is the entropic top-k, ``laplace``
    LapSum's, and ``c0`` with the softness 0.1 the Euclidean projection onto the capped simplex. The derivatives are the true
    ones of every order, also of the softness and k. Saved: z, in smooth mode also p.

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
    """The arguments, checked; ``x`` as a floating tensor."""
    x, softness = check(name, x, softness, mode, STEP_MODES)
    checks.one_dim(name, dim, x.ndim)
    checks.real_number_or_tensor(name, "k", k)
    n = x.shape[dim] if x.ndim else 1
    if not isinstance(k, Tensor) and not (holds(k >= 0) and holds(k <= n)):
        raise ValueError(f"{name}: `k` must be from 0 to {n}, the size along `dim`, got {k}.")
    return x, k, softness


def rows_and_sum(name: str, x: Tensor, k: Any, dim: int, softness: Any) -> tuple[Tensor, Any]:
    """``x`` over the softness, with the rows last, in float32 at least; and k, one number per row. Rows that may be far from 0
    are taken less a number near the k-th largest element, which changes no weight and is exact near the threshold.
    """
    wide, k, softness = to_opmath(x, k, softness)
    wide, k = wide.movedim(dim, -1), per_row(name, k, x, dim, "k") if isinstance(k, Tensor) else float(k)
    far = may_be_far(wide, softness)
    if far:
        wide = wide - Pivot.apply(wide.detach(), k.detach() if isinstance(k, Tensor) else k)
    if isinstance(softness, Tensor):
        softness = per_row(name, softness, x, dim, "softness") if softness.ndim else softness
        # Minus infinity takes no part in the derivative with respect to the softness.
        masked = wide.detach().isinf()
        v = torch.where(masked, wide, torch.where(masked, 0, wide) / softness)
    else:
        v = wide / softness
    # A quotient that overflows stays finite: the row of an infinity has no answer.
    largest = torch.finfo(v.dtype).max / 4
    return (torch.where(wide.isinf(), wide, v.clamp(-largest, largest)) if far else v), k


def capped_rows(v: Tensor, k: Any, mode: str) -> Tensor:
    """The projection of rows, with softness 1."""
    return Sigmoidal.apply(Centered.apply(v, k, mode), 1.0, mode, False)


class Pivot(RowFunction):
    """A number between the k-th largest element of each row and the next: a constant, with the derivative 0."""

    @staticmethod
    def forward(x: Tensor, k: Tensor | float) -> Tensor:
        return _pivot(x, _per_row(k, x))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_forward(output)

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[None, None]:
        return None, None

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Tensor:
        return torch.zeros_like(ctx.saved_tensors[0])


def _per_row(k: Tensor | float, x: Tensor) -> Tensor:
    return k.to(x.dtype) if isinstance(k, Tensor) else x.new_full((1,), k)


class Centered(RowFunction):
    r"""Rows less the threshold at which their sigmoids sum to k.

    .. math::
        z = v - \theta, \quad \sum S(z) = k, \qquad D_v\, t = t - \frac{\langle w, t \rangle}{\sum w}, \quad
        D_k = \frac{1}{\sum w}, \quad w = S'(z)

    Where every sigmoid is 0 or 1 the threshold is in the middle of a gap, and all derivatives are 0. Saved: the output.
    """

    @staticmethod
    def forward(v: Tensor, k: Tensor | float, mode: str) -> Tensor:
        return centered(v, _per_row(k, v), mode)

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
    def jvp(ctx: Any, t: Tensor, t_k: Tensor | None, _: None) -> Tensor:
        (z,) = ctx.saved_tensors
        w, inverse = _shares(z, ctx.mode)
        moved = torch.where(inverse > 0, t - (w * t).sum(-1, keepdim=True) * inverse, 0)
        return moved if t_k is None else moved + t_k * inverse


def _shares(z: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    """The slopes S' and 1 over their sum, or 0 where the sum is 0."""
    w = curves.slope(curves.clamp_to_finite(z), 1.0, mode)
    total = w.sum(-1, keepdim=True)
    positive = total > 0
    return w, torch.where(positive, 1 / torch.where(positive, total, 1), 0)


def _like(v: Tensor, k: Tensor, mode: str) -> Tensor:
    return v.new_empty(torch.broadcast_shapes(v.shape, (*k.shape[:-1], 1)))


@opaque("centered", fake=_like, schema="(Tensor v, Tensor k, str mode) -> Tensor", reads_values=True)
def centered(v: Tensor, k: Tensor, mode: str) -> Tensor:
    """The value of `Centered`: Newton's method in a bracket, started between the k-th and the next element. A row is done when
    its sum is right up to rounding.
    """
    n = v.shape[-1]
    v = v.expand(torch.broadcast_shapes(v.shape, (*k.shape[:-1], 1)))
    if n == 0:
        return v.clone()
    theta, top = _between(v, k)
    k = k.expand(theta.shape)
    low = high = theta  # the bracket, which the first step sets
    eps = torch.finfo(v.dtype).eps
    enough = 4 * eps * k.clamp(min=1)
    straight = mode in ("smooth", "laplace")  # Newton on the log-odds of the mean
    base = torch.log(k / (n - k)) if straight else None
    total = theta
    for i in range(MOST_STEPS):
        total, slope = _sums(v - theta, mode)
        error = total - k
        wrong = error.abs() > enough  # False for NaN
        step = error / slope if base is None else (torch.log(total / (n - total)) - base) * total * (n - total) / (n * slope)
        if i:
            low, high = torch.where(error > 0, theta, low), torch.where(error < 0, theta, high)
        else:
            low, high = _bracket(theta, error, top, v, mode)
        following = theta + step
        outside = ~((following > low) & (following < high))
        if i > _PATIENCE and i % 2:
            outside = torch.ones_like(outside)
        middle = (low + high) / 2
        stuck = (high - low) <= 2 * eps * theta.abs()
        following = torch.where(outside, middle, following)
        theta = torch.where(wrong & ~stuck, following, theta)
        if not bool((wrong & ~stuck).any()):
            break
    z = v - theta
    none, all_of_them, invalid = k <= 0, k >= n, ~((top < torch.inf) & total.isfinite())
    if bool((none | all_of_them | invalid).any()):
        z = torch.where(none, -torch.inf, torch.where(all_of_them, torch.inf, z))
        z = torch.where(invalid, torch.nan, z)
    return z


def _sums(z: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    """The sums of the steps at a fresh tensor, and of their slopes, which are functions of the steps."""
    if mode == "smooth":
        s = z.sigmoid_()
        total = s.sum(-1, keepdim=True)
        return total, total - (s * s).sum(-1, keepdim=True)
    if mode == "laplace":
        s = curves.sigmoid(z, 1.0, mode)
        return s.sum(-1, keepdim=True), torch.minimum(s, 1 - s).sum(-1, keepdim=True)
    t = z.div_(10).add_(0.5).clamp_(0, 1)
    if mode == "c0":
        total = t.sum(-1, keepdim=True)
        return total, t.frac_().ceil_().sum(-1, keepdim=True) / 10
    v = t * (1 - t)
    if mode == "c1":
        return (t * t * (3 - 2 * t)).sum(-1, keepdim=True), v.sum(-1, keepdim=True) * 0.6
    return (t * t * t * (10 - 15 * t + 6 * t * t)).sum(-1, keepdim=True), (v * v).sum(-1, keepdim=True) * 3


def _bracket(theta: Tensor, error: Tensor, top: Tensor, v: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    """Thresholds on both sides: the first one, and one where all steps are 0, or 1, to working precision."""
    reach = 800.0 if mode in ("smooth", "laplace") else 5.0
    bottom = v.amin(-1, keepdim=True)
    if bool((bottom == -torch.inf).any()):
        bottom = torch.where(v == -torch.inf, top, v).amin(-1, keepdim=True)
    return torch.where(error > 0, theta, bottom - reach), torch.where(error > 0, top + reach, theta)


def _like_row(x: Tensor, k: Tensor) -> Tensor:
    return x.new_empty(torch.broadcast_shapes((*x.shape[:-1], 1), (*k.shape[:-1], 1)))


@opaque("capped_simplex_pivot", fake=_like_row, reads_values=True)
def _pivot(x: Tensor, k: Tensor) -> Tensor:
    """The value of `Pivot`."""
    x = x.expand(torch.broadcast_shapes(x.shape, (*k.shape[:-1], 1)))
    return _between(x, k)[0] if x.shape[-1] else x.sum(-1, keepdim=True)


def _between(v: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """The middle between the k-th largest element and the next for a whole k, else the element that is chosen in part; and
    the largest element.
    """
    n = v.shape[-1]
    if k.numel() == 1:
        whole = min(int(k.nan_to_num(0)), n)
        if _FEW < whole < n:  # order does not matter
            s = v.topk(whole + 1, -1, sorted=False).values
            least = s.topk(2, -1, largest=False).values
            return _middle(least[..., 1:], least[..., :1], k), s.amax(-1, keepdim=True)
        s = v.topk(min(whole + 1, n), -1).values
        at: Tensor = torch.full_like(s[..., :1], whole, dtype=torch.int64)
    else:
        s = v.sort(-1, descending=True).values
        at = k.nan_to_num(0).floor().long().clamp(0, n).expand(s[..., :1].shape)
    last = s.shape[-1] - 1
    first, second = s.gather(-1, (at - 1).clamp(0, last)), s.gather(-1, at.clamp(0, last))
    return _middle(first, second, k), s[..., :1]


# Up to so many elements, sorting takes no longer than finding the last two.
_FEW = 16


def _middle(first: Tensor, second: Tensor, k: Tensor) -> Tensor:
    second = torch.where(second == -torch.inf, first, second)
    return torch.where(k == k.floor(), first / 2 + second / 2, second)
