"""`swish_sign`."""

from typing import Any

import torch
from torch import Tensor

from fullgrad.spikes._arguments import SIGNED_TIES, Parameter, checked
from fullgrad.spikes._formulas import bell, clamp_to_finite
from fullgrad.spikes._surrogate import Surrogate
from fullgrad.spikes._values import expanded, sign


def swish_sign(x: Tensor, beta: Parameter = 5.0, tie: float = 1.0) -> Tensor:
    r"""A sign with the slope of a function made of SiLU.

    .. math::
        y = 1 \text{ for } x > 0, \text{ else } -1, \qquad z = \beta x, \qquad
        D_x = 2 \beta\, s(z)\, s(-z) \Bigl(2 - z \tanh \frac z2\Bigr), \qquad D_\beta = \frac{x}{\beta} D_x

    with :math:`s` the logistic function: the surrogate is :math:`2 s(z) (1 + z s(-z)) - 1`. The slope is negative beyond
    :math:`|z| = 2.4`. Smooth. bitorch's slope is NaN at infinity, and its second derivative beyond 89. Saved: ``x``, and ``beta``
    if it is a tensor.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        beta: The inverse width, positive: a number, or a tensor that broadcasts with ``x`` and gets its own gradient.
        tie: The value at zeros of both signs: 1.0, -1.0 or 0.0.

    Returns:
        A tensor of the broadcast shape, -1 where ``x`` is NaN.

    Raises:
        TypeError: ``x`` is not a real tensor, or another argument is neither a real tensor nor a number.
        ValueError: A parameter is a number out of its range, or ``tie`` has another value.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([-2.0, 0.0, 0.5])
        >>> fullgrad.spikes.swish_sign(x)
        tensor([-1.,  1.,  1.])
        >>> torch.func.vmap(torch.func.grad(fullgrad.spikes.swish_sign))(x)
        tensor([-3.6313e-03,  5.0000e+00, -8.4622e-02])

    Source: ``larq.quantizers.SwishSign``; https://arxiv.org/abs/1812.11800.
    """
    x = checked("swish_sign", "x", x, tie, SIGNED_TIES, {"beta": beta})
    return SwishSign.apply(x, beta, tie)


class SwishSign(Surrogate):
    """The operator of :func:`swish_sign`."""

    reads = {0: (0, 1), 1: (0, 1)}

    @staticmethod
    def forward(x: Tensor, beta: Parameter, tie: float) -> Tensor:
        return expanded(sign(x, tie), beta)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Tensor, beta: Any, tie: float) -> Tensor:
        x = clamp_to_finite(x, beta)
        z = torch.clamp(x * beta, -800, 800)  # where the bell is 0, and twice z is still finite
        return v * bell(z) * (2 - z * torch.tanh(z * 0.5)) * 2 * (beta if i == 0 else x)
