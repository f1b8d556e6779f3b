"""Thresholds of rows: the equations of sparse softmaxes with one exponent per row, and their solver, on plain numbers."""

import functools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fullgrad._core.fast import replaceable
from fullgrad._dispatch import opaque, row_largest, row_length, row_sum, row_totals, rows_are_split
from fullgrad.soft.order.kernels.on_parts import evenly, solve_convex_on_parts, solve_on_parts, sums_at
from fullgrad.soft.order.kernels.threshold import MOST_STEPS, norm_step
from fullgrad.soft.simplex._powers import power_of_weights

# After this many passes, every other one halves a bracket that shrinks too slowly.
_PATIENCE = 8

# On the CPU exp2 takes a third of the time of torch.exp.
_LN_2 = math.log(2)


def _like(x: Tensor, a: Tensor) -> Tensor:
    return x.new_empty(torch.broadcast_shapes(x.shape, (*a.shape[:-1], 1)))


@opaque("entmax_weights", fake=_like, reads_values=True)
@replaceable
def entmax_weights(x: Tensor, a: Tensor) -> Tensor:
    r"""Rows of :math:`p = [1 + a (x - \theta)]_+^{1 / a}` that sum to 1, with one exponent per row."""
    x = x.expand(torch.broadcast_shapes(x.shape, (*a.shape[:-1], 1)))
    if x.shape[-1] == 0:
        return x.clone()
    top, n = row_largest(x), row_length(x)
    shifted = x - top
    a = a.expand(top.shape)
    exponential = a == 0
    b = torch.where(exponential, 1, a)

    def weights(theta: Tensor) -> tuple[Tensor, Tensor]:
        """The weights p, as the exponential of a logarithm, which is accurate for small a too; and p to the power a."""
        z = shifted - theta
        bz = (b * z).clamp_(min=-1)
        p = torch.exp2(torch.where(exponential, z, torch.log1p(bz)) / (b * _LN_2))
        return p, torch.where(exponential, 1, bz + 1).clamp_(min=torch.finfo(bz.dtype).tiny)

    def sums(theta: Tensor) -> Sequence[Tensor]:
        p, base = weights(theta)
        return p.sum(-1, keepdim=True), (p / base).sum(-1, keepdim=True)

    # theta - max lies between 0 and its value for equal elements.
    log_n = torch.full_like(a, n).log_()
    high = torch.where(exponential, log_n, -torch.expm1(-b * log_n) / b)
    steep = bool((a > 1).any())
    theta = solve(torch.zeros_like(top), high, sums, a, not steep)
    p = weights(theta)[0]
    # For a > 1 weights rise steeply at their edge, where the last digits of theta are large ones of a weight. What is missing to
    # the sum 1 goes to the weights by their slopes.
    base, near = b * (shifted - theta) + 1, 8 * torch.finfo(x.dtype).eps
    slope = torch.where(base > -near, base.clamp(min=near).pow(1 / b - 1), 0)
    for _ in range(2 * steep):
        of_slope, total = row_totals(slope.sum(-1, keepdim=True), p.sum(-1, keepdim=True))
        p = torch.where(a > 1, (p + slope / of_slope * (1 - total)).clamp(min=0), p)
    return torch.where(top.isfinite(), p, torch.nan)


def _like_x(x: Tensor, a: float) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@opaque("entmax_weights_by_number", fake=_like_x, schema="(Tensor x, float a) -> Tensor", reads_values=True)
@replaceable
def entmax_weights_by_number(x: Tensor, a: float) -> Tensor:
    """`entmax_weights` for a number between 0 and 1, exclusive: the norm is convex, and Newton's method never overshoots."""
    if x.shape[-1] == 0:
        return x.clone()
    top = x.amax(-1, keepdim=True)
    shifted = (x - top).mul_(a)
    theta = torch.zeros_like(top)  # times a
    eps, tiny = torch.finfo(x.dtype).eps, torch.finfo(x.dtype).tiny
    enough = min(10 * eps**0.75, 0.1 * a)
    last, p = False, shifted
    for i in range(MOST_STEPS):
        base = (shifted - theta).clamp_(min=-1)
        p = torch.log1p(base).div_(a * _LN_2).exp2_()
        if last or i == MOST_STEPS - 1:
            break
        total = p.sum(-1, keepdim=True)
        slope = p.div_(base.add_(1).clamp_(min=tiny)).sum(-1, keepdim=True)
        step = (-torch.expm1(-a * torch.log(total))).mul_(total).div_(slope).clamp_(min=0)
        theta = theta + step
        # The error is of the order of the square of the step; a comparison with NaN is false.
        last = not bool((step > enough).any())
    return p.add_(top - top)


@opaque("normmax_weights", fake=_like, reads_values=True)
@replaceable
def normmax_weights(x: Tensor, a: Tensor) -> Tensor:
    r"""Rows of :math:`p = q / \sum q`, :math:`q = [x - \theta]_+^{1 / a}`, :math:`\sum q^{1 + a} = 1`."""
    x = x.expand(torch.broadcast_shapes(x.shape, (*a.shape[:-1], 1)))
    if x.shape[-1] == 0:
        return x.clone()
    top, n = row_largest(x), row_length(x)
    shifted = x - top
    a = a.expand(top.shape)

    def sums(theta: Tensor) -> Sequence[Tensor]:
        t = (shifted - theta).clamp(min=0)
        m = 1 / a + 1
        return power_of_weights(t, m).sum(-1, keepdim=True), m * power_of_weights(t, 1 / a).sum(-1, keepdim=True)

    low = torch.full_like(top, -1.0)
    high = -torch.exp(-a / (1 + a) * torch.log(torch.full_like(a, n)))
    theta = solve(low, high, sums, a / (1 + a), True)
    q = power_of_weights((shifted - theta).clamp(min=0), 1 / a)
    return torch.where(top.isfinite(), q / row_sum(q), torch.nan)


def solve(low: Tensor, high: Tensor, sums: Callable[[Tensor], Sequence[Tensor]], exponent: Tensor, convex: bool) -> Tensor:
    """The thresholds at which a sum of powers is 1: Newton's method on its norm, in a bracket.

    ``sums`` returns the sum over this rank's part of a row, and minus its slope. A row is done when its step is below two units
    of the last place, or its sum is right up to rounding. Where the norm is not convex a step may leave the bracket, or shrink
    it too slowly: then the bracket is halved.
    """
    eps = 2 * torch.finfo(low.dtype).eps
    if rows_are_split():
        step = functools.partial(norm_step, exponent=exponent)
        if convex:
            return solve_convex_on_parts(low, high, sums, step)

        def whole(thetas: Tensor) -> Sequence[Tensor]:
            total, slope = sums_at(thetas, sums)
            return total - 1, slope, step(total, slope)

        # Weights that rise steeply need a threshold to its last digit, and no points of Newton's help.
        return solve_on_parts(evenly(low, high, 33), (high - low) / 2, whole, torch.full_like(low, 4 * eps), most=9)
    theta, done = low, torch.zeros_like(low, dtype=torch.bool)
    for i in range(MOST_STEPS):
        total, slope = sums(theta)
        above = total > 1
        before = high - low
        low, high = torch.where(above, theta, low), torch.where(above, high, torch.minimum(theta, high))
        step = norm_step(total, slope, exponent)
        following = theta + step
        middle = (low + high) / 2
        outside = ~((following >= low) & (following <= high))
        slow = (high - low > before / 2) if i > _PATIENCE and i % 2 else torch.zeros_like(done)
        following = torch.where(outside | slow, middle, following)
        done = (
            done
            | ((following - theta).abs() <= eps * theta.abs().clamp(min=eps))
            | ((total - 1).abs() <= 2 * eps)
            | total.isnan()
        )
        theta = torch.where(done, theta, following)
        if done.all():
            break
    return theta
