"""`stochastic_round`: rounding up or down at random, unbiased, with derivative 1."""

import torch
from torch import Generator, Tensor

from fullgrad._core import checks
from fullgrad._core.noise import noise_for
from fullgrad._dispatch import same_shape
from fullgrad.rounding._modes import round_to_integer
from fullgrad.rounding._straight_through import StraightThrough


def stochastic_round(x: Tensor, *, noise: Tensor | None = None, generator: Generator | None = None) -> Tensor:
    r"""Round to one of the two nearest integers at random, so that the mean is ``x``, with the straight-through derivative.

    .. math::
        y = t + \operatorname{sgn}(x)\,[\,u < f\,], \qquad t = \operatorname{trunc}(x), \quad f = |x - t|, \qquad D(x) = 1

    for noise :math:`u` in [0, 1): away from zero with a probability equal to the fraction, which is exact. The rule is symmetric,
    and -0.0 and infinities stay. The noise is drawn once, with the value, in float32 at least: bfloat16 noise has 256 steps and
    would be biased. Under ``vmap`` it obeys ``randomness``. Higher derivatives are 0. Nothing is saved.

    Args:
        x: Any shape; floating, or integer (returned unchanged, without a gradient).
        noise: A floating tensor of the shape of ``x``, in [0, 1); None to draw it.
        generator: Draws the noise if it is not given. Compiled code takes noise only.

    Returns:
        A tensor of the shape and dtype of ``x``.

    Raises:
        TypeError: ``x`` is not a tensor, or is bool or complex; ``noise`` is not a floating tensor.
        ValueError: ``noise`` has another shape than ``x``, or there is a generator as well.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([-0.25, 0.25, 1.75], requires_grad=True)
        >>> y = fullgrad.stochastic_round(x, noise=torch.tensor([0.1, 0.5, 0.5]))
        >>> y.detach()
        tensor([-1., 0., 2.])
        >>> torch.autograd.grad(y.sum(), x)
        (tensor([1., 1., 1.]),)

    Source: ``brevitas.core.function_wrapper.stochastic_round.StochasticRoundSte``; ``StochasticFastest`` of gfloat.
    """
    checks.real_tensor("stochastic_round", "x", x)
    noise = noise_for("stochastic_round", x, noise, generator).detach()
    return StochasticRound.apply(x, noise)


class StochasticRound(StraightThrough):
    """The operator of :func:`stochastic_round`."""

    reads = {0: (), 1: ()}

    @staticmethod
    def forward(x: Tensor, noise: Tensor) -> Tensor:
        if x.is_floating_point():
            return round_to_integer(x, "stochastic", noise)
        return torch.trunc(x) if same_shape(x.shape, noise.shape) else x.expand(noise.shape).clone()
