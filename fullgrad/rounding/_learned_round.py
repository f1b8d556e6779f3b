"""`learned_round`: rounding down or up, as a learned variable says."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.elementwise import Elementwise
from fullgrad._core.opmath import to_opmath
from fullgrad._core.windows import between


def learned_round(
    x: Tensor, v: Tensor, *, hard: bool = False, zeta: float = 1.1, gamma: float = -0.1, temperature: float = 1.0
) -> Tensor:
    r"""Round down or up, as a learnable variable says.

    .. math::
        y = \lfloor x \rfloor + h, \qquad
        h = \operatorname{clamp}\bigl(\sigma(v / T)\,(\zeta - \gamma) + \gamma,\; 0,\; 1\bigr), \qquad D_x = 1, \quad D_v = h'

    With ``hard`` the value has :math:`[\,h > 1/2\,]` in place of :math:`h`, with the same derivatives. Higher derivatives are
    those of :math:`h'`. Half precision is computed in float32. Saved: ``v``.

    The defaults are those of AdaRound; a plain sigmoid is ``zeta=1.0, gamma=0.0``. SignRound is
    ``round(x + replace_grad(v.clamp(-0.5, 0.5), v))``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        v: A tensor that broadcasts with ``x``, and gets its own gradient.
        hard: Whether the value is an integer.
        zeta: The upper end to which the sigmoid is stretched.
        gamma: The lower end.
        temperature: The width of the sigmoid, positive.

    Returns:
        A tensor of the broadcast shape, of the dtype of ``x``.

    Raises:
        TypeError: ``x`` or ``v`` is not a real tensor, or ``zeta``, ``gamma`` or ``temperature`` is not a number.
        ValueError: ``temperature`` is not positive and finite.

    Example:
        >>> import torch, fullgrad
        >>> x, v = torch.tensor([0.3, 1.6]), torch.tensor([-1.0, 4.0], requires_grad=True)
        >>> fullgrad.learned_round(x, v).detach()
        tensor([0.2227, 2.0000])
        >>> y = fullgrad.learned_round(x, v, hard=True)
        >>> y.detach(), torch.autograd.grad(y.sum(), v)
        (tensor([0., 2.]), (tensor([0.2359, 0.0000]),))

    Source: Nagel et al., Up or down?, https://arxiv.org/abs/2004.10568; ``brevitas.core.function_wrapper.learned_round``.
    """
    checks.real_tensor("learned_round", "x", x)
    checks.real_tensor("learned_round", "v", v)
    checks.real_number("learned_round", "zeta", zeta)
    checks.real_number("learned_round", "gamma", gamma)
    checks.positive_number("learned_round", "temperature", temperature)
    x, v = (t if t.is_floating_point() else t.to(torch.get_default_dtype()) for t in (x, v))
    return LearnedRound.apply(x, v, bool(hard), float(zeta), float(gamma), float(temperature))


class LearnedRound(Elementwise):
    """The operator of :func:`learned_round`."""

    in_pieces = True
    reads = {0: (), 1: (1,)}

    @staticmethod
    def forward(x: Tensor, v: Tensor, hard: bool, zeta: float, gamma: float, temperature: float) -> Tensor:
        (wide,) = to_opmath(x)
        v = v.to(wide.dtype)
        h = torch.clamp(torch.sigmoid(v / temperature) * (zeta - gamma) + gamma, 0, 1)
        return (torch.floor(wide) + (h > 0.5 if hard else h)).to(x.dtype)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: None, learned: Any, hard: bool, zeta: float, gamma: float, temperature: float) -> Tensor:
        if i == 0:
            return v
        v, learned = to_opmath(v, learned)
        s = torch.sigmoid(learned / temperature)
        slope = s * (1 - s) * ((zeta - gamma) / temperature)
        return torch.where(between(s * (zeta - gamma) + gamma, 0, 1), v * slope, 0)
