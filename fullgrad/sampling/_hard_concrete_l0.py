"""`hard_concrete_l0`: the probability that a gate is open."""

import math

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.opmath import to_opmath
from fullgrad.sampling._arguments import Temperature, check_temperature
from fullgrad.sampling._hard_concrete import check_stretch


def hard_concrete_l0(log_alpha: Tensor, tau: Temperature = 2 / 3, gamma: float = -0.1, zeta: float = 1.1) -> Tensor:
    r"""The probability that a gate of :func:`hard_concrete` is not 0: its sum is the expected number of open gates.

    .. math::
        P(y \ne 0) = \sigma\Bigl(\log \alpha - \tau \log \frac{-\gamma}{\zeta}\Bigr)

    The derivative is the true one, of every order. It is not random. Saved: the value.

    Args:
        log_alpha: The logits of the gates, any shape; floating.
        tau: The temperature, positive: a number, or a tensor that broadcasts and gets its own gradient.
        gamma: The lower end of the stretched interval, below 0.
        zeta: The upper end, above 1.

    Returns:
        A tensor of the shape and dtype of ``log_alpha``.

    Raises:
        TypeError: ``log_alpha`` is not a floating tensor, or another argument has a wrong type.
        ValueError: ``tau`` is a number that is not positive or does not broadcast, ``gamma`` is not below 0 or ``zeta`` not
            above 1.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.sampling.hard_concrete_l0(torch.tensor([-4.0, 0.0, 4.0]))
        tensor([0.0831, 0.8318, 0.9963])

    Source: Louizos, Welling, Kingma, https://arxiv.org/abs/1712.01312.
    """
    checks.floating_tensor("hard_concrete_l0", "log_alpha", log_alpha)
    check_temperature("hard_concrete_l0", "tau", tau, log_alpha)
    check_stretch("hard_concrete_l0", gamma, zeta)
    wide, tau = to_opmath(log_alpha, tau)
    return torch.sigmoid(wide - tau * math.log(-gamma / zeta)).to(log_alpha.dtype)
