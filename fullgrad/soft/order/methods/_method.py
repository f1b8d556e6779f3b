"""`Method`: the interface of the methods."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from fullgrad.soft.order._numbers import weighted
from fullgrad.soft.order._rows import Rows


class Method:
    """A way to make the order of rows soft. Places are positions in ascending order, counted from 0.

    A subclass defines `weights`, or `values` and `ranks`, and overrides the results that it computes better than from these.
    """

    # Whether the values are the sums with the weights.
    values_are_weighted_sums: ClassVar[bool] = True
    # Whether the order of -x is the reversed order of x.
    negation_reverses: ClassVar[bool] = True

    def weights(self, rows: Rows, places: Tensor | None = None) -> Tensor:
        """The weights (…, k, n) in k places, or in all for None."""
        raise NotImplementedError

    def neighbor_weights(self, rows: Rows, low: Tensor, high: Tensor) -> Sequence[Tensor]:
        """The weights (…, k, n) in k places, and in the places that follow them (the last place again after itself)."""
        return self.weights(rows, low), self.weights(rows, high)

    def topk_weights(self, rows: Rows, k: int) -> Tensor:
        """The weights (…, k, n) in the k last places, the last one first."""
        return self.weights(rows, torch.arange(rows.n - 1, rows.n - 1 - k, -1, device=rows.x.device))

    def largest_weights(self, rows: Rows) -> Tensor:
        """The weights (…, n) in the last place."""
        return self.weights(rows, torch.full((1,), rows.n - 1, device=rows.x.device)).squeeze(-2)

    def values(self, rows: Rows) -> Tensor:
        """The values (…, n) in all places."""
        return rows.averages(self.weights(rows))

    def topk(self, rows: Rows, k: int) -> Tensor:
        """The values (…, k) in the k last places, the last one first."""
        if self.values_are_weighted_sums:
            return rows.averages(self.topk_weights(rows, k))
        return self.values(rows)[..., -k:].flip(-1)

    def largest(self, rows: Rows) -> Tensor:
        """The value (…) in the last place."""
        return rows.average(self.largest_weights(rows)) if self.values_are_weighted_sums else self.values(rows)[..., -1]

    def ranks(self, rows: Rows) -> Tensor:
        """The ranks (…, n) of the elements, 1 for the smallest: the mean place of each, by its weights."""
        weights = self.weights(rows)
        return weighted(weights.mT, rows.numbers(rows.x)) / weights.sum(-2).clamp(min=1e-10)


def has_mass(mass: Tensor) -> Tensor:
    """Whether an element has weights whose mean place is exact: others underflow. NaN has."""
    limits = torch.finfo(mass.dtype)
    return ~(mass < limits.smallest_normal / limits.eps)
