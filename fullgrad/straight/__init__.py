"""The straight-through versions of relaxations, each defined beside its relaxation in `fullgrad.soft`."""

from fullgrad._core.public import make_public
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
    "abs_st",
    "argmax_st",
    "argmedian_st",
    "argmin_st",
    "argquantile_st",
    "argsort_st",
    "clamp_st",
    "eq_st",
    "equal_st",
    "greater_equal_st",
    "greater_st",
    "heaviside_st",
    "isclose_st",
    "less_equal_st",
    "less_st",
    "max_st",
    "median_st",
    "min_st",
    "not_equal_st",
    "quantile_st",
    "rank_st",
    "ranking_st",
    "relu_st",
    "round_st",
    "sign_st",
    "sort_st",
    "topk_mask_st",
    "topk_st",
]

make_public(__name__, "fullgrad")
