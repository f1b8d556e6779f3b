"""Common parts of the kernels and projections.

The powers of the modes, the precision of computations, the rule for a batch; and groups of neighbors in a row: where they begin,
and sums over them.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from fullgrad._core.autocast import matmul
from fullgrad._core.batching import aligned
from fullgrad._core.function import Function
from fullgrad._core.recomputed import save_inputs
from fullgrad._dispatch import finite_extremes, surely

# In these modes the weights are powers of the excess over a threshold.
POWERS = {"c0": 1, "c1": 2, "c2": 3}


def weighted(weights: Tensor, x: Tensor) -> Tensor:
    """The sums (…, k) of rows (…, n) with weights (…, k, n): a matrix times a vector."""
    return matmul(weights, x.unsqueeze(-1)).squeeze(-1)


def row_origin(x: Tensor) -> Tensor:
    """The element nearest to 0 of each row whose elements lie within a factor of 2, infinities aside; 0 of other rows.

    The difference of two such numbers is exact (Sterbenz): a row far from 0 loses no digit and no order when its origin is
    subtracted and added again.
    """
    return x.detach().sum(-1, keepdim=True) if surely(x.shape[-1] == 0) else origin_between(*finite_extremes(x))


def origin_between(low: Tensor, high: Tensor) -> Tensor:
    """The `row_origin` of rows with these ends."""
    nearest = low.clamp(min=0) + high.clamp(max=0)
    return torch.where(torch.maximum(high, -low) / 2 <= nearest.abs(), nearest, 0)


def middle(h: Tensor) -> Tensor:
    """The middle between the ends of ascending rows, a constant: no distance from it overflows."""
    h = h.detach()
    return h[..., :1] / 2 + h[..., -1:] / 2


def power(t: Tensor, exponent: int) -> Tensor:
    """A power of 1, 2 or 3, by products: `torch.pow` is slow."""
    return t if exponent == 1 else t * t if exponent == 2 else t * t * t


class RowFunction(Function):
    """A function of rows, or of matrices, whose arguments broadcast: under ``vmap`` a batch is one more dimension in front."""

    whole_dims = 1
    # Whether the rules run on parts of rows, with the sums of `row_sum` and its kin.
    splits_rows: ClassVar[bool] = False
    out_dims: ClassVar[int | tuple[int, ...]] = 0
    # The positions of what the rules read, among the inputs and, behind them, the outputs.
    saves: ClassVar[Sequence[int]] = ()

    @classmethod
    def setup_context(cls, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        outputs = (output,) if isinstance(output, Tensor) else output
        both = *inputs, *outputs
        save_inputs(ctx, tuple([both[i] for i in cls.saves]))
        ctx.mark_non_differentiable(*[y for y in outputs if not y.is_floating_point()])

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        # Arguments with equally many whole dimensions broadcast like elements.
        return cls.apply(*aligned(in_dims, args, cls.whole_dims if isinstance(cls.whole_dims, tuple) else None)), cls.out_dims


def last_marked(marks: Tensor) -> Tensor:
    """The last marked place up to each place of a row, or 0."""
    places = torch.arange(marks.shape[-1], device=marks.device)
    return torch.cummax(torch.where(marks, places, 0), -1).values


def tie_bounds(a: Tensor) -> tuple[Tensor, Tensor]:
    """The first and the last index of the group of equal elements around each element of an ascending row."""
    a, n = a.detach(), a.shape[-1]
    step, edge = a[..., 1:] != a[..., :-1], torch.ones_like(a[..., :1], dtype=torch.bool)
    ends = torch.cat((step, edge), -1)
    return last_marked(torch.cat((edge, step), -1)), n - 1 - last_marked(ends.flip(-1)).flip(-1)


def group_sums(x: Tensor, first: Tensor) -> Tensor:
    """The sum over the group of each element, given the first index of the group: a linear map with a constant structure."""
    index = first.expand(x.shape)
    return torch.zeros_like(x).scatter_add(-1, index, x).gather(-1, index)
