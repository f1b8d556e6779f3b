"""`Rows`: the rows of a tensor as the methods see them."""

from typing import NamedTuple

import torch
from torch import Tensor

from fullgrad._core.opmath import to_opmath
from fullgrad._core.windows import row_sigmoid
from fullgrad._dispatch import at_least, finite_extremes, row_sum, row_totals
from fullgrad.soft._curves import SMALLEST
from fullgrad.soft._relaxation import Softness, divisor
from fullgrad.soft.order._numbers import origin_between, row_origin, weighted
from fullgrad.soft.order.projections.simplex import log_softmax, project

# The variance that is added to the variance of a row.
EPSILON = 1e-6


class Rows(NamedTuple):
    """Rows along the last dimension, in float32 at least.

    ``x`` holds the values less ``origin``, a constant of the row, if there is one. ``z`` holds the numbers that are compared: x,
    or x standardized, with ``mean`` and ``deviation`` in units of ``unit``. ``log``, in smooth mode: logarithms take the place of
    weights.
    """

    x: Tensor
    z: Tensor
    softness: Softness
    mode: str
    origin: Tensor | None = None
    mean: Tensor | None = None
    deviation: Tensor | None = None
    unit: Tensor | None = None
    log: bool = False

    def project(self, v: Tensor) -> Tensor:
        """The weights of scores (…, n), or their logarithms."""
        return log_softmax(v) if self.log else project(v, self.mode)

    @property
    def u(self) -> Tensor:
        """z over the softness. Distinct numbers may become equal here: ties are determined from z."""
        return self.z / self.softness

    @property
    def n(self) -> int:
        """The length of a row."""
        return self.x.shape[-1]

    def restore(self, y: Tensor) -> Tensor:
        """The inverse of standardizing, with the origin added; numbers are kept away from 0 and 1."""
        if self.mean is None or self.deviation is None or self.unit is None:
            return self.moved_back(y)
        least = max(1e-10, 10 * torch.finfo(y.dtype).eps)
        y = y.clamp(least, 1 - least)
        return self.moved_back((torch.log(y / (1 - y)) * self.deviation + self.mean) * self.unit)

    def moved_back(self, y: Tensor) -> Tensor:
        """The values (…, k), with the origin added."""
        return y if self.origin is None else y + self.origin

    def averages(self, weights: Tensor) -> Tensor:
        """The sums (…, k) of the values with weights (…, k, n) that sum to 1."""
        return self.moved_back(weighted(weights, self.x))

    def average(self, weights: Tensor) -> Tensor:
        """The sum (…) of the values with weights (…, n) that sum to 1."""
        return self.moved_back(row_sum(weights * self.x)).squeeze(-1)

    def numbers(self, like: Tensor) -> Tensor:
        """The numbers 1, …, n in the dtype of a tensor."""
        return torch.arange(1, self.n + 1, dtype=like.dtype, device=like.device)

    def anchors(self) -> Tensor:
        """The n evenly spaced places from 0 to 1."""
        return torch.arange(self.n, dtype=self.x.dtype, device=self.x.device) / at_least(self.n - 1, 1)


def make_rows(x: Tensor, softness: Softness, dim: int, mode: str, standardize: bool) -> Rows:
    """The rows of a tensor along a dimension."""
    x, softness = to_opmath(x, softness)
    if not isinstance(softness, Tensor):
        # Distinct standardized numbers are further apart than SMALLEST.
        softness = at_least(softness, SMALLEST) if standardize else divisor(softness, x.dtype)
    x = x.movedim(dim, -1)
    if not standardize:
        origin = row_origin(x)
        x = x - origin
        return Rows(x, x, softness, mode, origin)
    z, mean, deviation, _, _, _, origin, unit = standardized(x)
    return Rows(x - origin, z, softness, mode, origin, mean, deviation, unit)


def with_constant_weights(rows: Rows) -> Rows:
    """The rows with weights that are constants to every derivative."""
    softness = rows.softness.detach() if isinstance(rows.softness, Tensor) else rows.softness
    return rows._replace(z=rows.z.detach(), softness=softness)


def with_finite_values(rows: Rows) -> Rows:
    """The rows with infinities replaced by the last finite element: infinity times a weight of 0 would be NaN."""
    infinite, x = torch.isinf(rows.x), rows.x.detach()
    top = torch.where(infinite, -torch.inf, x).amax(-1, keepdim=True)
    bottom = torch.where(infinite, torch.inf, x).amin(-1, keepdim=True)
    return rows._replace(x=torch.where(infinite, torch.where(x > 0, top, bottom), rows.x))


class Standardized(NamedTuple):
    """Rows in (0, 1), and their intermediate results. ``h`` is 0 at infinite elements, and ``count`` leaves them out.

    ``mean`` and ``deviation`` are statistics of (x - origin) / unit.
    """

    z: Tensor
    mean: Tensor
    deviation: Tensor
    h: Tensor
    infinite: Tensor
    count: Tensor
    origin: Tensor
    unit: Tensor


def standardized(x: Tensor) -> Standardized:
    r"""Rows in (0, 1): :math:`z = 1 / (1 + e^{-h}),\ h = (x - \mu) / \sigma`, where :math:`\sigma^2` is the variance plus 1e-6.

    Infinities become 0 and 1 and take no part in the statistics.
    """
    infinite = x.detach().abs() == torch.inf  # compiled torch.isinf and sums of int64 are scalar code
    low, high = finite_extremes(x)
    origin = origin_between(low, high)
    r = torch.where(infinite, 0, x - origin)
    # Without the unit, sums and squares of large numbers would overflow, and the row silently become constant.
    unit = torch.maximum(high - origin, origin - low).clamp(min=1)
    r = r / unit
    count = (~infinite).sum(-1, keepdim=True, dtype=torch.int32).to(x.dtype)
    total, count = row_totals(r.sum(-1, keepdim=True), count)
    count = count.clamp(min=1)
    mean = total / count
    r = torch.where(infinite, 0, r - mean)
    deviation = (row_sum(r * r) / count + EPSILON / unit / unit).sqrt()
    h = r / deviation
    z = torch.where(infinite, (x > 0).to(x.dtype), row_sigmoid(h))
    return Standardized(z, mean, deviation, h, infinite, count, origin, unit)
