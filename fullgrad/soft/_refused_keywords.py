"""Keywords of softtorch's functions that ours do not have: they raise, with what to write instead."""

_ORDER = ("argmax", "argmedian", "argmin", "argquantile", "argsort", "max", "median", "min", "quantile", "rank", "sort", "topk")
_SOLVER = {"ot_kwargs": "the solver of the method 'ot' has no settings here, so leave it out"}
_BOUNDS = {"a": "the bounds are called `min_value` and `max_value`", "b": "the bounds are called `min_value` and `max_value`"}

REFUSED_KEYWORDS = {
    **dict.fromkeys((*_ORDER, *(f"{name}_st" for name in _ORDER)), _SOLVER),
    "clamp": _BOUNDS,
    "clamp_st": _BOUNDS,
}
