"""Cases of the family `losses`, with the soft ranks of the cases of `rank`."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fullgrad import losses
from fullgrad._suite.cases._case import Case, numbers
from fullgrad._suite.cases.order import SOFT, _ranks, _standard

X = numbers(2, 4, seed=3)


def _order(x: Tensor) -> Tensor:
    """A target with ties: 0, 0, then 1."""
    return (torch.arange(x.shape[-1], device=x.device) > 1).long().expand(x.shape)


def _correlation(r: Tensor, order: Tensor) -> Tensor:
    q = order - order.mean(-1, keepdim=True)  # ranks of two values differ as the values do
    r = r - r.mean(-1, keepdim=True)
    return (r * q).sum(-1) / ((r * r).sum(-1) * (q * q).sum(-1)).sqrt()


def _spearman(x: Tensor) -> Tensor:
    r = _ranks(x, SOFT, "smooth", "neuralsort", descending=False, added=0.0)
    return (1 - _correlation(r, _order(x).to(r.dtype))).mean()


def _ndcg(x: Tensor) -> Tensor:
    r = _ranks(x, SOFT, "smooth", "neuralsort", added=0.0)
    gains = _order(x).to(r.dtype)
    return (1 - (gains * _discount(r, 2, x.shape[-1] * SOFT)).sum(-1) / _best(gains, 2, x.shape[-1] * SOFT)).mean()


def _discount(r: Tensor, k: int, width: float) -> Tensor:
    return (0.5 + torch.atan((k + 0.5 - r) / width) / math.pi) / torch.log2(1 + r)


def _best(gains: Tensor, k: int, width: float) -> Tensor:
    """The sum with the gains in the first places."""
    places = torch.arange(1, gains.shape[-1] + 1, dtype=gains.dtype, device=gains.device)
    return (gains.sort(-1, descending=True).values * _discount(places, k, width)).sum(-1)


def _weight(x: Tensor) -> Tensor:
    """1 and 3."""
    return 1 + 2 * torch.arange(x.shape[-1], dtype=x.dtype if x.is_floating_point() else None, device=x.device)


def _masked(function: Callable[..., Tensor], x: Tensor, *args: Any) -> Tensor:
    n = x.shape[-1]
    mask = (torch.arange(n, device=x.device) < n - 1).expand(x.shape)  # all but the last
    return function(x, _order(x), *args, mask=mask, weight=_weight(x.sum(-1)) if x.ndim > 1 else None)


def _default_ranks(x: Tensor) -> Tensor:
    """The ranks of the elements of each row but the last, from the largest."""
    z = _standard(x[..., :-1], 0.0)[0]
    d = (z.unsqueeze(-2) - z.unsqueeze(-1)) / _default_softness(x)
    return (1 + torch.sign(d) * (1 - torch.exp(-d.abs()))).sum(-1) / 2 + 0.5


def _default_softness(x: Tensor) -> float:
    return max(1 / 2, 6 / (x.shape[-1] - 1))


def _weighted_mean(losses: Tensor) -> Tensor:
    weight = _weight(losses)
    return (losses * weight).sum(-1).mean() / weight.sum()


def _masked_spearman(x: Tensor) -> Tensor:
    r = _default_ranks(x)
    return _weighted_mean(1 + _correlation(r, _order(x)[..., :-1].to(r.dtype)))


def _masked_ndcg(x: Tensor) -> Tensor:
    r = _default_ranks(x)
    gains = _order(x)[..., :-1].to(r.dtype)
    width = (x.shape[-1] - 1) * _default_softness(x)
    return _weighted_mean(1 - (gains * _discount(r, 1, width)).sum(-1) / _best(gains, 1, width))


def _masked_listnet(x: Tensor) -> Tensor:
    share = torch.softmax(_order(x)[..., :-1].to(x.dtype), -1)
    return _weighted_mean(-(share * torch.log_softmax(x[..., :-1], -1)).sum(-1))


def _lambda_loss(x: Tensor, scheme: str, places: int | None = None) -> Tensor:
    """The sum over pairs whose first element is more relevant, from places and discounts as they are written."""
    x = x[..., :places]
    y, place = _order(x), torch.sort(-x.detach(), dim=-1, stable=True).indices.argsort(-1) + 1
    r, s = place.unsqueeze(-1).double(), place.unsqueeze(-2).double()
    low, high = ((r - s).abs(), (r - s).abs() + 1) if scheme == "ndcg2" else (r, s)
    change = (1 / torch.log2(1 + low) - 1 / torch.log2(1 + high)).abs()
    weights = torch.where(y.unsqueeze(-1) > y.unsqueeze(-2), change, 0).to(x.dtype)
    parts = weights * torch.nn.functional.softplus(x.unsqueeze(-2) - x.unsqueeze(-1)) / math.log(2)
    return parts.sum((-1, -2)) / sum([1 / math.log2(2 + i) for i in range(x.shape[-1] - 2)])


def _case(name: str, operator: Callable[[Tensor], Tensor], surrogate: Callable[[Tensor], Tensor]) -> Case:
    return Case(
        name=name,
        covers=(name.removesuffix(".masked"),),
        operator=operator,
        inputs=(X,),
        surrogate=surrogate,
        max_saved_bytes=None,
        elementwise=False,
        of="tensors",
        long=True,
    )


CASES: list[Case] = [
    _case("losses.spearman", lambda x: losses.spearman(x, _order(x), softness=SOFT, method="neuralsort"), _spearman),
    _case("losses.ndcg", lambda x: losses.ndcg(x, _order(x), 2, softness=SOFT, method="neuralsort"), _ndcg),
    _case("losses.spearman.masked", lambda x: _masked(losses.spearman, x), _masked_spearman),
    _case("losses.ndcg.masked", lambda x: _masked(losses.ndcg, x, 1), _masked_ndcg),
    _case("losses.listnet", lambda x: _masked(losses.listnet, x), _masked_listnet),
    _case("losses.lambda_loss", lambda x: losses.lambda_loss(x, _order(x)), lambda x: _lambda_loss(x, "ndcg2").mean()),
    _case(
        "losses.lambda_loss.masked",
        lambda x: _masked(lambda *args, **options: losses.lambda_loss(*args, scheme="lambdarank", **options), x),
        lambda x: _weighted_mean(_lambda_loss(x, "lambdarank", -1)),
    ),
]
