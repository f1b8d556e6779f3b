"""`Rows`: the rows of a tensor as the methods see them."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fullgrad.soft._relaxation import Softness, to_opmath

# Variance that a constant row is taken to have.
EPSILON = 1e-6


class Rows(NamedTuple):
    """Rows along the last dimension, in float32 at least.

    ``x`` are the values. ``z`` are the numbers that are compared, standardized or not, and ``u`` the same over the softness.
    ``mean`` and ``deviation`` are those of rows that are standardized.
    """

    x: Tensor
    z: Tensor
    u: Tensor
    softness: Softness
    mode: str
    mean: Tensor | None = None
    deviation: Tensor | None = None

    @property
    def n(self) -> int:
        """The length of a row."""
        return self.x.shape[-1]

    def restore(self, y: Tensor) -> Tensor:
        """The inverse of standardizing, of numbers that are kept away from 0 and 1."""
        if self.mean is None or self.deviation is None:
            return y
        least = max(1e-10, 10 * torch.finfo(y.dtype).eps)
        y = y.clamp(least, 1 - least)
        return torch.log(y / (1 - y)) * self.deviation + self.mean

    def tensor(self, values: Sequence[float]) -> Tensor:
        """Constants in the dtype and on the device of the rows."""
        return torch.tensor(values, dtype=self.x.dtype, device=self.x.device)

    def numbers(self, like: Tensor) -> Tensor:
        """1, …, n in the dtype of a tensor."""
        return torch.arange(1, self.n + 1, dtype=like.dtype, device=like.device)

    def anchors(self) -> Tensor:
        """n even places from 0 to 1."""
        return torch.arange(self.n, dtype=self.x.dtype, device=self.x.device) / max(self.n - 1, 1)


def make_rows(x: Tensor, softness: Softness, dim: int, mode: str, standardize: bool) -> Rows:
    """The rows of a tensor along a dimension."""
    x, softness = to_opmath(x, softness)
    x = x.movedim(dim, -1)
    if not standardize:
        return Rows(x, x, x / softness, softness, mode)
    z, mean, deviation, *_ = standardized(x)
    return Rows(x, z, z / softness, softness, mode, mean, deviation)


def with_constant_weights(rows: Rows) -> Rows:
    """The rows with weights that are constants to every derivative."""
    softness = rows.softness.detach() if isinstance(rows.softness, Tensor) else rows.softness
    return rows._replace(z=rows.z.detach(), u=rows.u.detach(), softness=softness)


def with_finite_values(rows: Rows) -> Rows:
    """The rows with their last finite element as the value of an infinity, of which a weight of 0 would make NaN."""
    infinite, x = torch.isinf(rows.x), rows.x.detach()
    top = torch.where(infinite, -torch.inf, x).amax(-1, keepdim=True)
    bottom = torch.where(infinite, torch.inf, x).amin(-1, keepdim=True)
    return rows._replace(x=torch.where(infinite, torch.where(x > 0, top, bottom), rows.x))


class Standardized(NamedTuple):
    """Rows in (0, 1), and what they were computed from; ``h`` is 0 and ``count`` counts no element where one is infinite."""

    z: Tensor
    mean: Tensor
    deviation: Tensor
    h: Tensor
    infinite: Tensor
    count: Tensor


def standardized(x: Tensor) -> Standardized:
    r"""Rows in (0, 1): :math:`z = 1 / (1 + e^{-h}),\ h = (x - \mu) / \sigma`, where :math:`\sigma^2` is the variance plus 1e-6.

    Infinities are where the row ends: they become 0 and 1 and have no part in the statistics.
    """
    infinite = x.detach().abs() == torch.inf  # compiled code takes torch.isinf, and sums of int64, one element after another
    finite = torch.where(infinite, 0, x)
    count = (~infinite).sum(-1, keepdim=True, dtype=torch.int32).clamp(min=1).to(x.dtype)
    mean = finite.sum(-1, keepdim=True) / count
    r = torch.where(infinite, 0, finite - mean)
    # Squares of large numbers would overflow, and the row silently become a constant.
    unit = r.detach().abs().amax(-1, keepdim=True).clamp(min=1)
    r = r / unit
    deviation = ((r * r).sum(-1, keepdim=True) / count + EPSILON / (unit * unit)).sqrt()
    h = r / deviation
    z = torch.where(infinite, (x > 0).to(x.dtype), torch.sigmoid(h))
    return Standardized(z, mean, deviation * unit, h, infinite, count)
