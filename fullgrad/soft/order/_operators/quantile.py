"""`Quantile`: the operator of elements by their place in the order."""

from typing import Any

import torch
from torch import Tensor

from fullgrad import _checks
from fullgrad._dispatch import clone_if_view, is_tracing
from fullgrad.soft._relaxation import Softness, to_opmath
from fullgrad.soft.order._numbers import weighted
from fullgrad.soft.order._rows import (
    WEIGHTED_SUM_METHODS,
    Rows,
    bounded,
    rows_of,
    sorted_values,
    transported,
    unweighted,
    weights_in,
)
from fullgrad.soft.order._statistic import OrderStatistic, canonicalize_args, make_return_type, one_hot, restore_keepdim

# torch.quantile takes no more.
_LARGEST = 16_000_000
INTERPOLATIONS = ("linear", "lower", "higher", "nearest", "midpoint")


class Call:
    """A checked call: arguments of the operator, whose quantiles come in the last dimension, and the way back."""

    def __init__(
        self,
        x: Tensor,
        rows: Tensor,
        q: Tensor | tuple[float, ...],
        vector: bool,
        dim: int | None,
        d: int,
        softness: Softness,
        by: str,
    ) -> None:
        self.hard = rows, q, d, by
        self.soft = rows, q, softness, d, by
        self._x, self._dim, self._d, self._vector = x, dim, d, vector

    def values(self, y: Tensor, keepdim: bool) -> Tensor:
        """(…, Q) as torch has it."""
        if not self._vector:
            y = y.squeeze(-1)
            return restore_keepdim(y, self._x, self._dim, self._d) if keepdim else y
        y = y.movedim(-1, 0)
        return restore_keepdim(y, self._x, self._dim, self._d, 1) if keepdim else y

    def weights(self, y: Tensor, keepdim: bool) -> Tensor:
        """(…, Q, n) likewise."""
        if not self._vector:
            y = y.squeeze(-2)
            return restore_keepdim(y, self._x, self._dim, self._d - 1) if keepdim else y
        y = y.movedim(-2, 0)
        return restore_keepdim(y, self._x, self._dim, self._d - 1, 1) if keepdim else y


def places(call: "Call", keepdim: bool, how: tuple[Any, ...], hard: bool) -> Tensor:
    if how[0] == "hard":
        return call.weights(hard_quantile(*call.hard, "weights"), keepdim)
    return call.weights(Quantile.apply(*call.soft, how, "weights", hard), keepdim)


def called(name: str, x: Any, q: Any, dim: Any, softness: Any, mode: Any, method: Any, by: Any, methods: tuple[str, ...]) -> Call:
    rows, d = canonicalize_args(name, x, dim, softness, mode, method, methods, some=True)
    if by == "median":
        return Call(x, rows, (0.5,), False, dim, d, softness, by)
    _checks.choice(name, "interpolation", by, INTERPOLATIONS)
    if isinstance(q, Tensor):
        _checks.real_tensor(name, "q", q)
        if q.ndim > 1:
            raise ValueError(f"{name}: `q` must be a number or a tensor of at most one dimension, got shape {tuple(q.shape)}.")
        return Call(x, rows, q.to(to_opmath(rows)[0].dtype).reshape(-1), q.ndim == 1, dim, d, softness, by)
    several = isinstance(q, (tuple, list))
    for number in q if several else (q,):
        _checks.real_number(name, "q", number)
        if not 0 <= number <= 1:
            raise ValueError(f"{name}: `q` must be from 0 to 1, got {number}.")
    return Call(x, rows, tuple(map(float, q)) if several else (float(q),), several, dim, d, softness, by)


def _tensor(q: Tensor | tuple[float, ...], x: Tensor) -> Tensor:
    return q if isinstance(q, Tensor) else torch.tensor(q, dtype=to_opmath(x)[0].dtype, device=x.device)


class Quantile(OrderStatistic):
    """The operator of the four and their twins. ``how`` is mode, method, standardize, gated_grad; ``wants`` is "values",
    "weights", "both", or of a hard median "indices", which are values and indices.
    """

    @staticmethod
    def forward(
        x: Tensor,
        q: Tensor | tuple[float, ...],
        softness: Softness,
        dim: int,
        by: str,
        how: tuple[Any, ...],
        wants: str,
        hard: bool,
    ) -> Any:
        if hard:
            y = hard_quantile(x, q, dim, by, wants)
            return clone_if_view(y) if isinstance(y, Tensor) else make_return_type(type(y), *map(clone_if_view, y))
        return Quantile.soft_forward(x, q, softness, dim, by, how, wants, hard)

    @staticmethod
    def relaxed(
        x: Tensor,
        q: Tensor | tuple[float, ...],
        softness: Softness,
        dim: int,
        by: str,
        how: tuple[Any, ...],
        wants: str,
        hard: bool,
    ) -> Any:
        mode, method, standardize, gated = how
        r = rows_of(x, softness, dim, mode, method, standardize)
        if hard and wants != "weights":
            r, wants = bounded(r), "values"
        r = r if gated else unweighted(r)
        low, high, a = _places(_tensor(q, x), r.n, by)
        second = by in ("linear", "midpoint")
        if wants == "values" and method not in WEIGHTED_SUM_METHODS:
            ordered = sorted_values(r)
            first, last = (ordered.gather(-1, p.expand(*ordered.shape[:-1], p.shape[-1])) for p in (low, high))
            return torch.lerp(first, last, a.to(r.x.dtype).expand(first.shape)).to(x.dtype)
        ends = _transported(r, low, high, second) if method == "ot" else [weights_in(r, p) for p in (low, high)[: 1 + second]]
        weights = torch.lerp(ends[0], ends[1], a.to(r.x.dtype).unsqueeze(-1).expand(ends[0].shape)) if second else ends[0]
        if wants == "weights":
            return weights.to(x.dtype)
        values = weighted(weights, r.x).to(x.dtype)
        return values if wants == "values" else (values, weights.to(x.dtype))


def _transported(r: Rows, low: Tensor, high: Tensor, second: bool) -> list[Tensor]:
    """Weights (…, Q, n) of one place or two. To transport the rest of the row are two groups, below and above."""
    # A plan for each quantile: one more dimension of batch.
    softness = r.softness.unsqueeze(-2) if isinstance(r.softness, Tensor) and r.softness.ndim else r.softness
    r = r._replace(x=r.x.unsqueeze(-2), z=r.z.unsqueeze(-2), softness=softness)
    above = r.n - 1 - (high if second else low)
    sizes = [low, torch.ones_like(low), *[high - low] * second, above]
    anchors = torch.arange(len(sizes), dtype=r.x.dtype, device=r.x.device) / (len(sizes) - 1)
    plan = transported(r, anchors, torch.stack(sizes, -1).to(r.x.dtype))
    return [plan[..., 1, :], plan[..., 2, :]][: 1 + second]


def _places(q: Tensor, n: int, by: str) -> tuple[Tensor, Tensor, Tensor]:
    """Two neighboring places and how far the quantile lies from the first to the second."""
    if by == "median":
        middle = torch.full(q.shape, (n - 1) // 2, device=q.device)
        return middle, middle, torch.zeros_like(q)
    p = q.clamp(0, 1) * (n - 1)
    floor = p.detach().floor()
    if by in ("lower", "higher", "nearest"):
        place = {"lower": torch.floor, "higher": torch.ceil, "nearest": torch.round}[by](p.detach()).long()
        return place, place, torch.zeros_like(p)
    low = floor.long()
    a = p - floor
    if by == "midpoint":
        a = (a.detach() > 0).to(p.dtype) / 2
    return low, (low + 1).clamp(max=n - 1), a


def hard_quantile(x: Tensor, q: Tensor | tuple[float, ...], dim: int, by: str, wants: str) -> Any:
    """What torch gives, with the quantiles in the last dimension."""
    if by == "median":
        if wants == "values" and x.ndim == 1:
            return torch.median(x).unsqueeze(-1)
        both = torch.median(x, dim)
        if wants == "weights":
            return one_hot(both.indices.unsqueeze(-1), x.shape[dim], x.dtype)
        return both.values.unsqueeze(-1) if wants == "values" else make_return_type(type(both), *[v.unsqueeze(-1) for v in both])
    q = _tensor(q, x)
    if wants == "values" and q.ndim == 1 and x.numel() <= _LARGEST and not is_tracing():
        return torch.quantile(to_opmath(x)[0], q, dim, interpolation=by).movedim(0, -1).to(x.dtype)
    # torch.quantile has no quantiles of their own for the rows of a batch, and a tracer would repeat its steps, which are in
    # place. These are the same.
    low, high, a = _places(q, x.shape[dim], by)
    values, order = torch.sort(x.movedim(dim, -1), stable=wants == "weights")
    shape = (*values.shape[:-1], a.shape[-1])
    low, high, a = low.expand(shape), high.expand(shape), a.expand(shape)
    if wants == "weights":
        first, last = (one_hot(order.gather(-1, p), values.shape[-1], a.dtype) for p in (low, high))
        return torch.lerp(first, last, a.unsqueeze(-1).expand(first.shape)).to(x.dtype)
    wide = to_opmath(values)[0]
    y = wide.gather(-1, low)
    if by in ("linear", "midpoint"):
        above = wide.gather(-1, torch.where(a > 0, high, low))
        y = torch.lerp(y, above, a if by == "linear" else torch.full_like(a, 0.5))
    return torch.where(values[..., -1:].isnan(), torch.nan, y).to(x.dtype)
