"""Samples and softmaxes of rows, shared by the operators that choose among classes."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core.batching import in_front
from fullgrad._core.fast import replaceable
from fullgrad._core.function import Function
from fullgrad._core.opmath import cast
from fullgrad._core.recomputed import save_inputs
from fullgrad._dispatch import surely


def divided(v: Tensor, tau: Any) -> Tensor:
    """``v / tau``."""
    return v / tau if isinstance(tau, Tensor) or not surely(tau == 1) else v


def over_temperature(scores: Tensor, tau: Any) -> Tensor:
    """``scores / tau``, without classes of minus infinity in the derivative by a tensor ``tau``, as 0 times infinity is NaN."""
    if not isinstance(tau, Tensor):
        return divided(scores, tau)
    masked = scores.detach() == -torch.inf
    return torch.where(masked, -torch.inf, torch.where(masked, 0, scores) / tau)


def largest(scores: Tensor, dim: int, dtype: torch.dtype, k: int | None = None) -> tuple[Tensor, Tensor]:
    """Ones at the largest scores of each row, or at the ``k`` largest, and their index: without a derivative.

    A row is NaN where a score is NaN or plus infinity, or where all or some of the chosen are minus infinity.
    """
    if scores.ndim == 0:
        return torch.where(scores.isfinite(), 1.0, torch.nan).to(dtype), torch.zeros_like(scores, dtype=torch.int64)
    if k == 0 or surely(scores.shape[dim] == 0):
        return torch.zeros_like(scores, dtype=dtype), torch.zeros_like(scores.narrow(dim, 0, 0), dtype=torch.int64)
    if k is None:
        values, index = scores.max(dim, keepdim=True)
    else:
        values, index = scores.topk(k, dim)
        values = values.sum(dim, keepdim=True)
    zero = cast(values - values, dtype)  # NaN where a value is not finite
    return zero.expand(scores.shape).scatter(dim, index, (zero + 1).expand(index.shape)), index


@replaceable
def softmax_pull(v: Tensor, p: Tensor, dim: int) -> Tensor:
    """J(p) v = p (v - <p, v>), the derivative of a softmax, which is symmetric."""
    pv = p * v
    return pv - p * pv.sum(dim, keepdim=True)


class SampleOfRows(Function):
    """A sample with the derivative of a function of logits: the base of several operators.

    The first input is the sample, the second the logits, the third the index of the sample or None; tensors among the others
    broadcast. The sample enters as an integer or a constant: autograd would differentiate a saved output.
    """

    whole_dims = "dim"

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        save_inputs(ctx, (None, *inputs[1:]))
        ctx.dtype = output.dtype

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        return cls.apply(*in_front(info, in_dims, args, 3)), 0
