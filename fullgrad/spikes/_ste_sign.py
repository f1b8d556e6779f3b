"""`ste_sign`."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core.windows import where_between
from fullgrad.spikes._arguments import SIGNED_TIES, Parameter, checked, positive_or_none
from fullgrad.spikes._surrogate import Surrogate
from fullgrad.spikes._values import expanded, sign


def ste_sign(x: Tensor, clip_value: Parameter | None = 1.0, tie: float = 1.0) -> Tensor:
    r"""A sign with the straight-through slope 1 in a window.

    .. math::
        y = 1 \text{ for } x > 0, \text{ else } -1, \qquad D_x = [\,|x| \le c\,],
        \qquad D_c = \operatorname{sign}(x)\,[\,|x| > c\,]

    The ends belong to the window: weights clipped to it would otherwise stay there. Higher derivatives are 0. Saved: ``x``,
    and ``clip_value`` if it is a tensor.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        clip_value: Half the width, positive: a number, or a tensor that broadcasts with ``x`` and gets its own gradient; None for
            the slope 1 everywhere.
        tie: The value at zeros of both signs: 1.0, -1.0 or 0.0.

    Returns:
        A tensor of the broadcast shape, -1 where ``x`` is NaN.

    Raises:
        TypeError: ``x`` is not a real tensor, or another argument is neither a real tensor nor a number.
        ValueError: A parameter is a number out of its range, or ``tie`` has another value.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([-2.0, 0.0, 0.5])
        >>> fullgrad.spikes.ste_sign(x)
        tensor([-1.,  1.,  1.])
        >>> torch.func.vmap(torch.func.grad(fullgrad.spikes.ste_sign))(x)
        tensor([0., 1., 1.])

    Source: ``larq.quantizers.SteSign``, ``brevitas.function.ops_ste.binary_sign_ste`` and ``bitorch``'s ``Sign`` (with None) and
    ``SteHeaviside`` (with ``tie=-1.0``); https://arxiv.org/abs/1602.02830.
    """
    x = checked("ste_sign", "x", x, tie, SIGNED_TIES, positive_or_none(clip_value))
    return SteSign.apply(x, clip_value, tie)


class SteSign(Surrogate):
    """The operator of :func:`ste_sign`."""

    in_pieces = "half"
    reads = {0: (0, 1), 1: (0, 1)}

    @staticmethod
    def forward(x: Tensor, clip_value: Parameter | None, tie: float) -> Tensor:
        return expanded(sign(x, tie), clip_value)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Tensor, clip_value: Any, tie: float) -> Tensor:
        if i == 1:
            return torch.where(x.abs() > clip_value, torch.sign(x) * v, 0)
        return v if clip_value is None else where_between(v, x, -clip_value, clip_value)
