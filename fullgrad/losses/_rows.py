"""Rows of predictions with rows of targets: their arguments, their soft ranks, and how their losses are reduced."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.bits import digits, exponent, power_of_two
from fullgrad._core.opmath import to_opmath
from fullgrad._core.shards import rows_code
from fullgrad._core.windows import row_sigmoid
from fullgrad._dispatch import at_least, has_shape, holds, perhaps, surely
from fullgrad.soft._relaxation import Softness, checked_floating
from fullgrad.soft.order._numbers import row_origin, tie_bounds
from fullgrad.soft.order._operators.rank import rank_operator
from fullgrad.soft.order.methods import METHODS
from fullgrad.soft.simplex._losses import REDUCTIONS

# Methods that compare pairs: an element far away does not change the ranks of the others.
_OF_PAIRS = ("sigmoid", "lapsum")
# The variance of equal elements. Nothing is added to that of others: it would change with the unit, a power of two.
_OF_CONSTANT = 1e-6
# The softness by default: of the spread, and of neighbors. Sharper ranks have local minima, as the discount is convex.
_OF_SPREAD, _OF_NEIGHBORS = 0.5, 6.0
# Softnesses beyond the others at which masked elements stand: exp(-1000) is 0.
_FAR = 1000.0


class Rows(NamedTuple):
    """Rows along the last dimension, in float32 at least; ``y`` has no derivative, and ``valid`` is None if all elements are."""

    x: Tensor
    y: Tensor
    valid: Tensor | None
    weight: Tensor | None

    @property
    def count(self) -> Any:
        """The number of elements of each row: an integer, or a floating tensor (…, 1)."""
        if self.valid is not None:
            return self.valid.sum(-1, keepdim=True).to(self.x.dtype)
        n: Any = self.x.shape[-1]  # a tensor in `torch.jit.trace`, of which a quotient would have the default dtype
        return n.to(self.x.dtype) if isinstance(n, Tensor) else n

    def only(self, x: Tensor, other: float = 0.0) -> Tensor:
        """The valid elements, and another number in place of the others."""
        return x if self.valid is None else torch.where(self.valid, x, other)

    def constant_of_two(self, spread: Tensor) -> Tensor:
        """The spread (…, 1) of rows, a constant to derivatives where a row has two elements: relative to it, their difference
        is always the same, and no derivative would say in which direction.
        """
        n = self.count
        if not isinstance(n, Tensor):
            if surely(n == 2) or not perhaps(n == 2):
                return spread.detach() if surely(n == 2) else spread
            n = torch.ones_like(self.x, dtype=torch.int32).sum(-1, keepdim=True)
        return torch.where(n == 2, spread.detach(), spread)

    def losses(self, name: str, function: Callable[..., Tensor], softness: Any = None) -> Tensor:
        """``function(rows, softness)``, plain code that takes rows to numbers; NaN for a row with a NaN. Distributed tensors are
        computed on shards with whole rows.
        """
        has_valid, learns = self.valid is not None, isinstance(softness, Tensor)

        def of_rows(x: Tensor, y: Tensor, *others: Tensor) -> Tensor:
            rows = Rows(x, y, others[0] if has_valid else None, None)
            unknown = (x != x) | (y != y)
            unknown = (unknown if rows.valid is None else unknown & rows.valid).any(-1)
            return torch.where(unknown, torch.nan, function(rows, others[-1] if learns else softness)).unsqueeze(-1)

        y = self.y.to(torch.promote_types(self.y.dtype, self.x.dtype))
        others = [v for v in (self.valid, softness if learns else None) if v is not None]
        return rows_code(name, of_rows, self.x, y, *others).squeeze(-1)

    def reduced(self, losses: Tensor, reduction: str, dtype: torch.dtype) -> Tensor:
        """The losses of rows times their weights, or their sum, or their mean with the weights; 0 for rows without an element."""
        weight = self.weight
        if self.valid is not None:
            some = self.valid.any(-1)
            losses = torch.where(some, losses, 0)
            weight = some.to(losses.dtype) if weight is None else torch.where(some, weight, 0)
        if weight is not None:
            losses = losses * weight
        if reduction == "none":
            return losses.to(dtype)
        if reduction == "mean" and weight is None:
            return losses.mean().to(dtype)
        total = losses.sum()
        if reduction == "mean" and weight is not None:
            count = weight.expand(losses.shape).sum()
            total = quotient(total, count, count == 0)
        return total.to(dtype)


def checked_rows(name: str, argument: str, x: Any, other: str, y: Any, dim: Any, reduction: Any, mask: Any, weight: Any) -> Rows:
    """The rows of two tensors along a dimension."""
    x = checked_floating(name, argument, x)
    if isinstance(y, Tensor) and y.dtype is torch.bool:
        raise TypeError(f"{name}: `{other}` must be a real tensor, got dtype {y.dtype}: pass `{other}.float()`.")
    checks.real_tensor(name, other, y)
    if not has_shape(y.shape, x.shape):
        raise ValueError(f"{name}: `{other}` must have the shape {tuple(x.shape)} of `{argument}`, got {tuple(y.shape)}.")
    checks.one_dim(name, dim, x.ndim)
    checks.choice(name, "reduction", reduction, REDUCTIONS)
    (x,) = to_opmath(x)
    rows = _rows(x, dim)
    if not holds(rows.shape[-1] != 0):
        raise ValueError(f"{name}: `{argument}` must have at least one element along `dim`, got shape {tuple(x.shape)}.")
    if mask is not None:
        checks.bool_tensor(name, "mask", mask)
        if not has_shape(mask.shape, x.shape):
            raise ValueError(f"{name}: `mask` must have the shape {tuple(x.shape)} of `{argument}`, got {tuple(mask.shape)}.")
        mask = _rows(mask, dim)
        rows = torch.where(mask, rows, 0)
    if weight is not None:
        checks.real_tensor(name, "weight", weight)
        checks.broadcasts_to(name, "weight", weight, f"`{argument}` without `dim`", rows.shape[:-1])
        checks.no_negative_elements(name, "weight", weight)
        weight = weight.to(rows.dtype)
    return Rows(rows, _rows(y.detach(), dim), mask, weight)


def _rows(x: Tensor, dim: int) -> Tensor:
    return (x if x.ndim else x.reshape(1)).movedim(dim, -1)


def soft_ranks(
    name: str, rows: Rows, softness: Softness | None, mode: str | None, method: str, standardize: bool, descending: bool
) -> tuple[Tensor, Any]:
    """The soft ranks of rows, as :func:`fullgrad.soft.rank` has them, of rows in any unit; and their softness, in ranks."""
    mode = mode_of(mode, method)
    n, z = rows.count, standardized(rows) if standardize else rows.x
    narrowed: Any = 1.0
    s: Any = softness
    if softness is None:
        s = _OF_SPREAD
        if rows.valid is None:
            s = at_least(_OF_NEIGHBORS / n, s)
        else:  # one number for all rows: a row is made narrower instead
            narrowed = (n * (_OF_SPREAD / _OF_NEIGHBORS)).clamp(min=_OF_SPREAD / _OF_NEIGHBORS, max=1)
            z = z * narrowed
    # A constant row has an infinite width, whose square is no number.
    in_ranks = n / narrowed if standardize else (n / _spread(z.detach(), rows.valid)).clamp(max=2.0**60)
    if rows.valid is not None:
        checks.positive_number_or_tensor(name, "softness", s)
        if mode != "hard" and method in METHODS and method not in _OF_PAIRS:
            raise ValueError(f"{name}: `method` must be one of 'sigmoid', 'lapsum' with a `mask`, got {method!r}.")
        z = _with_others_last(z, rows.valid, s, descending)
    r = rank_operator(name, z, -1, s, descending, (mode, method, False, True, "ranks", False))
    if mode == "hard":  # the operator's ranks of equal elements depend on where they stand
        r = 0 * r + mean_ranks(rows.x, rows.valid, descending).to(r.dtype)
    return r, in_ranks * s


def mean_ranks(x: Tensor, valid: Tensor | None, descending: bool) -> Tensor:
    """The hard ranks of rows, from 1; equal elements share the mean of theirs."""
    places = torch.arange(1, x.shape[-1] + 1, dtype=torch.float64, device=x.device)
    return shared_by_equals(x, valid, places, descending)


def shared_by_equals(x: Tensor, valid: Tensor | None, of_places: Tensor, descending: bool) -> Tensor:
    """For each element of rows, the number of its place in their order, of which there is one for each place; equal elements have
    the mean of theirs, NaN has NaN, and what is not valid takes no place and has 0.
    """
    y, order = torch.sort(x.detach(), -1, descending=descending)
    first, last = tie_bounds(y)
    start, end = first, last + 1
    if valid is not None:
        counted = valid.gather(-1, order).long()
        until = counted.cumsum(-1)
        start, end = (until - counted).gather(-1, first), until.gather(-1, last)
    sums = torch.cat([torch.zeros_like(of_places[:1]), of_places.cumsum(0)])
    means = (sums[end] - sums[start]) / (end - start).clamp(min=1)
    means = torch.where(x != x, torch.nan, torch.zeros_like(means).scatter(-1, order, means))
    return means if valid is None else torch.where(valid, means, 0)


def mode_of(mode: str | None, method: str) -> str:
    """The mode of a method by default: ``laplace``, in O(n log n), where it has it."""
    return ("laplace" if method in _OF_PAIRS else "smooth") if mode is None else mode


def standardized(rows: Rows) -> Tensor:
    r"""Rows in (0, 1): :math:`1 / (1 + e^{-(x - \mu) / \sigma})` of elements in the unit of their row, as in
    :func:`fullgrad.soft.rank`. Infinities become 0 and 1, and take no part in the statistics.
    """
    left_out = rows.x.detach().abs() == torch.inf
    if rows.valid is not None:
        left_out = left_out | ~rows.valid
    seen = torch.where(left_out, torch.inf, rows.x.detach())
    r = torch.where(left_out, 0, (rows.x - row_origin(seen)) * _unit(seen))
    count = (~left_out).sum(-1, keepdim=True, dtype=torch.int32).clamp(min=1).to(r.dtype)
    r = torch.where(left_out, 0, r - r.sum(-1, keepdim=True) / count)
    variance = (r * r).sum(-1, keepdim=True) / count
    deviation = rows.constant_of_two(torch.where(variance == 0, _OF_CONSTANT, variance).sqrt())
    return torch.where(left_out, (rows.x > 0).to(r.dtype), row_sigmoid(r / deviation))


def _unit(x: Tensor) -> Tensor:
    """Powers of two by which the finite elements of rows spread over about 1, so that squares do not over- or underflow."""
    spread, largest = _spread(x), digits(x.dtype)[1] - 1
    e = exponent(spread).clamp(-largest, largest)
    return power_of_two(torch.where(spread > 0, -e, 0), x.dtype)


def _spread(x: Tensor, valid: Tensor | None = None) -> Tensor:
    """The largest less the smallest of the finite elements of rows; minus infinity without any."""
    counted = x.isfinite() if valid is None else x.isfinite() & valid
    high, low = (
        torch.where(counted, x, -torch.inf).amax(-1, keepdim=True),
        torch.where(counted, x, torch.inf).amin(-1, keepdim=True),
    )
    return high - low


def _with_others_last(z: Tensor, valid: Tensor, softness: Softness, descending: bool) -> Tensor:
    """The rows with what is no element so far behind the others that it changes no rank of theirs."""
    sign = -1 if descending else 1
    last = torch.where(valid, z.detach() * sign, -torch.inf).amax(-1, keepdim=True)
    last = torch.where(last == -torch.inf, 0, last)
    step = softness.detach() if isinstance(softness, Tensor) else softness
    return torch.where(valid, z, sign * (last + last.abs() + _FAR * step))


def quotient(x: Tensor, y: Tensor, undefined: Tensor) -> Tensor:
    """x / y; 0 with the derivative 0 where it is undefined."""
    return torch.where(undefined, 0, x / torch.where(undefined, 1, y))
