"""Distributions on the simplex and on its slices: sparse softmaxes, soft subsets, and their losses."""

from fullgrad.soft.simplex._ball import proj_ball
from fullgrad.soft.simplex._capped_simplex import proj_capped_simplex
from fullgrad.soft.simplex._entmax import entmax
from fullgrad.soft.simplex._entmax_loss import entmax_loss
from fullgrad.soft.simplex._normmax import normmax
from fullgrad.soft.simplex._normmax_loss import normmax_loss
from fullgrad.soft.simplex._sparsemax import sparsemax
from fullgrad.soft.simplex._subset_marginals import subset_marginals
from fullgrad.soft.simplex._topk_mask_st import topk_mask_st

__all__ = [
    "entmax",
    "entmax_loss",
    "normmax",
    "normmax_loss",
    "proj_ball",
    "proj_capped_simplex",
    "sparsemax",
    "subset_marginals",
    "topk_mask_st",
]
