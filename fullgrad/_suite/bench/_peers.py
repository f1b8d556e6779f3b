"""The operators of other packages that do what ours do, where the package is installed (the extra ``peers``)."""

import functools
import importlib
from collections.abc import Callable
from typing import Any

# Of a case its package, and where the operator is; called with the inputs of the case.
_PEERS = {
    **{
        name: ("spikingjelly", f"spikingjelly.activation_based.quantize:{name}")
        for name in (
            "round",
            "ceil",
            "floor",
            "clamp",
            "clamp_by_linear",
            "step_quantize",
            "k_bit_quantize",
            "affine_k_bit_quantize",
        )
    },
    "scale_fwd": ("unit_scaling", "unit_scaling.scale:scale_fwd"),
    "scale_bwd": ("unit_scaling", "unit_scaling.scale:scale_bwd"),
}


def peer(case: str) -> tuple[str, Callable[..., Any]] | None:
    """The package and its operator; None where there is none or it is not installed."""
    if case not in _PEERS:
        return None
    package, path = _PEERS[case]
    found = load(path)
    return None if found is None else (package, found)


@functools.cache
def load(path: str) -> Any:
    """What ``module:attribute`` names; None where the module is not installed."""
    module, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ImportError:
        return None
