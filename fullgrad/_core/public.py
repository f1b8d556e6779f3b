"""`make_public`: the public functions of a family."""

import sys

from fullgrad._core.fast import load_entries
from fullgrad._dispatch import make_overridable

# Keywords of softtorch's functions that ours lack: they raise and say what to write instead.
_ORDER = ("argmax", "argmedian", "argmin", "argquantile", "argsort", "max", "median", "min", "quantile", "rank", "sort", "topk")
_SOLVER = {"ot_kwargs": "the solver of the method 'ot' has no settings here, so leave it out"}
_BOUNDS = {"a": "the bounds are called `min_value` and `max_value`", "b": "the bounds are called `min_value` and `max_value`"}

_REFUSED = {
    **dict.fromkeys((*_ORDER, *(f"{name}_st" for name in _ORDER)), _SOLVER),
    "clamp": _BOUNDS,
    "clamp_st": _BOUNDS,
}


def make_public(family: str, known_as: str | None = None) -> None:
    """Make the functions of a family honor ``__torch_function__``, under the public name of their module, and load the faster
    versions of its formulas.
    """
    make_overridable(sys.modules[family], known_as or family, _REFUSED)
    load_entries(family)
