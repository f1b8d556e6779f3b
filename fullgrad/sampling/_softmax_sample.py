"""`SoftmaxSample`: a sample with the derivative of a softmax, for two estimators."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core.function import alias, is_identity
from fullgrad._core.opmath import to_opmath
from fullgrad._core.recomputed import saved_inputs
from fullgrad._dispatch import surely
from fullgrad.sampling._arguments import Temperature
from fullgrad.sampling._rows import SampleOfRows, divided, over_temperature, softmax_pull

# The gap of a sample with probability 1 would be infinite.
_SURE = 1 - 1e-5


class SoftmaxSample(SampleOfRows):
    r"""The operator of :func:`categorical_st` and, with a gap, of :func:`gapped_st`.

    With :math:`p = \operatorname{softmax}(z),\ z = (\theta + c) / \tau` and a constant c: :math:`D_\theta = J(p) / \tau`,
    :math:`D_\tau = -J(p)\, z / \tau`.
    """

    @staticmethod
    @is_identity
    def forward(
        sample: Tensor, logits: Tensor, index: Tensor | None, tau: Temperature, gap: float | str | None, dim: int
    ) -> Tensor:
        return alias(sample)

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        _, logits, index, tau, gap, dim = saved_inputs(ctx)
        g, tau = to_opmath(g, tau)
        z, p = _scores(logits, index, tau, gap, dim)
        pulled = divided(softmax_pull(g, p, dim), tau)
        by_tau = -(pulled * torch.where(p > 0, z, 0)) if ctx.needs_input_grad[3] else None
        return None, pulled if ctx.needs_input_grad[1] else None, None, by_tau, None, None

    @staticmethod
    def jvp(ctx: Any, _: Any, t: Tensor | None, __: Any, t_tau: Tensor | None, ___: Any, ____: Any) -> Tensor | None:
        _, logits, index, tau, gap, dim = saved_inputs(ctx)
        t, tau = to_opmath(t, tau)
        z, p = _scores(logits, index, tau, gap, dim)
        total = None if t is None else t
        if t_tau is not None:
            by_tau = -torch.where(p > 0, z, 0) * t_tau
            total = by_tau if total is None else total + by_tau
        return None if total is None else divided(softmax_pull(total, p, dim), tau).to(ctx.dtype)


def _scores(logits: Tensor, index: Tensor | None, tau: Any, gap: float | str | None, dim: int) -> tuple[Tensor, Tensor]:
    """The scores z and the probabilities p."""
    (wide,) = to_opmath(logits)
    if gap is not None and index is not None:
        wide = wide + _shift(wide.detach(), index, gap, dim)
    z = over_temperature(wide, tau)
    return z, torch.softmax(z, dim)


def _shift(x: Tensor, index: Tensor, gap: float | str, dim: int) -> Tensor:
    """The constant c, which makes the sample the largest by a gap."""
    if surely(x.shape[dim] == 0):
        return x
    top = x.amax(dim, keepdim=True)
    if gap == "probs":
        q = torch.softmax(x, dim).gather(dim, index) * _SURE
        gap_of_row: Any = -torch.log1p(-q) / q
    else:
        gap_of_row = gap
    # A masked class stays at minus infinity.
    below = torch.where(x == -torch.inf, 0, -torch.relu(x - top + gap_of_row))
    return below.scatter(dim, index, top - x.gather(dim, index))
