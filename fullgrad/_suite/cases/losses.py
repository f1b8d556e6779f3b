"""Cases of the family `losses`, with the soft ranks of the cases of `rank`."""

import math

import torch
from torch import Tensor

from fullgrad import losses
from fullgrad._suite.cases._case import Case, numbers
from fullgrad._suite.cases.order import SOFT, _ranks
from fullgrad._suite.cases.soft import _step

X = numbers(2, 4, seed=3)


def _order(x: Tensor) -> Tensor:
    """A target with ties: 0, 0, then 1."""
    return (torch.arange(x.shape[-1], device=x.device) > 1).long().expand(x.shape)


def _in_units(x: Tensor) -> Tensor:
    """Rows that spread over 1 to 2, in units of a power of two."""
    spread = (x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True)).detach()
    return x / torch.exp2(torch.floor(torch.log2(spread)))


def _spearman(x: Tensor) -> Tensor:
    r = _ranks(_in_units(x), SOFT, "smooth", "neuralsort", descending=False)
    order = _order(x).to(r.dtype)
    q = order - order.mean(-1, keepdim=True)  # ranks of two values differ as the values do
    r = r - r.mean(-1, keepdim=True)
    return (1 - (r * q).sum(-1) / ((r * r).sum(-1) * (q * q).sum(-1)).sqrt()).mean()


def _ndcg(x: Tensor) -> Tensor:
    r = _ranks(_in_units(x), SOFT, "smooth", "neuralsort")
    gains = _order(x).to(r.dtype)
    found = (gains * _step(2.5 - r, SOFT, "smooth") / torch.log2(1 + r)).sum(-1)
    return (1 - found / (1 + 1 / math.log2(3))).mean()


CASES: list[Case] = [
    Case(
        name="losses.spearman",
        covers=("losses.spearman",),
        operator=lambda x: losses.spearman(x, _order(x), softness=SOFT),
        inputs=(X,),
        surrogate=_spearman,
        max_saved_bytes=None,
        elementwise=False,
        of="tensors",
        long=True,
    ),
    Case(
        name="losses.ndcg",
        covers=("losses.ndcg",),
        operator=lambda x: losses.ndcg(x, _order(x), 2, softness=SOFT),
        inputs=(X,),
        surrogate=_ndcg,
        max_saved_bytes=None,
        elementwise=False,
        of="tensors",
        long=True,
    ),
]
