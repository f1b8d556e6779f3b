"""Distributions on the simplex and on its slices: sparse softmaxes, soft subsets, and their losses."""

from fullgrad.soft.simplex._entmax import entmax
from fullgrad.soft.simplex._normmax import normmax
from fullgrad.soft.simplex._sparsemax import sparsemax
from fullgrad.soft.simplex._subset_marginals import subset_marginals

__all__ = ["entmax", "normmax", "sparsemax", "subset_marginals"]
