"""`gapped_st`."""

from typing import Literal

import torch
from torch import Generator, Tensor

from fullgrad._core import checks
from fullgrad._core.noise import gumbel_like, noise_for
from fullgrad._core.opmath import to_opmath
from fullgrad._core.shards import with_whole_rows
from fullgrad.sampling._arguments import Temperature, check_rows, check_temperature
from fullgrad.sampling._rows import largest
from fullgrad.sampling._softmax_sample import SoftmaxSample


def gapped_st(
    logits: Tensor,
    tau: Temperature = 1.0,
    gap: float | Literal["probs"] = 1.0,
    dim: int = -1,
    *,
    noise: Tensor | None = None,
    generator: Generator | None = None,
) -> Tensor:
    r"""A random class as a one-hot vector, with the derivative of a softmax in which that class is ahead by a gap.

    .. math::
        y = e_i, \quad i = \arg\max_j (\theta_j + G_j), \qquad D = \text{that of } \operatorname{softmax}((\theta + c) / \tau)

    with c a constant: :math:`c_i = \max \theta - \theta_i`, else :math:`c_j = -[\theta_j - \max \theta + \text{gap}]_+`. The gap
    ``"probs"`` is :math:`-\log(1 - q) / q` with :math:`q = (1 - 10^{-5}) \operatorname{softmax}(\theta)_i`. The derivative has
    less variance than that of Gumbel-softmax, as no noise is in it. A logit of minus infinity is a class that is never drawn and
    has the gradient 0. Saved: inputs, and 8 bytes per row.

    Args:
        logits: The logits θ, any shape; floating.
        tau: The temperature, positive: a number, or a tensor that broadcasts and gets its own gradient.
        gap: How far the class is ahead, not negative, or ``"probs"``.
        dim: The dimension of the classes.
        noise: Gumbel noise G of the shape of ``logits``, a constant; None to draw it.
        generator: Draws it; None for torch's default generator.

    Returns:
        A tensor of the shape and dtype of ``logits``. A row is NaN where it has a NaN or infinity, or all are minus infinity.

    Raises:
        TypeError: ``logits`` or ``noise`` is not a floating tensor, or another argument has a wrong type.
        ValueError: ``tau`` is a number that is not positive or does not broadcast, ``gap`` is negative or another word, or
            ``noise`` has another shape or is given with a generator.
        IndexError: ``logits`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x, noise = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([2.5, 0.1, 0.2])
        >>> torch.func.grad(lambda x: fullgrad.sampling.gapped_st(x, noise=noise) @ torch.arange(3.0))(x)
        tensor([-0.3663,  0.0772,  0.2891])

    Source: Fan et al., https://arxiv.org/abs/2206.07235.
    """
    name = "gapped_st"
    dim = check_rows(name, "logits", logits, dim)
    check_temperature(name, "tau", tau, logits)
    if isinstance(gap, str):
        checks.choice(name, "gap", gap, ("probs",))
    else:
        checks.non_negative_number(name, "gap", gap)
    logits = with_whole_rows(logits, dim)
    noise = noise_for(name, logits, noise, generator, gumbel_like)
    sample, index = largest(to_opmath(logits.detach())[0] + noise.detach(), dim, logits.dtype)
    return SoftmaxSample.apply(sample, logits, index, tau, gap, dim) if logits.ndim else torch.softmax(logits, -1)
