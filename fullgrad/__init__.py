"""Declared gradients for PyTorch: operators whose derivative you choose, right under every transform."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from fullgrad import adoption, clamping, estimators, gradients, quantizers, rounding, sampling, soft, spikes, tracking
from fullgrad._dispatch import make_overridable
from fullgrad._elementwise import Elementwise
from fullgrad._function import Function
from fullgrad.adoption import *  # noqa: F403
from fullgrad.clamping import *  # noqa: F403
from fullgrad.estimators import *  # noqa: F403
from fullgrad.gradients import *  # noqa: F403
from fullgrad.rounding import *  # noqa: F403
from fullgrad.soft._refused_keywords import REFUSED_KEYWORDS
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
_FAMILIES = (soft, spikes, quantizers, sampling, adoption, clamping, estimators, gradients, rounding, tracking)
make_overridable(sys.modules[__name__], *_FAMILIES, refused=REFUSED_KEYWORDS)

if TYPE_CHECKING:
    from fullgrad import nn as nn
    from fullgrad import testing as testing


def __getattr__(name: str) -> Any:
    # Imported when they are asked for. `nn` is not in `__all__`, so that `import *` leaves the name to torch's.
    if name in ("nn", "testing"):
        return importlib.import_module(f"fullgrad.{name}")
    raise AttributeError(f"module 'fullgrad' has no attribute {name!r}")
