"""Order statistics: the largest and smallest elements, sorted ones, quantiles and ranks.

Public functions call operators (`_operators`), whose rules are in `_statistic`. Operators are written in terms of a method
(`methods`), which works on rows (`_rows`) and is built on projections (`projections`) and kernels (`kernels`).
"""

from fullgrad.soft.order._argmax import argmax, argmax_st
from fullgrad.soft.order._argmedian import argmedian, argmedian_st
from fullgrad.soft.order._argmin import argmin, argmin_st
from fullgrad.soft.order._argquantile import argquantile, argquantile_st
from fullgrad.soft.order._argsort import argsort, argsort_st
from fullgrad.soft.order._max import max, max_st
from fullgrad.soft.order._median import median, median_st
from fullgrad.soft.order._min import min, min_st
from fullgrad.soft.order._quantile import quantile, quantile_st
from fullgrad.soft.order._rank import rank, rank_st
from fullgrad.soft.order._sort import sort, sort_st
from fullgrad.soft.order._topk import topk, topk_st
from fullgrad.soft.order.projections.permutahedron import proj_permutahedron
from fullgrad.soft.order.projections.simplex import proj_simplex
from fullgrad.soft.order.projections.transport_polytope import proj_transport_polytope

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
    "proj_permutahedron",
    "proj_simplex",
    "proj_transport_polytope",
    "quantile",
    "quantile_st",
    "rank",
    "rank_st",
    "sort",
    "sort_st",
    "topk",
    "topk_st",
]
