"""`abs_binary_sign_grad`."""

import torch
from torch import Tensor

from fullgrad.spikes._arguments import SIGNED_TIES, checked
from fullgrad.spikes._surrogate import Surrogate
from fullgrad.spikes._values import sign


def abs_binary_sign_grad(x: Tensor, tie: float = 1.0) -> Tensor:
    r"""The absolute value with a slope that is 1 or -1 everywhere, at 0 too.

    .. math::
        y = |x|, \qquad D_x = 1 \text{ for } x > 0, \text{ else } -1

    and ``tie`` at 0, where the derivative of :func:`torch.abs` is 0. Higher derivatives are 0. Saved: ``x``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        tie: The slope at zeros of both signs: 1.0, -1.0 or 0.0.

    Returns:
        A tensor of the shape of ``x``.

    Raises:
        TypeError: ``x`` is not a real tensor.
        ValueError: ``tie`` has another value.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([-2.0, 0.0, 0.5])
        >>> fullgrad.spikes.abs_binary_sign_grad(x)
        tensor([2.0000, 0.0000, 0.5000])
        >>> torch.func.vmap(torch.func.grad(fullgrad.spikes.abs_binary_sign_grad))(x)
        tensor([-1.,  1.,  1.])

    Source: ``brevitas.function.ops_ste.abs_binary_sign_grad``.
    """
    return AbsBinarySignGrad.apply(checked("abs_binary_sign_grad", "x", x, tie, SIGNED_TIES), tie)


class AbsBinarySignGrad(Surrogate):
    """The operator of :func:`abs_binary_sign_grad`."""

    reads = {0: (0,)}

    @staticmethod
    def forward(x: Tensor, tie: float) -> Tensor:
        return torch.abs(x)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Tensor, tie: float) -> Tensor:
        return v * sign(x, tie)
