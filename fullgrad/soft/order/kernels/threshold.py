"""The threshold of a projection onto the simplex, by Newton's method; and whether a shift must come first."""

import torch
from torch import Tensor

from fullgrad._core.fast import replaceable
from fullgrad._dispatch import can_look, opaque, row_largest, row_length, rows_are_split
from fullgrad.soft._curves import Softness
from fullgrad.soft.order.kernels.on_parts import solve_convex_on_parts

# Newton's method gains at least a constant factor per step, and is quadratic in the end. It took at most 20 steps on rows of a
# million equal, random, geometric or heavy-tailed numbers.
MOST_STEPS = 100


@opaque("simplex_excess", fake=lambda v, power: torch.empty_like(v), schema="(Tensor v, int power) -> Tensor", reads_values=True)
@replaceable
def simplex_excess(v: Tensor, power: int) -> Tensor:
    r"""The value of `Excess`, by Newton's method for the norm :math:`(\sum t^\alpha)^{1 / \alpha} = 1`, convex in the threshold.

    It starts below the solution, at the largest element less 1, and never passes it. No sort and no sums of large powers: in
    contrast to the closed form of a sorted row, nothing cancels.
    """
    if v.shape[-1] == 0:
        return v.clone()
    top = row_largest(v)
    shifted = v - top

    def sums(theta: Tensor) -> tuple[Tensor, Tensor]:
        t = (shifted - theta).clamp_(min=0)
        w = None if power == 1 else t if power == 2 else t * t
        slope = (t > 0).sum(-1, keepdim=True).to(t.dtype) if w is None else w.sum(-1, keepdim=True)
        return (t if w is None else w.mul(t)).sum(-1, keepdim=True), slope

    def step(total: Tensor, slope: Tensor) -> Tensor:
        return norm_step(total, slope * power, 1 / power)

    theta = torch.full_like(shifted[..., :1], -1.0)
    if rows_are_split():
        theta = solve_convex_on_parts(theta, torch.full_like(theta, -(row_length(v) ** (-1 / power))), sums, step)
    else:
        for _ in range(MOST_STEPS):
            # Never backward: only rounding would do that.
            following = torch.maximum(theta, theta + step(*sums(theta)))
            if not (following > theta).any():
                break
            theta = following
    # For NaN, plus infinity, or minus infinity alone, no weights are right.
    theta = theta + (top - top)
    return (shifted - theta).clamp_(min=0)


def norm_step(total: Tensor, slope: Tensor, exponent: Tensor | float) -> Tensor:
    r"""Newton's step for :math:`f^e = 1`, for a sum f with the derivative -s: :math:`f (1 - f^{-e}) / (e s)`, which is
    :math:`f \log f / s` for e = 0.
    """
    if not isinstance(exponent, Tensor):
        return (total - total ** (1 - exponent)) / (exponent * slope)
    log_total, e = torch.log(total), torch.where(exponent == 0, 1, exponent)
    return total * torch.where(exponent == 0, log_total, -torch.expm1(-e * log_total) / e) / slope


# Up to this many softnesses from 0, rounding x over the softness costs no more than rounding the weights.
NEAR = 64.0


def may_be_far(x: Tensor, softness: Softness) -> bool:
    """Whether numbers over a softness may lose digits that their differences have: False only if they are seen near 0."""
    x = x.detach()
    if softness.__class__ is not float or not can_look(x) or not x.numel() or rows_are_split():
        return True
    low, high = torch.aminmax(x)
    near = NEAR * softness
    return not (-near <= low.item() and high.item() <= near)
