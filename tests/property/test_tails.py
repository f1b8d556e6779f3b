"""Derivatives far from the middle: small, and with a relative accuracy all the same."""

import pytest
import torch

from fullgrad._suite.bench._operators import bound, enlarged, tensors
from fullgrad._suite.cases import CASES

pytestmark = pytest.mark.short
# Operators of all real numbers.
REAL = [c for c in CASES if c.elementwise and c.of == "elements" and (c.inputs[0] < 0).any()]
# A derivative below this part of the largest is not resolved by formulas in float64 either.
RESOLVED = 1e-12


def gradients(operator, inputs, dtype):
    """Value and gradients of numbers that float32 has."""
    inputs = [v.float().to(dtype) if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in inputs]
    leaves = [v.clone().requires_grad_() for v in tensors(inputs)]
    torch.manual_seed(0)
    y = bound(operator, inputs)(*leaves)
    return y.double(), [None if g is None else g.double() for g in torch.autograd.grad(y.sum(), leaves, allow_unused=True)]


def error(operator, inputs):
    """The largest relative error of the derivatives in float32, of one number each, next to float64."""
    y, found = gradients(operator, inputs, torch.float32)
    value, expected = gradients(operator, inputs, torch.float64)
    if not torch.allclose(y, value, rtol=1e-3, atol=1e-5):  # another code, draw or branch
        return 0.0
    errors = [0.0]
    for a, b in zip(found, expected, strict=True):
        if b is not None and b.shape == y.shape:
            resolved = (b.abs() > RESOLVED * b.abs().max()) & (b.abs() > 1e-35)
            errors += ((a - b).abs() / b.abs())[resolved].tolist()
    return max(errors)


@pytest.mark.short(of=3)
@pytest.mark.parametrize("case", REAL, ids=lambda c: c.name)
def test_derivatives_of_the_tails_are_accurate(case):
    """Differences of slopes near 1 give 0 there, as do torch's sigmoid and tanh."""
    inputs = enlarged(case, 200, 50, torch.float64, "cpu")
    for size in (3.0, 40.0):
        x = torch.linspace(-size, size, inputs[0].numel(), dtype=torch.float64).reshape(inputs[0].shape)
        assert error(case.operator, [x, *inputs[1:]]) < 5e-3


def test_a_tail_that_is_lost_is_seen():
    """The derivative of torch's tanh is 0 from 10 on in float32."""
    assert error(torch.tanh, [torch.linspace(-13, 13, 50, dtype=torch.float64)]) == 1
