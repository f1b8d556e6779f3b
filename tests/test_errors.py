"""Errors of wrong arguments name the function and the argument, as the user wrote them."""

import inspect
import operator
import re

import pytest
import torch

import fullgrad
from fullgrad._dispatch.overrides import _may_be_tensor
from tests.test_public import FUNCTIONS, QUANTIZERS, RELAXATIONS, SAMPLING, SPIKES

NOISE = [f"sampling.{name}" for name in fullgrad.sampling.__all__ if name.endswith("_like")]
NAMES = [*FUNCTIONS, *RELAXATIONS, *SPIKES, *QUANTIZERS, *SAMPLING, *NOISE]

pytestmark = pytest.mark.short
X = torch.rand(16, 16)
# What a function is called with, where a number does not do.
NEEDED = {
    "codebook": torch.tensor([-1.0, 0.0, 1.0]),
    "bits": 4,
    "dim": -1,
    "format": "float8_e4m3fn",
    "k": 1,
    "length": 2,
    "levels": [5] * 16,
    "max_value": 1.0,
    "mask": X > 0.5,
    "mu": torch.full((16,), 1 / 16),
    "nu": torch.full((16,), 1 / 16),
    "quant_max": 7,
    "quant_min": -8,
    "soft_start": torch.full((16,), 1 / 16),
    "target": torch.zeros(16, dtype=torch.long),
    "w": X,
}
OF_FUNCTION = {
    **{f"soft.{name}": {"y": X} for name in ("logical_and", "logical_or", "logical_xor")},
    "clamp": {"min_value": 0.0},
    "learned_round": {"v": X},
    "quantizers.mx_quantize": {"block_size": 16},
    "quantizers.vector_quantize": {"codebook": X},
    "replace_grad": {"surrogate": X},
    "soft.index_select": {"soft_index": torch.full((16,), 1 / 16)},
    "soft.take": {"soft_index": X, "dim": -1},
    "soft.take_along_dim": {"soft_index": torch.rand(16, 2, 16), "dim": -1},
    "soft.where": {"x": X, "y": X},
}
# Their first argument is another operator, a function or a gradient.
OTHERS = {"clamp_backward", "grad_replace", "st", "straight_through", "track_scales"}


def signature(name):
    """The first argument, and the others."""
    first, *others = inspect.signature(operator.attrgetter(name)(fullgrad)).parameters.values()
    return first, others


def needed(name):
    """Arguments that the function takes, without those that may be left out."""
    first, others = signature(name)
    known = {p.name: NEEDED.get(p.name, 1.0) for p in others if p.default is p.empty}
    return {first.name: X, **known, **OF_FUNCTION.get(name, {})}


def call(name, changes):
    """The function, with arguments that it takes but for some."""
    return operator.attrgetter(name)(fullgrad)(**{**needed(name), **changes})


@pytest.mark.parametrize("name", [n for n in NAMES if signature(n)[0].annotation is torch.Tensor])
def test_first_argument(name):
    """It is no tensor."""
    first, _ = signature(name)
    with pytest.raises(TypeError, match=rf"^{name.split('.')[-1]}: `{first.name}` must be a .*tensor, got a value of type str"):
        call(name, {first.name: "text"})


@pytest.mark.parametrize("name", [n for n in NAMES if n not in OTHERS and "dim" in [p.name for p in signature(n)[1]]])
def test_dimensions(name):
    """What is no dimension, or several, or none, is refused by the function if it does not take it."""
    errors = []
    for dim in (None, (0, 1), [0], (), (0, 0), 1.0, True, 7, torch.tensor(0)):
        try:
            call(name, {"dim": dim})
        except (TypeError, IndexError, ValueError) as error:
            errors.append(str(error))
    assert errors
    assert all(e.startswith(f"{name.split('.')[-1]}: `") for e in errors), errors


# Only true or not; or taken by torch.
UNCHECKED = {"generator", "memory_format"}


@pytest.mark.parametrize("name", [n for n in NAMES if n not in OTHERS and n not in NOISE])
def test_other_arguments(name):
    """Each but those that are only true or false gets an object of no use."""
    call(name, {})
    for parameter in signature(name)[1]:
        if parameter.annotation is bool or parameter.name in UNCHECKED:
            continue
        with pytest.raises((TypeError, ValueError), match=rf"^{name.split('.')[-1]}: `{parameter.name}"):
            call(name, {parameter.name: object()})


@pytest.mark.parametrize("name", [n for n in NAMES if n not in OTHERS and n not in NOISE])
def test_whole_numbers(name):
    """An int does wherever a float does."""

    def value(argument, number):
        torch.manual_seed(0)
        y = call(name, {argument: number})
        return y if isinstance(y, torch.Tensor) else y[0]

    for parameter in signature(name)[1]:
        if isinstance(needed(name).get(parameter.name, parameter.default), float):
            number = FAR_OFF.get(parameter.name, 1)
            torch.testing.assert_close(
                value(parameter.name, number), value(parameter.name, float(number)), rtol=1e-4, atol=1e-4, equal_nan=True
            )


# Whole numbers that are within the limits of an argument, where 1 is not.
FAR_OFF = {"alpha": 3, "gamma": -1, "low": 0, "zeta": 2}


# Where the grid of another function looks at the argument.
OF_GRIDS = {("quantizers.lsq", "scale"), ("quantizers.tqt", "log2_threshold")}


@pytest.mark.parametrize("name", [n for n in NAMES if n not in OTHERS and n not in NOISE])
def test_dtypes(name):
    """A tensor that has no real numbers, or is no mask."""
    first, others = signature(name)
    for parameter in (first, *others):
        if parameter is first or _may_be_tensor(parameter.annotation):
            shape = getattr(needed(name).get(parameter.name), "shape", X.shape)
            for dtype in (torch.complex64, torch.float32 if parameter.name == "mask" else torch.bool):
                with pytest.raises((TypeError, ValueError), match=rf"^{name.split('.')[-1]}: `{parameter.name}`"):
                    call(name, {parameter.name: torch.ones(shape, dtype=dtype)})


@pytest.mark.parametrize("name", [n for n in NAMES if n not in {*OTHERS, *NOISE}])
def test_shapes(name):
    """A tensor that does not broadcast: torch's own error, or one that names the function and an argument."""
    first, others = signature(name)
    arguments = "|".join(p.name for p in (first, *others))
    for parameter in others:
        if _may_be_tensor(parameter.annotation) and (name, parameter.name) not in OF_GRIDS:
            wrong = torch.full((7, 5), 0.5)
            with pytest.raises((TypeError, ValueError, RuntimeError)) as caught:
                call(name, {parameter.name: wrong > 0 if parameter.name == "mask" else wrong})
            if caught.type is not RuntimeError:
                assert re.match(rf"{name.split('.')[-1]}: [^`]*`({arguments})`", str(caught.value))


MOST = [
    ("k_bit_quantize", "k", 1023),
    ("affine_k_bit_quantize", "k", 1023),
    ("quantizers.dorefa_activation", "bits", 53),
    ("quantizers.dorefa_weight", "bits", 53),
    ("quantizers.dorefa_gradient", "bits", 24),
    ("quantizers.pact", "bits", 53),
    ("quantizers.tqt", "bits", 24),
    ("soft.round", "neighbor_radius", 1000),
    ("soft.narrow", "length", 16),
    ("soft.topk", "k", 16),
    ("spikes.squarewave_fourier_series", "terms", 1000),
    ("spikes.spike_count", "max_spikes", 2**53),
    ("spikes.multi_spike", "max_spikes", 2**53),
    ("spikes.periodic_exponential", "max_spikes", 2**53),
]


@pytest.mark.parametrize(("name", "argument", "most"), MOST)
def test_counts_from_1_to_the_most(name, argument, most):
    """Both ends are taken, what is beyond them and what is no integer is not."""
    for count in (1, most):
        call(name, {argument: count})
    for wrong in (0, most + 1, -1):
        with pytest.raises(ValueError, match=rf"^{name.split('.')[-1]}: `{argument}` must be .*got {wrong}\b"):
            call(name, {argument: wrong})
    rule = rf"^{name.split('.')[-1]}: `{argument}` must be a positive integer, got a value of type"
    for wrong in (1.0, torch.tensor(1.0)):
        with pytest.raises(TypeError, match=rule):
            call(name, {argument: wrong})
    call(name, {argument: torch.tensor(1)})
