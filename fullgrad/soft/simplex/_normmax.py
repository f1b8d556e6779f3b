"""`normmax`."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core.fast import replaceable
from fullgrad._dispatch import row_sum, row_totals
from fullgrad.soft.simplex._entmax import ExponentWeights, exponent_in_range, floating_rows, rows_and_exponent
from fullgrad.soft.simplex._powers import log_of_weights, power_of_weights
from fullgrad.soft.simplex.kernels.threshold import normmax_weights


def normmax(x: Tensor, alpha: Tensor | float = 2.0, dim: int = -1) -> Tensor:
    r"""Sparse weights that a norm makes uniform: few for a sharp row, many equal ones for a flat row.

    .. math::
        p = \arg\max_{p \ge 0,\ \sum p = 1} \langle x, p \rangle - \|p\|_\alpha = \frac{q}{\sum q}, \quad
        q = [x - \theta]_+^{1 / a}, \quad \sum q^\alpha = 1, \quad a = \alpha - 1

    .. math::
        D_x\, t = \kappa (b \circ e - p \langle b, e \rangle), \quad e = t - \langle p, t \rangle, \quad b = p^{2 - \alpha}, \quad
        \kappa = \frac{\|p\|_\alpha^a}{a}, \qquad D_\alpha = \frac{\dot q - p \sum \dot q}{\sum q}

    with :math:`\dot q = -\frac1a (q \log q + q^{2 - \alpha} \dot \theta)` and
    :math:`\dot \theta = -\sum q^\alpha \log q / (\alpha \sum q)`. The derivative is the true one of every order. Saved: the
    value.

    On a device the host waits for the rounds that find the threshold.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        alpha: The exponent, above 1: a number, or a tensor that broadcasts with ``x``, of size 1 at ``dim``, and gets its own
            gradient.
        dim: The dimension along which the weights sum to 1.

    Returns:
        A tensor of the shape of ``x``, NaN and infinity as in :func:`entmax`.

    Raises:
        TypeError: ``x`` is not a real tensor, or ``alpha`` is not a real number or tensor.
        ValueError: ``alpha`` is not above 1 or infinite, a number that is NaN, or a tensor that does not broadcast.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.normmax(torch.tensor([1.0, 0.6, -1.0]))
        tensor([0.6474, 0.3526, 0.0000])

    Source: Blondel, Martins, Niculae, https://arxiv.org/abs/1901.02324; ``entmax.normmax_bisect``.
    """
    x = floating_rows("normmax", x, dim)
    exponent_in_range("normmax", alpha, 1 + 1e-12, "above 1")
    return normmax_of(x, alpha, dim)


@replaceable
def normmax_of(x: Tensor, alpha: Tensor | float, dim: int) -> Tensor:
    """`normmax` without the checks."""
    if x.ndim == 0:
        return torch.softmax(x, -1)
    return Normmax.apply(*rows_and_exponent("normmax", x, alpha, dim)).movedim(-1, dim).to(x.dtype)


class Normmax(ExponentWeights):
    """The operator of :func:`normmax`, on rows."""

    @staticmethod
    def forward(x: Tensor, alpha: Tensor | float) -> Tensor:
        a = alpha - 1
        return normmax_weights(x, a.to(x.dtype) if isinstance(a, Tensor) else x.new_full((1,), a))

    @staticmethod
    def by_x(p: Tensor, alpha: Any, t: Tensor) -> Tensor:
        a = alpha - 1
        e = t - row_sum(p * t)
        be = power_of_weights(p, 1 - a) * e
        return torch.exp(a * torch.log(norm(p, alpha))) / a * (be - p * row_sum(be))

    @staticmethod
    def by_exponent(p: Tensor, alpha: Any) -> Tensor:
        q, r = p / norm(p, alpha), 1 / (alpha - 1)
        log_q = log_of_weights(q)
        moved, total = row_totals((power_of_weights(q, alpha) * log_q).sum(-1, keepdim=True), q.sum(-1, keepdim=True))
        theta = -moved / (alpha * total)
        dq = -r * (q * log_q + power_of_weights(q, 2 - alpha) * theta)
        return (dq - p * row_sum(dq)) / total


def norm(p: Tensor, alpha: Tensor | float) -> Tensor:
    r"""The norm :math:`\|p\|_\alpha` of rows."""
    return torch.exp(torch.log(row_sum(power_of_weights(p, alpha))) / alpha)
