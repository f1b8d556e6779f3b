"""Functions of torch whose derivatives are finite at their singular points, and a `where` for branches with such points."""

from fullgrad._core.public import make_public
from fullgrad.safe._acos import acos
from fullgrad.safe._asin import asin
from fullgrad.safe._atan2 import atan2
from fullgrad.safe._cdist import cdist
from fullgrad.safe._div import div
from fullgrad.safe._log import log
from fullgrad.safe._log1p import log1p
from fullgrad.safe._norm import norm
from fullgrad.safe._normalize import normalize
from fullgrad.safe._pow import pow
from fullgrad.safe._sqrt import sqrt
from fullgrad.safe._where import where
from fullgrad.safe._xlogy import xlogy

__all__ = ["acos", "asin", "atan2", "cdist", "div", "log", "log1p", "norm", "normalize", "pow", "sqrt", "where", "xlogy"]

make_public(__name__)
