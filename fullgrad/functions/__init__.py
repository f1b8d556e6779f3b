"""Operators made of functions: a function of any code with a declared derivative."""

from fullgrad._core.public import make_public
from fullgrad.functions._checkpoint import checkpoint
from fullgrad.functions._closure_convert import closure_convert
from fullgrad.functions._custom_gradient import custom_gradient
from fullgrad.functions._custom_jvp import custom_jvp
from fullgrad.functions._custom_vjp import custom_vjp
from fullgrad.functions._linear_map import linear_map
from fullgrad.functions._replace_grad import ReplaceGrad, replace_grad
from fullgrad.functions._st import grad_replace, st
from fullgrad.functions._straight_through import straight_through
from fullgrad.functions._with_reference import with_reference

__all__ = [
    "ReplaceGrad",
    "checkpoint",
    "closure_convert",
    "custom_gradient",
    "custom_jvp",
    "custom_vjp",
    "grad_replace",
    "linear_map",
    "replace_grad",
    "st",
    "straight_through",
    "with_reference",
]

make_public(__name__, "fullgrad")
