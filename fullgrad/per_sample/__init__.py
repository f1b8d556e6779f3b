"""Functions of per-sample gradients, without the gradients: norms, clipped sums, sums of squares, inner products."""

from fullgrad._core.public import make_public
from fullgrad.per_sample._clipped import clipped
from fullgrad.per_sample._gramian import gramian
from fullgrad.per_sample._norms import norms
from fullgrad.per_sample._sum_of_squares import sum_of_squares

__all__ = ["clipped", "gramian", "norms", "sum_of_squares"]

make_public(__name__)
