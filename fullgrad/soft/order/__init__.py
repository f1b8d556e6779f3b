"""Order statistics: the largest and least elements, sorted ones, quantiles and ranks. Each is a function of the rows of a tensor
(`_rows`) by one of several methods, which stand on projections.
"""

from fullgrad.soft.order._extremes import argmax, argmax_st, argmin, argmin_st, max, max_st, min, min_st
from fullgrad.soft.order._quantiles import (
    argmedian,
    argmedian_st,
    argquantile,
    argquantile_st,
    median,
    median_st,
    quantile,
    quantile_st,
)
from fullgrad.soft.order._rank import rank, rank_st
from fullgrad.soft.order._simplex import proj_simplex
from fullgrad.soft.order._sorting import argsort, argsort_st, sort, sort_st, topk, topk_st

__all__ = [
    "argmax",
    "argmax_st",
    "argmedian",
    "argmedian_st",
    "argmin",
    "argmin_st",
    "argquantile",
    "argquantile_st",
    "argsort",
    "argsort_st",
    "max",
    "max_st",
    "median",
    "median_st",
    "min",
    "min_st",
    "proj_simplex",
    "quantile",
    "quantile_st",
    "rank",
    "rank_st",
    "sort",
    "sort_st",
    "topk",
    "topk_st",
]
