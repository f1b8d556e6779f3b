"""Operators made of functions: hard values with the derivative of a relaxation, or of any other function.

The straight-through versions of relaxations are defined beside them in `fullgrad.soft` and collected here.
"""

from fullgrad._core.public import make_public
from fullgrad.functions._checkpoint import checkpoint
from fullgrad.functions._custom import custom_gradient, custom_jvp, custom_vjp
from fullgrad.functions._linear_map import linear_map
from fullgrad.functions._reference import with_reference
from fullgrad.functions._replace_grad import ReplaceGrad, replace_grad
from fullgrad.functions._st import grad_replace, st
from fullgrad.functions._straight_through import straight_through
from fullgrad.soft._abs import abs_st
from fullgrad.soft._clamp import clamp_st
from fullgrad.soft._closeness import eq_st, isclose_st, not_equal_st
from fullgrad.soft._comparisons import greater_equal_st, greater_st, less_equal_st, less_st
from fullgrad.soft._round import round_st
from fullgrad.soft._sigmoidal import heaviside_st
from fullgrad.soft._sign import sign_st
from fullgrad.soft._softrelu import relu_st
from fullgrad.soft.order import (
    argmax_st,
    argmedian_st,
    argmin_st,
    argquantile_st,
    argsort_st,
    max_st,
    median_st,
    min_st,
    quantile_st,
    rank_st,
    sort_st,
    topk_st,
)
from fullgrad.soft.simplex import topk_mask_st

equal_st, ranking_st = eq_st, rank_st

__all__ = [
    "ReplaceGrad",
    "abs_st",
    "argmax_st",
    "argmedian_st",
    "argmin_st",
    "argquantile_st",
    "argsort_st",
    "clamp_st",
    "checkpoint",
    "custom_gradient",
    "custom_jvp",
    "custom_vjp",
    "eq_st",
    "equal_st",
    "grad_replace",
    "greater_equal_st",
    "greater_st",
    "heaviside_st",
    "isclose_st",
    "less_equal_st",
    "less_st",
    "linear_map",
    "max_st",
    "median_st",
    "min_st",
    "not_equal_st",
    "quantile_st",
    "rank_st",
    "ranking_st",
    "relu_st",
    "replace_grad",
    "round_st",
    "sign_st",
    "sort_st",
    "st",
    "straight_through",
    "topk_mask_st",
    "topk_st",
    "with_reference",
]

make_public(__name__, "fullgrad")
