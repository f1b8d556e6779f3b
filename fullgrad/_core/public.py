"""`make_public`: the public functions of a family."""

import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fullgrad._core.fast import load_entries
from fullgrad._core.listed import listed
from fullgrad._dispatch import make_overridable

_F = TypeVar("_F", bound=Callable[..., Any])
# torch's and softtorch's keywords that ours lack: they may be None, else they raise and say what to write instead.
_ORDER = ("argmax", "argmedian", "argmin", "argquantile", "argsort", "max", "median", "min", "quantile", "rank", "sort", "topk")
_SOLVER = {"ot_kwargs": "the solver of the method 'ot' has no settings here, so leave it out"}
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

# Words of other packages, and the keywords that mean the same in the functions that have them.
_CALLED = {
    **dict.fromkeys(("temperature", "temp", "tau", "regularization_strength"), ("softness", "tau")),
    **dict.fromkeys(("num_bits", "n_bits", "nbits", "bit_width"), ("bits", "k")),
    **dict.fromkeys(("axis", "dims"), ("dim",)),
    "keepdims": ("keepdim",),
    **dict.fromkeys(("a_min", "min_val", "min", "low", "qmin"), ("min_value", "quant_min")),
    **dict.fromkeys(("a_max", "max_val", "max", "high", "qmax"), ("max_value", "quant_max")),
    "step_size": ("scale", "step"),
    **dict.fromkeys(("num_samples", "nb_samples"), ("samples",)),
    **dict.fromkeys(("y_pred", "y_score", "logits"), ("scores", "prediction")),
    **dict.fromkeys(("y_true", "labels"), ("relevance", "target")),
    **dict.fromkeys(("at", "ats", "top_k", "topk"), ("k",)),
    **dict.fromkeys(("sample_weight", "weights"), ("weight",)),
    "weighing_scheme": ("scheme",),
    **dict.fromkeys(("v_th", "thr", "theta"), ("threshold",)),
}
_BITS = ("num_bits", "n_bits", "nbits", "bit_width", "bits")
# Words of other packages for what is said in another way here: a parameter that a function has where they fit, and what to write.
_SAID = (
    (("straight_through", "hard"), "softness", "{name}_st has the hard value, with the gradient of soft.{name}"),
    (("steepness",), "softness", "`softness` is its reciprocal"),
    (("regularization",), "mode", "`mode` names the shape: 'smooth' is entropic, 'c0' is l2"),
    (("spike_grad",), "tie", "the functions of fullgrad.spikes are surrogates themselves"),
    (_BITS, "quant_max", "quantizers.quant_range(bits) returns `quant_min` and `quant_max`"),
    (_BITS, "activations", "`weights` and `activations` are numbers of bits"),
    (("padded_value_indicator", "padding_value", "ignore_index"), "mask", "`mask` is True for the elements of a row"),
    (("largest",), "k", "it takes the largest; those of -x are the smallest"),
)


def refuse_keywords(name: str, parameters: Sequence[str], others: dict[str, Any]) -> None:
    """Refuse keywords that a function lacks, with what other packages mean by them, or with those that are close."""
    for keyword, value in others.items():
        reason = _REFUSED.get(name, {}).get(keyword)
        if reason is None:
            raise TypeError(f"{name}: there is no argument `{keyword}`: {told(name, parameters, keyword)}.".replace("?.", "?"))
        if value is not None:
            raise TypeError(f"{name}: `{keyword}` must be None: {reason}.")


def explained(function: _F, way_out: str = "") -> _F:
    """The function, whose errors about its arguments name what other packages call otherwise, and a way out. It is for functions
    that are called once, as it looks at the signature.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            refuse_keywords(
                function.__name__, [*signature.parameters], {k: v for k, v in kwargs.items() if k not in signature.parameters}
            )
            raise TypeError(f"{function.__name__}: {error}{way_out and f': {way_out}'}.") from None
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]


def told(name: str, parameters: Sequence[str], keyword: str) -> str:
    """The advice about a keyword that a function lacks."""
    ours = [word for word in _CALLED.get(keyword, ()) if word in parameters]
    if ours:
        return f"it is called `{ours[0]}`"
    for words, needed, said in _SAID:
        if keyword in words and needed in parameters and ("{name}" not in said or f"{name}_st" in listed("straight")):
            return said.format(name=name)
    close = difflib.get_close_matches(keyword, parameters, 1)
    return f"did you mean `{close[0]}`?" if close else f"its arguments are {', '.join(f'`{p}`' for p in parameters)}"


def _refusal(name: str, parameters: Sequence[str]) -> Callable[[dict[str, Any]], None] | None:
    """A function that refuses the keywords that a function lacks; None if no other package has a word for its arguments."""
    ours = {*(word for words in _CALLED.values() for word in words), *(needed for _, needed, _ in _SAID)}
    return functools.partial(refuse_keywords, name, parameters) if name in _REFUSED or ours & {*parameters} else None


def make_public(family: str, known_as: str | None = None) -> None:
    """Make the functions of a family honor ``__torch_function__``, under the public name of their module, and load the faster
    versions of its formulas.
    """
    make_overridable(sys.modules[family], known_as or family, _refusal)
    load_entries(family)
    list_public(family)


def list_public(module: str) -> None:
    """Make `dir` of a module, and so completion, offer its public names alone, and no name that it imports for itself."""
    names = vars(sys.modules[module])
    names["__dir__"] = lambda: sorted({*names["__all__"], *(name for name in names if name.startswith("__"))})
