"""`binary_st`."""

from torch import Generator, Tensor

from fullgrad._core import checks
from fullgrad._core.elementwise import Elementwise
from fullgrad._core.noise import noise_for
from fullgrad._core.opmath import to_opmath
from fullgrad._core.pieces import pointwise
from fullgrad._core.windows import where_between
from fullgrad.sampling._bernoulli_st import indicator


def binary_st(x: Tensor, *, noise: Tensor | None = None, generator: Generator | None = None) -> Tensor:
    r"""A random sign whose mean is a number between -1 and 1, with the derivative of a clamp.

    .. math::
        y = \begin{cases} 1 & u < (x + 1) / 2 \\ -1 & \text{otherwise} \end{cases}, \qquad D = [\,-1 \le x \le 1\,]

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
        >>> fullgrad.sampling.binary_st(torch.tensor([-0.9, 0.0, 0.9]), noise=torch.tensor([0.3, 0.3, 0.3]))
        tensor([-1.,  1.,  1.])

    Source: Courbariaux, Bengio, David, https://arxiv.org/abs/1511.00363.
    """
    checks.floating_tensor("binary_st", "x", x)
    return BinaryST.apply(x, noise_for("binary_st", x, noise, generator))


class RandomSign(Elementwise):
    """A random sign of a number, with the derivative of clamp(x, -1, 1)."""

    reads = {0: (0,), 1: ()}

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Tensor, noise: None) -> Tensor | None:
        return where_between(v, x, -1.0, 1.0) if i == 0 else None


class BinaryST(RandomSign):
    """The operator of :func:`binary_st`."""

    @staticmethod
    @pointwise
    def forward(x: Tensor, noise: Tensor) -> Tensor:
        (wide,) = to_opmath(x)
        return indicator((wide + 1) / 2, noise, x.dtype) * 2 - 1
