"""Clamping: values kept in a range."""

from fullgrad._core.public import make_public
from fullgrad.clamping._bounds import LowerBound, UpperBound, lower_bound, upper_bound
from fullgrad.clamping._clamp import Clamp, clamp, clamp_backward
from fullgrad.clamping._clamp_by_linear import ClampByLinear, clamp_by_linear

__all__ = [
    "Clamp",
    "ClampByLinear",
    "LowerBound",
    "UpperBound",
    "clamp",
    "clamp_backward",
    "clamp_by_linear",
    "lower_bound",
    "upper_bound",
]

make_public(__name__, "fullgrad")
