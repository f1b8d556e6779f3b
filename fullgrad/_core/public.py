"""`make_public`: the public functions of a family."""

import sys

from fullgrad._core.fast import load_entries
from fullgrad._dispatch import make_overridable

# Keywords of the functions of softtorch and of torch that ours lack: they raise and say what to write instead.
_ORDER = ("argmax", "argmedian", "argmin", "argquantile", "argsort", "max", "median", "min", "quantile", "rank", "sort", "topk")
_SOLVER = {"ot_kwargs": "the solver of the method 'ot' has no settings here, so leave it out"}
# torch's own words for what is called otherwise here, or is not there.
_MIN_MAX = {"min": "the lower bound is called `min_value`", "max": "the upper bound is called `max_value`"}
_DECIMALS = {"decimals": "it rounds to integers, and round(100 * x) / 100 to two decimals"}
_BOUNDS = {"a": "the bounds are called `min_value` and `max_value`", "b": "the bounds are called `min_value` and `max_value`"}

_REFUSED = {
    **dict.fromkeys((*_ORDER, *(f"{name}_st" for name in _ORDER)), _SOLVER),
    "clamp": {**_BOUNDS, **_MIN_MAX},
    "clamp_st": {**_BOUNDS, **_MIN_MAX},
    "round": _DECIMALS,
    "round_st": _DECIMALS,
}


def make_public(family: str, known_as: str | None = None) -> None:
    """Make the functions of a family honor ``__torch_function__``, under the public name of their module, and load the faster
    versions of its formulas.
    """
    make_overridable(sys.modules[family], known_as or family, _REFUSED)
    load_entries(family)
