"""`ternary_st`."""

import torch
from torch import Generator, Tensor

from fullgrad._core import checks
from fullgrad._core.noise import noise_for
from fullgrad._core.pieces import pointwise
from fullgrad.sampling._bernoulli_st import indicator
from fullgrad.sampling._binary_st import RandomSign


def ternary_st(x: Tensor, *, noise: Tensor | None = None, generator: Generator | None = None) -> Tensor:
    r"""The sign of a number or 0, drawn so that the mean is the number, with the derivative of a clamp.

    .. math::
        y = \operatorname{sign}(x)\, [\,u < |x|\,], \qquad D = [\,-1 \le x \le 1\,]

    The derivative is that of clamp(x, -1, 1), of which y is an unbiased estimate. Higher derivatives are 0. Saved: ``x``.

    Args:
        x: Any shape; floating.
        noise: Uniform numbers u in [0, 1) of the shape of ``x``, a constant; None to draw them.
        generator: Draws them; None for torch's default generator.

    Returns:
        A tensor of the shape and dtype of ``x``; NaN where ``x`` is NaN.

    Raises:
        TypeError: ``x`` or ``noise`` is not a floating tensor, or ``generator`` is not a generator.
        ValueError: ``noise`` has another shape, or is given with a generator.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.sampling.ternary_st(torch.tensor([-0.9, 0.1, 0.9]), noise=torch.tensor([0.3, 0.3, 0.3]))
        tensor([-1.,  0.,  1.])

    Source: Courbariaux, Bengio, David, https://arxiv.org/abs/1511.00363; Lin et al., https://arxiv.org/abs/1510.03009.
    """
    checks.floating_tensor("ternary_st", "x", x)
    return TernaryST.apply(x, noise_for("ternary_st", x, noise, generator))


class TernaryST(RandomSign):
    """The operator of :func:`ternary_st`."""

    @staticmethod
    @pointwise
    def forward(x: Tensor, noise: Tensor) -> Tensor:
        return torch.sign(x) * indicator(x.abs(), noise, x.dtype)
