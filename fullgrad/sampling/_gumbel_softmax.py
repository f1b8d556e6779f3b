"""`gumbel_softmax`."""

import functools
from typing import Any

import torch
from torch import Generator, Tensor

from fullgrad._core.noise import gumbel_like, noise_for
from fullgrad._core.opmath import to_opmath
from fullgrad._core.pieces import pointwise
from fullgrad._core.recomputed import saved_inputs
from fullgrad._core.shards import with_whole_rows
from fullgrad.functions import replace_grad
from fullgrad.sampling._arguments import Temperature, check_rows, check_temperature
from fullgrad.sampling._rows import divided, largest, softmax_pull
from fullgrad.soft.order._numbers import RowFunction


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
    order, of the noise too. A logit of minus infinity is a class that is never drawn and has the gradient 0. Saved: the weights.

    Args:
        logits: The logits θ, any shape; floating.
        tau: The temperature, positive: a number, or a tensor that broadcasts and gets its own gradient.
        hard: Whether the value is a one-hot vector.
        dim: The dimension of the classes.
        noise: Gumbel noise G of the shape of ``logits``; None to draw it by :func:`fullgrad.sampling.gumbel_like`.
        generator: Draws it; None for torch's default generator.

    Returns:
        A tensor of the shape and dtype of ``logits``. A row is NaN where it has a NaN or infinity, or all are minus infinity.

    Raises:
        TypeError: ``logits`` or ``noise`` is not a floating tensor, or another argument has a wrong type.
        ValueError: ``tau`` is a number that is not positive or does not broadcast, or ``noise`` has another shape or is given
            with a generator.
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
    logits = with_whole_rows(logits, dim)
    noise = noise_for(name, logits, noise, generator, gumbel_like)
    wide, tau = to_opmath(logits, tau)
    y = (GumbelSoftmax.apply(wide, noise, tau, dim) if wide.ndim else torch.softmax(wide + noise, -1)).to(logits.dtype)
    return replace_grad(largest(wide.detach() + noise.detach(), dim, logits.dtype)[0], y) if hard else y


class GumbelSoftmax(RowFunction):
    """The operator of :func:`gumbel_softmax`, soft. The rules read the value alone."""

    whole_dims = "dim"
    saves = (2, 3, 4)

    @staticmethod
    def forward(logits: Tensor, noise: Tensor, tau: Temperature, dim: int) -> Tensor:
        return torch.softmax(_scores(logits, noise, tau), dim)

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        tau, dim, y = saved_inputs(ctx)
        by_logits, by_noise, by_tau, _ = ctx.needs_input_grad
        pulled = divided(softmax_pull(g, y, dim), tau)
        return (
            pulled if by_logits else None,
            pulled.clone() if by_logits and by_noise else pulled if by_noise else None,
            -pulled * _log(y) if by_tau else None,
            None,
        )

    @staticmethod
    def jvp(ctx: Any, t: Tensor | None, t_noise: Tensor | None, t_tau: Tensor | None, _: None) -> Tensor:
        tau, dim, y = saved_inputs(ctx)
        parts = [v for v in (t, t_noise, None if t_tau is None else -_log(y) * t_tau) if v is not None]
        return divided(softmax_pull(functools.reduce(torch.add, parts), y, dim), tau)


@pointwise
def _scores(logits: Tensor, noise: Tensor, tau: Temperature) -> Tensor:
    return divided(logits + noise, tau)


def _log(y: Tensor) -> Tensor:
    """log y where y is positive, else 0."""
    return torch.log(torch.where(y > 0, y, 1))
