"""The operators of other packages that do what ours do, where the package is installed (the group ``peers``)."""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch

# The package of a case and the path of its operator, which is called with the inputs of the case.
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
# Surrogates of spikingjelly, which are modules; the parameters, tie and threshold of our cases are their defaults.
SURROGATES = {
    "spikes.sigmoid": "Sigmoid",
    "spikes.atan": "ATan",
    "spikes.erf": "Erf",
    "spikes.soft_sign": "SoftSign",
    "spikes.piecewise_exp": "PiecewiseExp",
    "spikes.piecewise_quadratic": "PiecewiseQuadratic",
    "spikes.rect": "Rect",
    "spikes.nonzero_sign_log_abs": "NonzeroSignLogAbs",
    "spikes.q_pseudo_spike": "QPseudoSpike",
    "spikes.piecewise_leaky_relu": "PiecewiseLeakyReLU",
    "spikes.squarewave_fourier_series": "SquarewaveFourierSeries",
    "spikes.s2nn": "S2NN",
    "spikes.leaky_k_relu": "LeakyKReLU",
    "spikes.log_tailed_relu": "LogTailedReLU",
    "spikes.fake_numerical_gradient": "FakeNumericalGradient",
}


# torch's own operators that do the same, with the range of the case.
_TORCH: dict[str, Callable[..., Any]] = {
    "quantizers.fake_quantize by numbers, rounded": lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, s, z, -3, 4),
}


def peer(case: str) -> tuple[str, Callable[..., Any]] | None:
    """The package and its operator; None if there is none or it is not installed."""
    if case in SURROGATES:
        made = load(f"spikingjelly.activation_based.surrogate:{SURROGATES[case]}")
        if made is None:
            return None
        surrogate = made()
        return "spikingjelly", lambda v, *defaults: surrogate(v)
    if case in _TORCH:
        return "torch", _TORCH[case]
    if case not in _PEERS:
        return None
    package, path = _PEERS[case]
    found = load(path)
    return None if found is None else (package, found)


@functools.cache
def load(path: str) -> Any:
    """The object that ``module:attribute`` names; None if the module is not installed."""
    module, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ImportError:
        return None
