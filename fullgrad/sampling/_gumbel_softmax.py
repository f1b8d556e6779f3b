"""`gumbel_softmax`."""

import torch
from torch import Generator, Tensor

from fullgrad._half_precision import to_opmath
from fullgrad._noise import gumbel_like, noise_for
from fullgrad.estimators import replace_grad
from fullgrad.sampling._arguments import Temperature, check_rows, check_temperature
from fullgrad.sampling._rows import largest, over_temperature


def gumbel_softmax(
    logits: Tensor,
    tau: Temperature = 1.0,
    hard: bool = False,
    dim: int = -1,
    *,
    noise: Tensor | None = None,
    generator: Generator | None = None,
) -> Tensor:
    r"""Random weights that are close to one class at a low temperature, or that class with their derivative.

    .. math::
        y = \operatorname{softmax}\Bigl(\frac{\theta + G}{\tau}\Bigr), \qquad D_\theta = \frac{J(y)}{\tau}, \qquad
        D_\tau = -\frac{J(y) \log y}{\tau}

    with :math:`J(y)\, v = y \circ (v - \langle y, v \rangle)`; ``hard``: the value :math:`e_i`,
    :math:`i = \arg\max_j (\theta_j + G_j)`, with the same derivative. The derivative is the true one of the weights, at every
    order, of the noise too. A logit of minus infinity is a class that is never drawn and has the gradient 0. Saved: the weights;
    the scores too where ``tau`` is a tensor.

    Args:
        logits: The logits θ, any shape; floating.
        tau: The temperature, positive: a number, or a tensor that broadcasts and gets its own gradient.
        hard: Whether the value is a one-hot vector.
        dim: The dimension of the classes.
        noise: Gumbel noise G of the shape of ``logits``; None to draw it by :func:`fullgrad.sampling.gumbel_like`.
        generator: What draws it; None for torch's own.

    Returns:
        A tensor of the shape and dtype of ``logits``. A row is NaN where it has a NaN or infinity, or all are minus infinity.

    Raises:
        TypeError: ``logits`` or ``noise`` is not a floating tensor, or another argument has a wrong type.
        ValueError: ``tau`` is a number that is not positive or does not broadcast, ``noise`` has another shape, or there is a
            generator as well.
        IndexError: ``logits`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x, noise = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([2.5, 0.1, 0.2])
        >>> fullgrad.sampling.gumbel_softmax(x, noise=noise)
        tensor([0.5032, 0.1241, 0.3728])
        >>> fullgrad.sampling.gumbel_softmax(x, hard=True, noise=noise)
        tensor([1., 0., 0.])

    Source: ``torch.nn.functional.gumbel_softmax``; Jang, Gu, Poole, https://arxiv.org/abs/1611.01144; Maddison, Mnih, Teh,
    https://arxiv.org/abs/1611.00712.
    """
    name = "gumbel_softmax"
    dim = check_rows(name, "logits", logits, dim)
    check_temperature(name, "tau", tau, logits)
    noise = noise_for(name, logits, noise, generator, gumbel_like)
    wide, tau = to_opmath(logits, tau)
    scores = wide + noise
    y = torch.softmax(over_temperature(scores, tau), dim).to(logits.dtype)
    return replace_grad(largest(scores.detach(), dim, logits.dtype)[0], y) if hard else y
