"""torchao's tensors as inputs: a public function is right where they can do it, or raises their error.

torchao is in the group ``clients``; where it is not installed these tests are skipped.
"""

import warnings

import pytest
import torch
from torch import Tensor, nn

import fullgrad
from fullgrad import quantizers, soft, spikes
from tests.ecosystem.calls import CALLS, first

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]
# A weight is a matrix, and no other argument of these cases depends on its shape.
OF_MATRICES = [
    case
    for case in CALLS
    if case.inputs[0].ndim == 2
    and case.inputs[0].is_floating_point()
    and not any(isinstance(value, Tensor) and value.ndim for value in case.inputs[1:])
]


@pytest.fixture(autouse=True, scope="module")
def _torchao():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torchao")


def quantized(config, weight):
    """A weight as torchao's quantization leaves it."""
    import torchao.quantization as ao

    layer = nn.Linear(*reversed(weight.shape), bias=False)
    layer.weight = nn.Parameter(weight.clone(), requires_grad=False)
    arguments = {"weight_dtype": torch.int4, "granularity": ao.PerAxis(0)} if config == "IntxWeightOnlyConfig" else {}
    ao.quantize_(layer, getattr(ao, config)(**arguments))
    return layer.weight


def as_int8_training(weight):
    from torchao.prototype.quantized_training import Int8QuantizedTrainingLinearWeight

    return Int8QuantizedTrainingLinearWeight.from_float(weight)


def as_nf4(weight):
    from torchao.quantization import NF4Tensor

    return NF4Tensor.from_tensor(weight, 8, 1)


def mixed(weight):
    """A weight that is a plain tensor to all operations but matrix products."""
    from torchao.prototype.quantized_training.int8_mixed_precision import (
        Int8MixedPrecisionTrainingConfig,
        Int8MixedPrecisionTrainingLinearWeight,
    )

    return Int8MixedPrecisionTrainingLinearWeight(weight, Int8MixedPrecisionTrainingConfig())


def dequantized(value):
    """The numbers of a tensor of any kind."""
    for name in ("get_original_weight", "_data", "dequantize"):
        if type(value) is not Tensor and hasattr(value, name):
            numbers = getattr(value, name)
            return numbers() if callable(numbers) else numbers
    return value


KINDS = {
    **{
        config: lambda w, config=config: quantized(config, w)
        for config in ("Int8WeightOnlyConfig", "Float8WeightOnlyConfig", "IntxWeightOnlyConfig")
    },
    "int8 training": as_int8_training,
    "nf4": as_nf4,
    "mixed precision": mixed,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_is_right_or_torchaos_error(kind):
    """Quantized weights know few operations, and name the one that they lack."""
    right = 0
    for case in OF_MATRICES:
        x, *rest = case.inputs
        weight = KINDS[kind](x.float().repeat(8, 8))
        try:
            value = first(case.operator(weight, *rest))
        except (NotImplementedError, AssertionError):
            assert kind != "mixed precision"
            continue
        expected = first(case.operator(dequantized(weight).detach(), *rest))
        torch.testing.assert_close(dequantized(value).detach(), expected, equal_nan=True, rtol=1e-5, atol=1e-6)
        right += 1
    assert right > 0


TRAINED = {
    "fake_quantize": lambda w: quantizers.fake_quantize(w, 0.1, quant_min=-8, quant_max=7),
    "clamp": lambda w: fullgrad.clamp(w, -0.5, 0.5),
    "atan": spikes.atan,
    "soft.round": soft.round,
    "sort_st": lambda w: fullgrad.sort_st(w).values,
}


@pytest.mark.parametrize("name", TRAINED)
def test_a_weight_of_mixed_precision_has_the_declared_gradient(name):
    """The gradient is that of the plain weight."""
    weight = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    kind, plain = mixed(weight.clone()).requires_grad_(), weight.clone().requires_grad_()
    g = torch.linspace(-1, 1, 16 * 8).reshape(16, 8)
    (found,) = torch.autograd.grad(TRAINED[name](kind), kind, g)
    (expected,) = torch.autograd.grad(TRAINED[name](plain), plain, g)
    torch.testing.assert_close(dequantized(found), expected)


def test_a_quantizer_before_torchaos_quantization_has_the_same_weight():
    """Training sees the numbers that the quantized weight has afterwards."""
    weight = torch.randn(16, 32, generator=torch.Generator().manual_seed(0))
    after = quantized("Int8WeightOnlyConfig", weight)
    before = quantizers.fake_quantize(weight, after.scale.flatten(), quant_min=-128, quant_max=127, dim=0)
    torch.testing.assert_close(before, dequantized(after), rtol=1e-6, atol=0)
