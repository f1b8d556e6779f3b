"""`entmax_loss`."""

from typing import Any, Literal

import torch
from torch import Tensor

from fullgrad.soft.simplex._entmax import exponent_in_range, floating_rows, weights_of
from fullgrad.soft.simplex._losses import FenchelYoung, fenchel_young
from fullgrad.soft.simplex._powers import log_of_weights

# Below this size a Taylor series, as the formula would cancel.
_SMALL = 0.01


def entmax_loss(
    x: Tensor,
    target: Tensor,
    alpha: Tensor | float = 1.5,
    dim: int = -1,
    *,
    ignore_index: int = -100,
    reduction: Literal["none", "mean", "sum"] = "mean",
) -> Tensor:
    r"""The loss that belongs to :func:`entmax`: the cross entropy at :math:`\alpha = 1`, the sparsemax loss at 2.

    .. math::
        L = \langle x, p - y \rangle - \Omega_\alpha(p) + \Omega_\alpha(y), \quad p = \operatorname{entmax}_\alpha(x), \qquad
        D_x = p - y, \quad D_\alpha = \partial_\alpha \Omega_\alpha(y) - \partial_\alpha \Omega_\alpha(p), \quad
        D_y = \nabla \Omega_\alpha(y) - x

    with :math:`\Omega_\alpha(p) = \sum (p^\alpha - p) / (\alpha (\alpha - 1))`, and :math:`\sum p \log p` at 1. The loss is 0
    where p is the target; for :math:`\alpha > 1` a margin suffices. The derivatives are the true ones, of every order. Saved:
    the scores, the weights and the target.

    On a device the host waits for the rounds that find the threshold.

    Args:
        x: Scores, any shape; floating, or integer (which gives the default dtype).
        target: Classes, integers of the shape of ``x`` without ``dim``; or distributions, floating, of the shape of ``x``.
        alpha: The exponent, at least 1: a number, or a tensor that broadcasts with ``x``, of size 1 at ``dim``, and gets its own
            gradient.
        dim: The dimension of the classes.
        ignore_index: A class whose rows are ignored.
        reduction: ``"none"``, ``"mean"`` (over the rows that are not ignored) or ``"sum"``.

    Returns:
        A number; with ``"none"`` a tensor of the shape of ``x`` without ``dim``.

    Raises:
        TypeError: ``x`` is not a real tensor, ``target`` no tensor, or ``alpha`` not a real number or tensor.
        ValueError: ``alpha`` is below 1 or infinite, ``target`` or ``alpha`` has another shape, or ``reduction`` is unknown.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([[1.0, 0.6, -1.0], [3.0, 0.0, 0.0]])
        >>> fullgrad.soft.entmax_loss(x, torch.tensor([1, 0]), reduction="none")
        tensor([0.6187, 0.0000])

    Source: Blondel, Martins, Niculae, https://arxiv.org/abs/1901.02324; ``entmax.entmax_bisect_loss``.
    """
    x = floating_rows("entmax_loss", x, dim)
    exponent_in_range("entmax_loss", alpha, 1.0, "at least 1")
    return fenchel_young("entmax_loss", EntmaxLoss, weights_of, x, target, alpha, dim, ignore_index, reduction)


class EntmaxLoss(FenchelYoung):
    """The operator of :func:`entmax_loss`, on rows."""

    @staticmethod
    def forward(x: Tensor, p: Tensor, y: Tensor, alpha: Tensor | float) -> Tensor:
        return EntmaxLoss.value(x, p, y, alpha)

    @staticmethod
    def omega(p: Tensor, alpha: Any) -> Tensor:
        return (p * _log(log_of_weights(p), alpha - 1)).sum(-1, keepdim=True) / alpha

    @staticmethod
    def omega_slope(p: Tensor, alpha: Any) -> Tensor:
        return 1 / alpha + _log(torch.log(p), alpha - 1)

    @staticmethod
    def omega_by_exponent(p: Tensor, alpha: Any) -> Tensor:
        log_p, a = log_of_weights(p), alpha - 1
        part = log_p * log_p * _psi(a * log_p) / alpha - _log(log_p, a) / (alpha * alpha)
        return (p * part).sum(-1, keepdim=True)


def _log(log_p: Tensor, a: Any) -> Tensor:
    r"""The logarithm of order a, :math:`(p^a - 1) / a`; log p for a = 0."""
    if not isinstance(a, Tensor):
        return log_p if a == 0 else torch.expm1(a * log_p) / a
    # (e^y - 1) / y; near 0 a series, which has the derivatives with respect to a.
    y = a * log_p
    small = y.abs() < _SMALL
    z, s = torch.where(small, 1, y), torch.where(small, y, 0)
    series = 1 + s * (1 / 2 + s * (1 / 6 + s * (1 / 24 + s * (1 / 120 + s * (1 / 720 + s / 5040)))))
    b = torch.where(a == 0, 1, a)
    return torch.where(small, log_p * series, torch.expm1(z) / b)


def _psi(y: Tensor) -> Tensor:
    r"""The function :math:`(y e^y - e^y + 1) / y^2`."""
    small = y.abs() < _SMALL
    z, s = torch.where(small, 1, y), torch.where(small, y, 0)
    series = 1 / 2 + s * (1 / 3 + s * (1 / 8 + s * (1 / 30 + s * (1 / 144 + s * (1 / 840 + s / 5760)))))
    return torch.where(small, series, (z * torch.exp(z) - torch.expm1(z)) / (z * z))
