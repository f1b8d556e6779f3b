"""`normmax_loss`."""

from typing import Any, Literal

import torch
from torch import Tensor

from fullgrad.soft.simplex._entmax import exponent_in_range, floating_rows
from fullgrad.soft.simplex._losses import FenchelYoung, fenchel_young
from fullgrad.soft.simplex._normmax import Normmax, norm
from fullgrad.soft.simplex._powers import log_of_weights, power_of_weights


def normmax_loss(
    x: Tensor,
    target: Tensor,
    alpha: Tensor | float = 2.0,
    dim: int = -1,
    *,
    ignore_index: int = -100,
    reduction: Literal["none", "mean", "sum"] = "mean",
) -> Tensor:
    r"""The loss that belongs to :func:`normmax`.

    .. math::
        L = \langle x, p - y \rangle - \|p\|_\alpha + \|y\|_\alpha, \quad p = \operatorname{normmax}_\alpha(x), \qquad
        D_x = p - y, \quad D_\alpha = \partial_\alpha \|y\|_\alpha - \partial_\alpha \|p\|_\alpha, \quad
        D_y = \nabla \|y\|_\alpha - x

    The derivatives are the true ones, of every order. Saved: the scores, the weights and the target.

    On a device the host waits for the rounds that find the threshold.

    Args:
        x: Scores, any shape; floating, or integer (which gives the default dtype).
        target: Classes, integers of the shape of ``x`` without ``dim``; or distributions, floating, of the shape of ``x``.
        alpha: The exponent, above 1: a number, or a tensor that broadcasts with ``x``, of size 1 at ``dim``, and gets its own
            gradient.
        dim: The dimension of the classes.
        ignore_index: A class whose rows are ignored.
        reduction: ``"none"``, ``"mean"`` (over the rows that are not ignored) or ``"sum"``.

    Returns:
        A number; with ``"none"`` a tensor of the shape of ``x`` without ``dim``.

    Raises:
        TypeError: ``x`` is not a real tensor, ``target`` no tensor, or ``alpha`` not a real number or tensor.
        ValueError: ``alpha`` is not above 1 or infinite, ``target`` or ``alpha`` has another shape, or ``reduction`` is
            unknown.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([[1.0, 0.6, -1.0], [3.0, 0.0, 0.0]])
        >>> fullgrad.soft.normmax_loss(x, torch.tensor([1, 0]), reduction="none")
        tensor([0.5218, 0.0000])

    Source: Blondel, Martins, Niculae, https://arxiv.org/abs/1901.02324; ``entmax.normmax_bisect_loss``.
    """
    x = floating_rows("normmax_loss", x, dim)
    exponent_in_range("normmax_loss", alpha, 1 + 1e-12, "above 1")
    return fenchel_young("normmax_loss", NormmaxLoss, Normmax.apply, x, target, alpha, dim, ignore_index, reduction)


class NormmaxLoss(FenchelYoung):
    """The operator of :func:`normmax_loss`, on rows."""

    @staticmethod
    def forward(x: Tensor, p: Tensor, y: Tensor, alpha: Tensor | float) -> Tensor:
        return NormmaxLoss.value(x, p, y, alpha)

    @staticmethod
    def omega(p: Tensor, alpha: Any) -> Tensor:
        return norm(p, alpha)

    @staticmethod
    def omega_slope(p: Tensor, alpha: Any) -> Tensor:
        return power_of_weights(p / norm(p, alpha), alpha - 1)

    @staticmethod
    def omega_by_exponent(p: Tensor, alpha: Any) -> Tensor:
        powers = power_of_weights(p, alpha)
        total = powers.sum(-1, keepdim=True)
        mean = (powers * log_of_weights(p)).sum(-1, keepdim=True) / total
        return norm(p, alpha) * (mean / alpha - torch.log(total) / (alpha * alpha))
