"""`bernoulli_logits_st`."""

from typing import Literal

import torch
from torch import Generator, Tensor

from fullgrad._core import checks
from fullgrad._core.elementwise import Elementwise
from fullgrad._core.noise import noise_for
from fullgrad._core.opmath import to_opmath
from fullgrad._core.pieces import pointwise
from fullgrad.functions import replace_grad
from fullgrad.sampling._arguments import Temperature, check_temperature
from fullgrad.sampling._bernoulli_st import indicator
from fullgrad.sampling._relaxed_bernoulli import relaxed_bernoulli
from fullgrad.soft._curves import clamp_to_transition

_GRADIENTS = ("sigmoid", "relaxed", "identity")


def bernoulli_logits_st(
    logits: Tensor,
    tau: Temperature = 1.0,
    gradient: Literal["sigmoid", "relaxed", "identity"] = "sigmoid",
    *,
    noise: Tensor | None = None,
    generator: Generator | None = None,
) -> Tensor:
    r"""A random 0 or 1 with the probability of a logit and the derivative of a sigmoid.

    .. math::
        y = [\,u < \sigma(\theta)\,], \qquad D = \text{that of } \sigma(\theta / \tau)

    at every order; with ``gradient="relaxed"`` that of :func:`relaxed_bernoulli` of the same noise, of which y is the rounded
    value; with ``"identity"`` :math:`D_\theta = 1`. Saved: nothing but inputs; the relaxed value with ``"relaxed"``.

    Args:
        logits: The logits θ, any shape; floating.
        tau: The temperature of the derivative, positive: a number, or a tensor that broadcasts and gets its own gradient.
        gradient: ``"sigmoid"``, ``"relaxed"`` or ``"identity"``.
        noise: Uniform numbers u in [0, 1) of the shape of ``logits``; None to draw them. It has a derivative with ``"relaxed"``.
        generator: Draws them; None for torch's default generator.

    Returns:
        A tensor of the shape and dtype of ``logits``; NaN where ``logits`` is NaN.

    Raises:
        TypeError: ``logits`` or ``noise`` is not a floating tensor, or another argument has a wrong type.
        ValueError: ``tau`` is a number that is not positive or does not broadcast, ``gradient`` is unknown, or ``noise`` has
            another shape or is given with a generator.

    Example:
        >>> import torch, fullgrad
        >>> x, u = torch.tensor([-2.0, 0.0, 2.0]), torch.tensor([0.3, 0.3, 0.3])
        >>> fullgrad.sampling.bernoulli_logits_st(x, noise=u)
        tensor([0., 1., 1.])
        >>> torch.func.grad(lambda x: fullgrad.sampling.bernoulli_logits_st(x, noise=u).sum())(x)
        tensor([0.1050, 0.2500, 0.1050])

    Source: Bengio, Léonard, Courville, https://arxiv.org/abs/1308.3432; ``softjax.random.bernoulli_st`` (``"relaxed"`` in the
    probability).
    """
    name = "bernoulli_logits_st"
    checks.floating_tensor(name, "logits", logits)
    checks.choice(name, "gradient", gradient, _GRADIENTS)
    check_temperature(name, "tau", tau, logits)
    noise = noise_for(name, logits, noise, generator)
    if gradient == "sigmoid":
        return BernoulliLogitsST.apply(logits, tau, noise)
    hard = BernoulliLogitsST.apply(logits.detach(), 1.0, noise.detach())
    surrogate = logits if gradient == "identity" else relaxed_bernoulli(logits, tau, noise=noise)
    return replace_grad(hard, surrogate)


class BernoulliLogitsST(Elementwise):
    """The operator of :func:`bernoulli_logits_st`."""

    in_pieces = opmath = True
    reads = {0: (0, 1), 1: (0, 1), 2: ()}

    @staticmethod
    def forward(logits: Tensor, tau: Temperature, noise: Tensor) -> Tensor:
        return sample(logits, noise)

    @staticmethod
    def vjp_term(i: int, v: Tensor, logits: Tensor, tau: Temperature, noise: None) -> Tensor | None:
        if i == 2:
            return None
        if isinstance(tau, Tensor):  # by which the slope is differentiated, 0 times infinity where a logit is infinite
            logits = clamp_to_transition(logits, tau, "smooth")
        z = logits / tau
        s = torch.sigmoid(z)
        slope = s * torch.sigmoid(-z) / tau
        return v * slope if i == 0 else v * slope * -z


@pointwise
def sample(logits: Tensor, noise: Tensor) -> Tensor:
    """The value of `BernoulliLogitsST`."""
    (wide,) = to_opmath(logits)
    return indicator(torch.sigmoid(wide), noise, logits.dtype)
