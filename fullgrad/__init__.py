"""Declared gradients for PyTorch: operators whose derivative you choose, right under every transform."""

import sys

from fullgrad import adoption, clamping, estimators, gradients, quantizers, rounding, sampling, soft, spikes, tracking
from fullgrad._dispatch import make_overridable
from fullgrad._elementwise import Elementwise
from fullgrad._function import Function
from fullgrad.adoption import *  # noqa: F403
from fullgrad.clamping import *  # noqa: F403
from fullgrad.estimators import *  # noqa: F403
from fullgrad.gradients import *  # noqa: F403
from fullgrad.rounding import *  # noqa: F403
from fullgrad.tracking import *  # noqa: F403

__version__ = "0.1.0"

__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
    "Elementwise",
    "Function",
    *adoption.__all__,
    *clamping.__all__,
    *estimators.__all__,
    *gradients.__all__,
    *rounding.__all__,
    *tracking.__all__,
    "quantizers",
    "sampling",
    "soft",
    "spikes",
]

# The public functions honor ``__torch_function__``, under the names by which users know them.
_HERE = sys.modules[__name__]
make_overridable(_HERE, soft, spikes, quantizers, sampling, adoption, clamping, estimators, gradients, rounding, tracking)
