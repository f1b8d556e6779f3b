"""`hard_concrete`: a gate that is open, closed, or in between."""

import math

import torch
from torch import Generator, Tensor

from fullgrad._core import checks
from fullgrad._core.noise import noise_for
from fullgrad._core.opmath import to_opmath
from fullgrad._dispatch import holds
from fullgrad.clamping import clamp
from fullgrad.sampling._arguments import Temperature, check_temperature
from fullgrad.sampling._relaxed_bernoulli import binary_concrete


def hard_concrete(
    log_alpha: Tensor,
    tau: Temperature = 2 / 3,
    gamma: float = -0.1,
    zeta: float = 1.1,
    training: bool = True,
    *,
    noise: Tensor | None = None,
    generator: Generator | None = None,
) -> Tensor:
    r"""A random gate between 0 and 1 that is exactly 0 or exactly 1 with positive probability.

    .. math::
        s = \sigma\Bigl(\frac{\log \alpha - \operatorname{logit} u}{\tau}\Bigr), \qquad
        y = \operatorname{clamp}(s (\zeta - \gamma) + \gamma,\ 0,\ 1)

    Not in training :math:`s = \sigma(\log \alpha)`, and nothing is drawn. The derivative is the true one, of every order, the
    bounds included, of the noise too. The probability that the gate is not 0 is :func:`hard_concrete_l0`. u = 0 counts as the
    smallest normal number of float32, or of float64 for such noise. Saved: s, and its stretched copy.

    Args:
        log_alpha: The logits of the gates, any shape; floating.
        tau: The temperature, positive: a number, or a tensor that broadcasts and gets its own gradient.
        gamma: The lower end of the stretched interval, below 0.
        zeta: The upper end, above 1.
        training: Whether the gate is random.
        noise: Uniform numbers u in [0, 1) of the shape of ``log_alpha``; None to draw them.
        generator: Draws them; None for torch's default generator.

    Returns:
        A tensor of the shape and dtype of ``log_alpha``.

    Raises:
        TypeError: ``log_alpha`` or ``noise`` is not a floating tensor, or another argument has a wrong type.
        ValueError: ``tau`` is a number that is not positive or does not broadcast, ``gamma`` is not below 0 or ``zeta`` not above
            1, or ``noise`` has another shape or is given with a generator.

    Example:
        >>> import torch, fullgrad
        >>> x, u = torch.tensor([-4.0, 0.0, 4.0]), torch.tensor([0.3, 0.3, 0.3])
        >>> fullgrad.sampling.hard_concrete(x, noise=u)
        tensor([0.0000, 0.8371, 1.0000])

    Source: Louizos, Welling, Kingma, https://arxiv.org/abs/1712.01312.
    """
    name = "hard_concrete"
    checks.floating_tensor(name, "log_alpha", log_alpha)
    check_temperature(name, "tau", tau, log_alpha)
    check_stretch(name, gamma, zeta)
    if training:
        s = binary_concrete(log_alpha, tau, noise_for(name, log_alpha, noise, generator))
    else:
        s = torch.sigmoid(*to_opmath(log_alpha))
    return clamp(s * (zeta - gamma) + gamma, 0.0, 1.0).to(log_alpha.dtype)


def check_stretch(name: str, gamma: float, zeta: float) -> None:
    """Require the ends of a stretched interval."""
    checks.real_number(name, "gamma", gamma)
    checks.real_number(name, "zeta", zeta)
    if not holds(-math.inf < gamma) or not holds(gamma < 0):
        raise ValueError(f"{name}: `gamma` must be finite and below 0, got {gamma}.")
    if not holds(zeta > 1) or not holds(zeta < math.inf):
        raise ValueError(f"{name}: `zeta` must be finite and above 1, got {zeta}.")
