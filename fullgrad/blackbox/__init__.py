"""Solvers and simulators of any kind, with the derivative of an estimator, of an interpolation or of differences."""

from fullgrad._core.public import make_public
from fullgrad.blackbox._fenchel_young_loss import fenchel_young_loss
from fullgrad.blackbox._finite_difference import finite_difference
from fullgrad.blackbox._imle import imle
from fullgrad.blackbox._interpolated import interpolated
from fullgrad.blackbox._negative_identity import negative_identity
from fullgrad.blackbox._perturbed import perturbed
from fullgrad.blackbox._score_function import score_function
from fullgrad.blackbox._smoothed import smoothed

__all__ = [
    "fenchel_young_loss",
    "finite_difference",
    "imle",
    "interpolated",
    "negative_identity",
    "perturbed",
    "score_function",
    "smoothed",
]

make_public(__name__)
