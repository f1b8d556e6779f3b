"""`bernoulli`."""

from torch import Tensor

from fullgrad._core.windows import as_number
from fullgrad.spikes._arguments import checked, uniform_noise
from fullgrad.spikes._surrogate import Surrogate


def bernoulli(p: Tensor, noise: Tensor | None = None) -> Tensor:
    r"""A random spike with a given probability and the straight-through slope 1.

    .. math::
        y = [\,r < p\,], \qquad D_p = 1

    With ``p`` a smooth function of a membrane potential, such as ``torch.sigmoid(v)``, the slope is that of the probability, as
    in norse's ``logistic`` and ``circ_dist``. The noise is drawn with the value, in float32 for half precision, whose steps would
    be too coarse; ``vmap`` needs its ``randomness``. ``torch.func.hessian`` has no such argument: give it the noise, or use
    ``jacfwd(jacrev(f), randomness="same")``. Higher derivatives are 0. Nothing is saved.

    Args:
        p: Probabilities, any shape; floating, or integer (which gives the default dtype). A number below 0 never spikes, and one
            above 1 always does.
        noise: Numbers between 0 and 1 that broadcast with ``p``; None to draw them.

    Returns:
        A tensor of the broadcast shape, of the dtype of ``p``; 0 where ``p`` is NaN.

    Raises:
        TypeError: ``p`` or ``noise`` is not a real tensor.

    Example:
        >>> import torch, fullgrad
        >>> p = torch.tensor([0.1, 0.5, 0.9])
        >>> fullgrad.spikes.bernoulli(p, torch.tensor([0.3, 0.3, 0.3]))
        tensor([0., 1., 1.])

    Source: ``spikingjelly.activation_based.surrogate.PoissonPass``.
    """
    p = checked("bernoulli", "p", p, 1.0, (1.0,))
    return Bernoulli.apply(p, uniform_noise("bernoulli", p, noise))


class Bernoulli(Surrogate):
    """The operator of :func:`bernoulli`."""

    reads = {0: (), 1: ()}

    @staticmethod
    def forward(p: Tensor, noise: Tensor) -> Tensor:
        return as_number(noise < p, p.dtype)

    @staticmethod
    def vjp_term(i: int, v: Tensor, p: None, noise: None) -> Tensor | None:
        return v if i == 0 else None
