"""The projection onto the simplex: the weights of every soft choice of one among many."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.fast import replaceable
from fullgrad._core.opmath import to_opmath
from fullgrad._core.recomputed import saved_inputs
from fullgrad._core.shards import along_parts
from fullgrad._dispatch import of_parts, row_largest, row_sum, row_totals, rows_are_split, surely
from fullgrad.soft._mode_names import SOFT_MODES
from fullgrad.soft._relaxation import Softness, check, over_softness
from fullgrad.soft.order._numbers import POWERS, RowFunction, power
from fullgrad.soft.order.kernels.threshold import simplex_excess


def proj_simplex(x: Tensor, dim: int = -1, softness: Softness = 0.1, mode: str = "smooth") -> Tensor:
    r"""The projection onto the simplex along a dimension: weights that are positive or 0 and sum to 1.

    .. math::
        y = \arg\max_{y \ge 0,\ \sum y = 1} \langle x, y \rangle - s R(y), \qquad
        D_x\, t = \frac{\alpha}{s}\, \omega \Big(t - \frac{\langle \omega, t \rangle}{\sum \omega}\Big)

    In smooth mode R is the entropy :math:`\sum y \log y`, and y a softmax: :math:`\omega = y, \alpha = 1`. In ``c0``, ``c1`` and
    ``c2`` R is :math:`\sum y^p / p` with p = 2, 3/2, 4/3, and y has exact zeros: :math:`y = [x / s - \theta]_+^\alpha` and
    :math:`\omega = [x / s - \theta]_+^{\alpha - 1}`, with :math:`\alpha` = 1 (sparsemax), 2 (entmax) or 3. The derivative is
    symmetric, and the true one at every order; :math:`D_s = -D_x x / s`. Saved: one number per element, two in ``c2``; one
    more where the softness is a tensor.

    On a device the host waits for the rounds of ``c0``, ``c1`` and ``c2``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        dim: The dimension along which the weights sum to 1.
        softness: How uniform the weights are, positive; a number or a tensor that broadcasts with ``x``, of size 1 at ``dim``.
        mode: ``"smooth"``, ``"c0"``, ``"c1"`` or ``"c2"``.

    Returns:
        A tensor of the shape of ``x``.

    Raises:
        TypeError: ``x`` is not a real tensor, or ``softness`` is not a real number or tensor.
        ValueError: ``softness`` is a number that is not positive, or ``mode`` is unknown.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([1.0, 0.96, 0.0])
        >>> fullgrad.soft.proj_simplex(x)
        tensor([5.9867e-01, 4.0130e-01, 2.7180e-05])
        >>> fullgrad.soft.proj_simplex(x, mode="c0")
        tensor([0.7000, 0.3000, 0.0000])

    Source: Martins, Astudillo, https://arxiv.org/abs/1602.02068; Peters, Niculae, Martins, https://arxiv.org/abs/1905.05702;
    ``softjax.proj_simplex``.
    """
    x, softness = check("proj_simplex", x, softness, mode, SOFT_MODES)
    checks.one_dim("proj_simplex", dim, x.ndim)
    return simplex_of(x, dim, softness, mode) if x.ndim else torch.ones_like(x)


@replaceable
def simplex_of(x: Tensor, dim: int, softness: Softness, mode: str) -> Tensor:
    """`proj_simplex` without the checks."""
    (wide,) = to_opmath(x)
    v = over_softness(less_largest(wide, dim), softness)
    return project(v.movedim(dim, -1), mode).movedim(-1, dim).to(x.dtype)


def less_largest(x: Tensor, dim: int) -> Tensor:
    """Rows, less their largest element: over the softness, numbers far from 0 lose digits that their differences have."""

    def moved(x: Tensor) -> Tensor:
        return x - row_largest(x.movedim(dim, -1)).movedim(-1, dim)

    return x if surely(x.shape[dim] == 0) else along_parts("proj_simplex", moved, x, dim)


def project(v: Tensor, mode: str) -> Tensor:
    """The projection of rows, with softness 1."""
    if mode != "smooth":
        return power(of_parts(Excess).apply(v, POWERS[mode]), POWERS[mode])
    if not rows_are_split():
        return torch.softmax(v, -1)
    e = torch.exp(v - row_largest(v))
    return e / row_sum(e)


def log_softmax(v: Tensor) -> Tensor:
    """The logarithm of the projection in smooth mode, of weights that underflow, too."""
    if not rows_are_split():
        return torch.log_softmax(v, -1)
    v = v - row_largest(v)
    return v - torch.log(row_sum(torch.exp(v)))


class Excess(RowFunction):
    r"""The excess of the elements of a row over the threshold at which the powers of the excess sum to 1.

    .. math::
        t = [v - \theta]_+, \quad \sum t^\alpha = 1, \qquad
        D\, \dot v = [\,t > 0\,] \Big(\dot v - \frac{\langle t^{\alpha - 1}, \dot v \rangle}{\sum t^{\alpha - 1}}\Big)

    Saved: the output. The derivative is a polynomial in t; in terms of the weights it would have roots, whose own derivatives are
    infinite at 0.
    """

    saves = (1, 2)
    splits_rows = True

    forward = staticmethod(simplex_excess)

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        power, t = saved_inputs(ctx)
        g, w = g * (t > 0), power_slopes(t, power)
        of_g, of_w = row_totals(g.sum(-1, keepdim=True), w.sum(-1, keepdim=True))
        return g - w * (of_g / of_w), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        power, t = saved_inputs(ctx)
        w = power_slopes(t, power)
        moved, of_w = row_totals((w * tangent).sum(-1, keepdim=True), w.sum(-1, keepdim=True))
        return (tangent - moved / of_w) * (t > 0)


def power_slopes(t: Tensor, power: int) -> Tensor:
    """The derivative of the power, up to a factor: 1 inside the support, t, or its square."""
    return (t > 0).to(t.dtype) if power == 1 else t if power == 2 else t * t
