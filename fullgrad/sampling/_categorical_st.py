"""`categorical_st`."""

from typing import Literal

import torch
from torch import Generator, Tensor

from fullgrad._core import checks
from fullgrad._core.noise import gumbel_like, noise_for
from fullgrad._core.opmath import to_opmath
from fullgrad._core.shards import with_whole_rows
from fullgrad.functions import replace_grad
from fullgrad.sampling._arguments import Temperature, check_rows, check_temperature
from fullgrad.sampling._rows import divided, largest
from fullgrad.sampling._softmax_sample import SoftmaxSample


def categorical_st(
    logits: Tensor,
    tau: Temperature = 1.0,
    dim: int = -1,
    sample_tau: Temperature = 1.0,
    gradient: Literal["softmax", "identity"] = "softmax",
    *,
    noise: Tensor | None = None,
    generator: Generator | None = None,
) -> Tensor:
    r"""A random class as a one-hot vector, with the derivative of a softmax.

    .. math::
        y = e_i, \quad i = \arg\max_j (\theta_j / \tau_s + G_j), \qquad D = \text{that of } \operatorname{softmax}(\theta / \tau)

    at every order; with ``gradient="identity"`` :math:`D_\theta = 1`. The class is drawn with the probabilities
    :math:`\operatorname{softmax}(\theta / \tau_s)`; a temperature other than that of the derivative gives decoupled ST. There is
    no derivative by :math:`\tau_s`. A logit of minus infinity is a class that is never drawn and, with ``"softmax"``, has the
    gradient 0. Saved: inputs.

    Args:
        logits: The logits θ, any shape; floating.
        tau: The temperature of the derivative, positive: a number, or a tensor that broadcasts and gets its own gradient.
        dim: The dimension of the classes.
        sample_tau: The temperature of the sample, positive: a number or a tensor, a constant.
        gradient: ``"softmax"`` or ``"identity"``.
        noise: Gumbel noise G of the shape of ``logits``, a constant; None to draw it by :func:`fullgrad.sampling.gumbel_like`.
        generator: Draws it; None for torch's default generator.

    Returns:
        A tensor of the shape and dtype of ``logits``. A row is NaN where it has a NaN or infinity, or all are minus infinity.

    Raises:
        TypeError: ``logits`` or ``noise`` is not a floating tensor, or another argument has a wrong type.
        ValueError: A temperature is a number that is not positive or does not broadcast, ``gradient`` is unknown, or ``noise``
            has another shape or is given with a generator.
        IndexError: ``logits`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x, noise = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([2.5, 0.1, 0.2])
        >>> fullgrad.sampling.categorical_st(x, noise=noise)
        tensor([1., 0., 0.])
        >>> torch.func.grad(lambda x: fullgrad.sampling.categorical_st(x, noise=noise) @ torch.arange(3.0))(x)
        tensor([-0.1418, -0.1408,  0.2826])

    Source: Bengio, Léonard, Courville, https://arxiv.org/abs/1308.3432; Shah et al., https://arxiv.org/abs/2410.13331 (two
    temperatures).
    """
    name = "categorical_st"
    dim = check_rows(name, "logits", logits, dim)
    checks.choice(name, "gradient", gradient, ("softmax", "identity"))
    check_temperature(name, "tau", tau, logits)
    check_temperature(name, "sample_tau", sample_tau, logits)
    logits = with_whole_rows(logits, dim)
    noise = noise_for(name, logits, noise, generator, gumbel_like).detach()
    wide, sample_tau = to_opmath(logits.detach(), sample_tau)
    sample, _ = largest(divided(wide, sample_tau) + noise, dim, logits.dtype)
    if gradient == "identity":
        return replace_grad(sample, logits)
    return SoftmaxSample.apply(sample, logits, None, tau, None, dim) if logits.ndim else torch.softmax(logits, -1)
