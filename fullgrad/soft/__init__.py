"""Relaxations: smooth or piecewise polynomial functions instead of steps, kinks and choices. The straight-through versions,
whose names end in ``_st``, are at the top of the package.
"""

from fullgrad._core.public import make_public
from fullgrad.soft._abs import abs
from fullgrad.soft._clamp import clamp
from fullgrad.soft._closeness import eq, isclose, not_equal
from fullgrad.soft._comparisons import greater, greater_equal, less, less_equal
from fullgrad.soft._histogram import histogram
from fullgrad.soft._logic import all, any, logical_and, logical_not, logical_or, logical_xor
from fullgrad.soft._round import round
from fullgrad.soft._selection import index_select, narrow, take, take_along_dim, where
from fullgrad.soft._sigmoidal import heaviside, sigmoidal
from fullgrad.soft._sign import sign
from fullgrad.soft._softrelu import relu, softrelu
from fullgrad.soft.order import (
    argmax,
    argmedian,
    argmin,
    argquantile,
    argsort,
    max,
    median,
    min,
    proj_permutahedron,
    proj_simplex,
    proj_transport_polytope,
    quantile,
    rank,
    sort,
    topk,
)
from fullgrad.soft.simplex import (
    entmax,
    entmax_loss,
    normmax,
    normmax_loss,
    proj_ball,
    proj_capped_simplex,
    sparsemax,
    subset_marginals,
)

# torch's other names.
gt, ge, lt, le, ne, equal = greater, greater_equal, less, less_equal, not_equal, eq

__all__ = [
    "abs",
    "all",
    "any",
    "argmax",
    "argmedian",
    "argmin",
    "argquantile",
    "argsort",
    "clamp",
    "eq",
    "entmax",
    "entmax_loss",
    "equal",
    "ge",
    "greater",
    "greater_equal",
    "gt",
    "heaviside",
    "histogram",
    "index_select",
    "isclose",
    "le",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "lt",
    "max",
    "median",
    "min",
    "narrow",
    "ne",
    "normmax",
    "normmax_loss",
    "not_equal",
    "proj_ball",
    "proj_capped_simplex",
    "proj_permutahedron",
    "proj_simplex",
    "proj_transport_polytope",
    "quantile",
    "rank",
    "relu",
    "round",
    "sigmoidal",
    "sign",
    "softrelu",
    "sort",
    "sparsemax",
    "subset_marginals",
    "take",
    "take_along_dim",
    "topk",
    "where",
]

make_public(__name__)
