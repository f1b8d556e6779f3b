"""`reinmax`."""

from typing import Any

import torch
from torch import Generator, Tensor

from fullgrad._core import checks
from fullgrad._core.function import alias, is_identity
from fullgrad._core.noise import gumbel_like, noise_for
from fullgrad._core.opmath import to_opmath
from fullgrad._core.recomputed import saved_inputs
from fullgrad._core.shards import with_whole_rows
from fullgrad._dispatch import surely
from fullgrad.sampling._arguments import check_rows
from fullgrad.sampling._rows import SampleOfRows, divided, largest, softmax_pull


def reinmax(
    logits: Tensor, tau: float = 1.0, dim: int = -1, *, noise: Tensor | None = None, generator: Generator | None = None
) -> Tensor:
    r"""A random class as a one-hot vector, with a derivative that is exact for quadratic functions.

    .. math::
        y = e_i, \quad i = \arg\max_j (\theta_j + G_j), \qquad
        D = 2 J\Bigl(\frac{\operatorname{softmax}(\theta / \tau) + e_i}{2}\Bigr) - \frac12 J(\operatorname{softmax} \theta)

    with :math:`J(p)\, v = p \circ (v - \langle p, v \rangle)`. D is symmetric. At :math:`\tau = 1` the gradient of a function f
    of y has the mean :math:`\nabla_\theta\, E f(y)` if f is quadratic, for any number of classes; it is second-order accurate
    otherwise. No plain function has this derivative. A logit of minus infinity is a class that is never drawn and has the
    gradient 0. Saved: inputs, and 8 bytes per row: the class is a constant of second derivatives.

    Args:
        logits: The logits θ, any shape; floating.
        tau: The temperature, a positive number.
        dim: The dimension of the classes.
        noise: Gumbel noise G of the shape of ``logits``, a constant; None to draw it.
        generator: Draws it; None for torch's default generator.

    Returns:
        A tensor of the shape and dtype of ``logits``. A row is NaN where it has a NaN or infinity, or all are minus infinity.

    Raises:
        TypeError: ``logits`` or ``noise`` is not a floating tensor, or another argument has a wrong type.
        ValueError: ``tau`` is not positive, or ``noise`` has another shape or is given with a generator.
        IndexError: ``logits`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x, noise = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([2.5, 0.1, 0.2])
        >>> torch.func.grad(lambda x: fullgrad.sampling.reinmax(x, noise=noise) @ torch.arange(3.0))(x)
        tensor([-0.7876,  0.1224,  0.6652])

    Source: Liu et al., https://arxiv.org/abs/2304.08612; ``reinmax.reinmax``.
    """
    dim = check_rows("reinmax", "logits", logits, dim)
    checks.positive_number("reinmax", "tau", tau)
    logits = with_whole_rows(logits, dim)
    noise = noise_for("reinmax", logits, noise, generator, gumbel_like)
    sample, index = largest(to_opmath(logits.detach())[0] + noise.detach(), dim, logits.dtype)
    return ReinMax.apply(sample, logits, index, float(tau), dim) if logits.ndim else torch.softmax(logits, -1)


class ReinMax(SampleOfRows):
    """The operator of :func:`reinmax`."""

    @staticmethod
    @is_identity
    def forward(sample: Tensor, logits: Tensor, index: Tensor, tau: float, dim: int) -> Tensor:
        return alias(sample)

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        return None, _derivative_times(g, *saved_inputs(ctx)[1:]), None, None, None

    @staticmethod
    def jvp(ctx: Any, _: Any, t: Tensor | None, *__: Any) -> Tensor | None:
        return None if t is None else _derivative_times(t, *saved_inputs(ctx)[1:]).to(ctx.dtype)


def _derivative_times(v: Tensor, logits: Tensor, index: Tensor, tau: float, dim: int) -> Tensor:
    r"""D v without forming the mean: with :math:`a = q \circ (v - v_i)` and :math:`q = \operatorname{softmax}(\theta / \tau)`,

    .. math::
        2 J\Bigl(\frac{q + e_i}{2}\Bigr) v = a - \frac{q + e_i}{2} \sum a

    and for :math:`\tau = 1` the other term takes away half of a and all of q.
    """
    v, wide = to_opmath(v, logits)
    q = torch.softmax(divided(wide, tau), dim)
    a = q * (v - v.gather(dim, index))
    half = a.sum(dim, keepdim=True) / 2
    if surely(tau == 1):
        return (a / 2).scatter_add(dim, index, -half)
    return (a - q * half).scatter_add(dim, index, -half) - softmax_pull(v, torch.softmax(wide, dim), dim) / 2
