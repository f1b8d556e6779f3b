"""`approx_sign`."""

import torch
from torch import Tensor

from fullgrad.spikes._arguments import SIGNED_TIES, checked
from fullgrad.spikes._surrogate import Surrogate
from fullgrad.spikes._values import sign


def approx_sign(x: Tensor, tie: float = 1.0) -> Tensor:
    r"""A sign with a triangle as its slope.

    .. math::
        y = 1 \text{ for } x > 0, \text{ else } -1, \qquad D_x = 2 \max(0, 1 - |x|)

    The slope has corners at 0 and at both ends, where the second derivative is 0. bitorch's slope is NaN at infinity. Saved:
    ``x``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        tie: The value at zeros of both signs: 1.0, -1.0 or 0.0.

    Returns:
        A tensor of the shape of ``x``, -1 where ``x`` is NaN.

    Raises:
        TypeError: ``x`` is not a real tensor.
        ValueError: ``tie`` has another value.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([-2.0, 0.0, 0.5])
        >>> fullgrad.spikes.approx_sign(x)
        tensor([-1.,  1.,  1.])
        >>> torch.func.vmap(torch.func.grad(fullgrad.spikes.approx_sign))(x)
        tensor([0., 2., 1.])

    Source: ``larq.quantizers.ApproxSign``; https://arxiv.org/abs/1808.00278.
    """
    return ApproxSign.apply(checked("approx_sign", "x", x, tie, SIGNED_TIES), tie)


class ApproxSign(Surrogate):
    """The operator of :func:`approx_sign`."""

    reads = {0: (0,)}

    @staticmethod
    def forward(x: Tensor, tie: float) -> Tensor:
        return sign(x, tie)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Tensor, tie: float) -> Tensor:
        return v * torch.relu(2 - 2 * x.abs())
