"""`Quantile`: the operator of quantiles and the median."""

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.opmath import numbers_like, to_opmath
from fullgrad._dispatch import clone_if_view, holds
from fullgrad.soft._relaxation import Softness
from fullgrad.soft.order._outputs import Outputs, hard_outputs, one_hot, restore_keepdim
from fullgrad.soft.order._statistic import Options, OrderStatistic, canonicalize_args, relax
from fullgrad.soft.order.methods import WEIGHTED_SUM_METHODS

Interpolation = Literal["linear", "lower", "higher", "nearest", "midpoint"]
INTERPOLATIONS: tuple[str, ...] = get_args(Interpolation)
# A row of quantiles: a tensor where they have a gradient.
Quantiles = Tensor | tuple[float, ...]


def quantile_operator(
    name: str, x: Tensor, q: Any, dim: int | None, keepdim: bool, softness: Softness, options: Options, interpolation: str
) -> Any:
    """Quantiles as torch returns them, several in front; or their weights; or both.

    The median is the interpolation "median", without a ``q``.
    """
    mode, method, _, _, outputs, hard = options
    rows, d = canonicalize_args(name, x, dim, softness, options, nonempty=True)
    checks.flag(name, "keepdim", keepdim)
    q, several = parse_quantiles(name, q, rows, interpolation)
    if outputs == "values_and_weights" and mode != "hard" and method not in WEIGHTED_SUM_METHODS:
        asks = "with `dim` it returns indices" if interpolation == "median" else "`return_argquantile=True` asks for weights"
        other = "quantile(x, 0.5, dim, interpolation='lower')" if interpolation == "median" else "return_argquantile=False"
        raise ValueError(f"{name}: `method` must have weights, as {asks}, got {method!r}; its value alone is that of {other}.")
    if mode == "hard":
        y = hard_quantile(rows, q, d, interpolation, outputs)
    else:
        y = Quantile.apply(rows, q, softness, d, interpolation, (*options[:4], outputs, hard))

    if isinstance(y, Tensor):
        return _restore(y, x, dim, d, keepdim, several, -2 if outputs == "weights" else -1)
    position = -2 if outputs == "values_and_weights" else -1
    pair: Any = _restore(y[0], x, dim, d, keepdim, several, -1), _restore(y[1], x, dim, d, keepdim, several, position)
    return torch.return_types.median(pair) if interpolation == "median" else pair


def _restore(y: Tensor, x: Tensor, dim: int | None, d: int, keepdim: bool, several: bool, position: int) -> Tensor:
    """The outputs with their quantiles moved from a position to the front, or without that dimension for one number."""
    y = y.movedim(position, 0) if several else y.squeeze(position)
    if y.is_nested:  # a graph cannot return a view of one number per sample
        y = y.clone()
    return restore_keepdim(y, x, dim, d, int(several)) if keepdim else y


def parse_quantiles(name: str, q: Any, rows: Tensor, interpolation: str) -> tuple[Quantiles, bool]:
    """The quantiles as a row, checked, and whether they were given as several."""
    if q is None and interpolation == "median":
        return (0.5,), False
    checks.choice(name, "interpolation", interpolation, INTERPOLATIONS)
    if isinstance(q, Tensor):
        checks.real_tensor(name, "q", q)
        if q.ndim > 1:
            raise ValueError(f"{name}: `q` must be a number or a tensor of at most one dimension, got shape {tuple(q.shape)}.")
        checks.probabilities(name, "q", q)
        return q.to(to_opmath(rows)[0].dtype).reshape(-1), q.ndim == 1
    several = isinstance(q, (tuple, list))
    numbers: tuple[Any, ...] = tuple(q) if several else (q,)
    for number in numbers:
        checks.real_number(name, "q", number)
        if not (holds(number >= 0) and holds(number <= 1)):
            raise ValueError(f"{name}: `q` must be from 0 to 1, got {number}.")
    return tuple(map(float, numbers)), several


class Quantile(OrderStatistic):
    """The operator of ``quantile``, ``median``, ``argquantile``, ``argmedian`` and their straight-through versions. Quantiles
    are in the last dimension, or before the dimension of weights.
    """

    dim_at = 3

    @classmethod
    def dim_labels(cls, x: Tensor, q: Quantiles, softness: Softness, dim: int, *_: Any) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The labels of the dimensions: rows are whole, and so are the quantiles."""
        first = tuple([None if d == dim + x.ndim else d for d in range(x.ndim)])
        labels = [(first if v.ndim == x.ndim else (None,) * v.ndim) if isinstance(v, Tensor) else () for v in (x, q, softness)]
        labels[1] = (*labels[1][:-1], None) if labels[1] else ()
        return [*labels, *((),) * (1 + len(_))], tuple([d for d in first if d is not None])

    @staticmethod
    def forward(x: Tensor, q: Quantiles, softness: Softness, dim: int, interpolation: str, options: Options) -> Any:
        *_, outputs, hard = options
        if hard:
            y = hard_quantile(x, q, dim, interpolation, outputs)
            return clone_if_view(y) if isinstance(y, Tensor) else type(y)(tuple(map(clone_if_view, y)))
        return Quantile.soft_forward(x, q, softness, dim, interpolation, options)

    @staticmethod
    def relaxed(x: Tensor, q: Quantiles, softness: Softness, dim: int, interpolation: str, options: Options) -> Any:
        method, rows = relax(x, softness, dim, options)
        outputs = options[4]
        low, high, a = bracketing_indices(_tensor(q, x), rows.n, interpolation)
        a = a.to(rows.x.dtype)
        if outputs in ("values", "values_and_indices") and not method.values_are_weighted_sums:
            y = method.values(rows)
            first, last = (y.gather(-1, p.expand(*y.shape[:-1], p.shape[-1])) for p in (low, high))
            return torch.lerp(first, last, a.expand(first.shape)).to(x.dtype)
        if interpolation in ("linear", "midpoint"):
            first, last = method.neighbor_weights(rows, low, high)
            weights = torch.lerp(first, last, a.unsqueeze(-1).expand(first.shape))
        else:
            weights = method.weights(rows, low)
            if isinstance(q, Tensor):
                weights = torch.where(a.isnan().unsqueeze(-1), torch.nan, weights)
        if outputs == "weights":
            return weights.to(x.dtype)
        values = rows.averages(weights).to(x.dtype)
        return (values, weights.to(x.dtype)) if outputs == "values_and_weights" else values

    @staticmethod
    def of_rows(unit: Tensor, dim: int, weights: bool) -> Tensor:
        unit = unit.movedim(dim, -1)
        return unit.unsqueeze(-1) if weights else unit


def _tensor(q: Quantiles, x: Tensor) -> Tensor:
    return q if isinstance(q, Tensor) else numbers_like(q, to_opmath(x)[0])


def bracketing_indices(q: Tensor, n: int, interpolation: str) -> tuple[Tensor, Tensor, Tensor]:
    """The places before and after each quantile, and how far it lies from the first to the second."""
    if interpolation == "median":
        middle = torch.full(q.shape, (n - 1) // 2, device=q.device)
        return middle, middle, torch.zeros_like(q)
    p = q.clamp(0, 1) * (n - 1)
    at = p.detach().nan_to_num(0.0)
    floor = at.floor()
    if interpolation in ("lower", "higher", "nearest"):
        place = {"lower": torch.floor, "higher": torch.ceil, "nearest": torch.round}[interpolation](at).long()
        return place, place, torch.where(q.isnan(), q.detach(), 0)
    low = floor.long()
    a = p - floor
    if interpolation == "midpoint":
        a = torch.where(q.isnan(), q.detach(), (a.detach() > 0).to(p.dtype) / 2)
    return low, (low + 1).clamp(max=n - 1), a


def hard_quantile(x: Tensor, q: Quantiles, dim: int, interpolation: str, outputs: Outputs) -> Any:
    """The outputs by the steps of `torch.quantile`, with the quantiles in the last dimension; they may differ between rows."""
    if interpolation == "median":
        return _hard_median(x, dim, outputs)
    if outputs == "values_and_weights":
        return tuple([hard_quantile(x, q, dim, interpolation, one) for one in ("values", "weights")])
    may_be_nan, q = isinstance(q, Tensor), _tensor(q, x)
    low, high, a = bracketing_indices(q, x.shape[dim], interpolation)
    values, order = torch.sort(x.movedim(dim, -1), stable=outputs == "weights")
    shape = (*values.shape[:-1], a.shape[-1])
    low, high, a = low.expand(shape), high.expand(shape), a.expand(shape)
    if outputs == "weights":
        first, last = (one_hot(order.gather(-1, p), values.shape[-1], a.dtype) for p in (low, high))
        return torch.lerp(first, last, a.unsqueeze(-1).expand(first.shape)).to(x.dtype)
    wide = to_opmath(values)[0]
    y = wide.gather(-1, low)
    if interpolation in ("linear", "midpoint"):
        above = wide.gather(-1, torch.where(a > 0, high, low))
        y = torch.lerp(y, above, a if interpolation == "linear" else torch.full_like(a, 0.5))
    is_lost = values[..., -1].isnan().unsqueeze(-1)
    return torch.where(is_lost | q.isnan() if may_be_nan else is_lost, torch.nan, y).to(x.dtype)


def _hard_median(x: Tensor, dim: int, outputs: Outputs) -> Any:
    """The outputs from torch.median, with a last dimension of one quantile."""
    if outputs == "values" and x.ndim == 1:
        return torch.median(x).unsqueeze(-1)
    both = torch.median(x, dim)
    both = type(both)((both.values.unsqueeze(-1), both.indices.unsqueeze(-1)))
    return both if outputs == "values_and_indices" else hard_outputs(both, outputs, x.shape[dim])
