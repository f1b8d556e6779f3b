"""Distributions on the simplex and on its slices: sparse softmaxes, soft subsets, and their losses."""

from fullgrad.soft.simplex._subset_marginals import subset_marginals

__all__ = ["subset_marginals"]
