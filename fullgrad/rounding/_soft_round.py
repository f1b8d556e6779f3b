"""`soft_round`: the value of round, the derivative x / round(x)."""

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.elementwise import Elementwise
from fullgrad._core.fast import replaceable
from fullgrad._core.function import pure


def soft_round(x: Tensor) -> Tensor:
    r"""Round to the nearest integer with a derivative that pulls toward integers.

    .. math::
        y = \operatorname{round}(x), \qquad
        D(x) = \begin{cases}
            x / \operatorname{round}(x) & \operatorname{round}(x) \ne 0 \\ 1 & x = 0 \\ 0 & \text{otherwise}
        \end{cases}

    The value is that of :func:`torch.round`, bit for bit. The second derivative is that of ``D``: :math:`1 /
    \operatorname{round}(x)` where :math:`\operatorname{round}(x) \ne 0`, else 0, and the third is 0. The original in shok
    computes ``D`` in its forward and keeps it as a constant, so there the second derivative is 0. NaN and infinite ``x`` have a
    NaN derivative. Saved: ``x`` alone.

    Args:
        x: Any shape; floating, or integer (returned unchanged, without a gradient).

    Returns:
        A tensor of the shape and dtype of ``x``.

    Raises:
        TypeError: ``x`` is not a tensor, or is bool or complex.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([-0.25, 0.0, 1.4, 1.5])
        >>> fullgrad.soft_round(x)
        tensor([-0., 0., 1., 2.])
        >>> torch.func.grad(lambda x: fullgrad.soft_round(x).sum())(x)
        tensor([0.0000, 1.0000, 1.4000, 0.7500])

    Source: ``shok.utils.functions.SoftRound``.
    """
    checks.real_tensor("soft_round", "x", x)
    return SoftRound.apply(x)


class SoftRound(Elementwise):
    """The operator of :func:`soft_round`."""

    in_pieces = True
    reads = {0: (0,)}

    @staticmethod
    @pure
    def forward(x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Tensor) -> Tensor:
        return v * Slope.apply(x)


class Slope(Elementwise):
    """``D`` as an operator of its own: torch's derivative would be 0 * infinity where round(x) = 0."""

    reads = {0: (0,)}

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return slope(x)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Tensor) -> Tensor:
        return v * _reciprocal(x)


@replaceable
def slope(x: Tensor) -> Tensor:
    """``D``."""
    rounded = torch.round(x)
    return torch.where(rounded == 0, (x == 0).to(x.dtype), x / rounded)


def _reciprocal(x: Tensor) -> Tensor:
    """1 / round(x), and 0 where round(x) = 0; finite in every step, so that its own derivative is 0 and not NaN."""
    rounded = torch.round(x)
    nonzero = rounded != 0
    return nonzero / (rounded + ~nonzero)
