"""`ternary_sign`."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.windows import where_between
from fullgrad.spikes._arguments import TIES, Parameter, checked, positive_or_none
from fullgrad.spikes._surrogate import Surrogate
from fullgrad.spikes._values import expanded, step


def ternary_sign(x: Tensor, threshold: Parameter = 0.05, clip_value: Parameter | None = 1.0, tie: float = 1.0) -> Tensor:
    r"""A sign that is 0 near 0, with the straight-through slope 1 in a window.

    .. math::
        y = \operatorname{sign}(x)\,[\,|x| > t\,], \qquad D_x = [\,|x| \le c\,], \qquad D_t = 0, \qquad
        D_c = \operatorname{sign}(x)\,[\,|x| > c\,]

    and :math:`y = tie \cdot \operatorname{sign}(x)` where :math:`|x| = t`. A threshold learns in a difference of spikes,
    ``rect(x, threshold=t) - rect(-x, threshold=t)``. Higher derivatives are 0. Saved: ``x``, and ``clip_value`` if it is
    a tensor.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        threshold: The magnitude up to which the value is 0, not negative: a number, or a tensor that broadcasts with ``x``, such
            as ``0.7 * x.abs().mean()`` of ternary weight networks.
        clip_value: Half the width, positive: a number, or a tensor that broadcasts with ``x`` and gets its own gradient; None for
            the slope 1 everywhere.
        tie: The magnitude at the threshold: 1.0, 0.0 or 0.5.

    Returns:
        A tensor of the broadcast shape, 0 where ``x`` is NaN.

    Raises:
        TypeError: ``x`` is not a real tensor, or another argument is neither a real tensor nor a number.
        ValueError: A parameter is a number out of its range, or ``tie`` has another value.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([-2.0, 0.0, 0.5])
        >>> fullgrad.spikes.ternary_sign(x)
        tensor([-1.,  0.,  1.])
        >>> torch.func.vmap(torch.func.grad(fullgrad.spikes.ternary_sign))(x)
        tensor([0., 1., 1.])

    Source: ``larq.quantizers.SteTern``; ``brevitas.function.ops_ste.ternary_sign_ste`` is ``ternary_sign(x, 0.0, None)``.
    """
    if isinstance(threshold, Tensor):
        checks.real_tensor("ternary_sign", "threshold", threshold)
    else:
        checks.non_negative_number("ternary_sign", "threshold", threshold)
    x = checked("ternary_sign", "x", x, tie, TIES, positive_or_none(clip_value))
    return TernarySign.apply(x, threshold, clip_value, tie)


class TernarySign(Surrogate):
    """The operator of :func:`ternary_sign`."""

    in_pieces = "half"
    reads = {0: (0, 2), 1: (0,), 2: (0, 2)}

    @staticmethod
    def forward(x: Tensor, threshold: Parameter, clip_value: Parameter | None, tie: float) -> Tensor:
        return expanded(step(x, threshold, tie) - step(-x, threshold, tie), clip_value)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Any, threshold: Any, clip_value: Any, tie: float) -> Tensor:
        if i == 1:
            return torch.where(x < x, v, 0)  # 0, as a function of v: a constant would have no derivative at all
        if i == 2:
            return torch.where(x.abs() > clip_value, torch.sign(x) * v, 0)
        return v if clip_value is None else where_between(v, x, -clip_value, clip_value)
