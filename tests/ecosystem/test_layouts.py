"""Tensors of other layouts and kinds: a public function is right for them, or raises; no number is wrong."""

import pytest
import torch
from torch import Tensor

from tests.ecosystem.calls import CALLS, first

# Each with what makes it of a plain tensor, and the plain tensor of a result.
KINDS = {
    "sparse_coo": (Tensor.to_sparse, lambda y: y.to_dense()),
    "sparse_csr": (lambda x: x.reshape(-1, x.shape[-1]).to_sparse_csr(), lambda y: y.to_dense()),
    "nested": (lambda x: torch.nested.nested_tensor([x.detach(), x.detach()]), lambda y: y.unbind()[0] if y.is_nested else y),
    "mkldnn": (lambda x: x.float().to_mkldnn(), lambda y: y.to_dense() if y.is_mkldnn else y),
}
# torch warns of each of these kinds, and of each operation that one of them lacks.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def close(found, expected):
    """Whether a value is the expected one in the precision of its dtype."""
    torch.testing.assert_close(found.to(expected.dtype), expected, equal_nan=True, rtol=1e-5, atol=1e-6)


@pytest.mark.short
@pytest.mark.parametrize("kind", KINDS)
def test_a_value_is_right_or_an_error(kind):
    """A missing operation of a layout raises torch's own error, for values and gradients."""
    make, plain = KINDS[kind]
    right = 0
    for case in CALLS:
        x, *rest = case.inputs
        if not x.ndim:
            continue
        x = plain(make(x)).clone().requires_grad_(x.is_floating_point())
        try:
            value = first(case.operator(make(x), *rest))
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            continue
        expected = first(case.operator(x, *rest))
        close(plain(value), expected)
        right += 1
        if not value.requires_grad:
            assert kind == "nested" or not expected.requires_grad
            continue
        try:
            (found,) = torch.autograd.grad(plain(value).square().sum(), x)
        except (RuntimeError, NotImplementedError):
            continue
        close(found.to_dense(), torch.autograd.grad(expected.square().sum(), x)[0])
    assert right > 0


@pytest.mark.short
@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.name)
def test_a_quantized_tensor_is_an_error_that_names_the_rule(case):
    """A quantized tensor has no gradient."""
    takes_all = ("ScaleTracker", "checkpoint", "custom_gradient", "custom_jvp", "custom_vjp", "linear_map", "replace_grad")
    takes_all += ("straight_through", "with_reference")
    if case.name in takes_all or case.name.startswith("averages"):
        return
    x, *rest = case.inputs
    with pytest.raises((TypeError, RuntimeError)) as error:
        case.operator(torch.quantize_per_tensor(x.float(), 0.1, 10, torch.quint8), *rest)
    if case.name not in COMPUTE_FIRST:
        assert error.type is TypeError
        assert "must be a real tensor, got dtype torch.quint8" in str(error.value)


# Their operators compute with the input before they call a public function.
COMPUTE_FIRST = {
    "implicit.fixed_point",
    "implicit.root",
    "implicit.argmin",
    "implicit.solve",
    "stochastic_round",
    "mask_grad",
    "quantizers.dorefa_gradient",
    "quantizers.nvfp4_quantize",
    "quantizers.vector_quantize, identity",
}


@pytest.mark.short
def test_a_masked_tensor_is_right_or_an_error():
    """`torch.masked` supports some operations, and refuses the others."""
    for case in CALLS:
        x, *rest = case.inputs
        if not x.ndim:
            continue
        mask = torch.arange(x.numel()).reshape(x.shape) % 3 > 0
        try:
            value = first(case.operator(torch.masked.masked_tensor(x, mask), *rest))
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            continue
        expected = first(case.operator(x, *rest))
        if torch.masked.is_masked_tensor(value):
            assert torch.equal(value.get_mask(), mask)
            close(value.get_data()[mask], expected[mask])
        else:
            close(value, expected)
