"""The fused kernels compared with the formulas that they stand for, and the neighbors of numbers."""

import math

import pytest
import torch

from fullgrad._core.fast import ENABLED
from fullgrad._core.neighbors import DTYPES, neighbor
from fullgrad._core.windows import between, sigmoid_gate, where_between, where_positive
from tests.operators import flushed_denormals

INF, NAN = math.inf, math.nan
FLOATS = sorted(DTYPES, key=str)


def edges(dtype):
    """Numbers on and next to the bounds below, and those that need care."""
    x = torch.tensor([-1.0, 0.0, -0.0, 0.3, 1.0, 60.0, INF, -INF, NAN, torch.finfo(dtype).tiny], dtype=dtype)
    beside = [torch.nextafter(x, torch.full_like(x, end)) for end in (-INF, INF)]
    return torch.cat([x, *beside, torch.linspace(-2, 2, 101, dtype=dtype)])


@pytest.mark.short
@pytest.mark.parametrize("dtype", FLOATS)
def test_where_between_is_its_formula(dtype):
    """One or two bounds, included, infinite, crossed and NaN, are right; infinite gradients are 0 outside."""
    x = edges(dtype)
    g = torch.full_like(x, INF)
    for low in (None, -1.0, 0.0, -0.0, 0.3, -INF, INF, NAN):
        for high in (None, 1.0, 0.0, 0.3, INF, -INF, NAN):
            if low is not None or high is not None:
                expected = torch.where(between(x, low, high), g, 0)
                torch.testing.assert_close(where_between(g, x, low, high), expected, rtol=0, atol=0)


def test_where_between_where_subnormal_numbers_are_flushed():
    """The formula is used there, as the neighbors of 0 are 0."""
    with flushed_denormals():
        x, g = edges(torch.float32), torch.tensor(2.0)
        for low, high in ((0.0, 1.0), (-1.0, 0.0), (0.0, None), (None, 0.0)):
            expected = torch.where(between(x, low, high), g, 0)
            torch.testing.assert_close(where_between(g.expand_as(x), x, low, high), expected, rtol=0, atol=0)
            assert where_between(torch.ones(1), torch.zeros(1), low, high) == 1


@pytest.mark.short
@pytest.mark.parametrize("dtype", FLOATS)
def test_where_positive_is_its_formula(dtype):
    """Masks and numbers, NaN included, are right; infinite gradients are 0 where the mask is false."""
    m = edges(dtype)
    g = torch.full_like(m, INF)
    for mask in (m, m > 0.5):
        torch.testing.assert_close(where_positive(g, mask), torch.where(mask <= 0, 0, g), rtol=0, atol=0)


@pytest.mark.skipif(not ENABLED, reason="no entry runs")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sigmoid_gate_is_its_formula(dtype):
    """Half precision agrees to one unit of the last place, as it is rounded once."""
    x = torch.linspace(-3, 3, 1001, dtype=torch.float64).to(dtype)
    v = torch.full_like(x, 0.7)
    for s in (0.1, -0.1, 2.0):
        expected = v.double() * torch.sigmoid(x.double() / s)
        torch.testing.assert_close(sigmoid_gate(v, x, s).double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-7)


@pytest.mark.short
@pytest.mark.parametrize("dtype", FLOATS)
def test_neighbors_are_those_of_nextafter(dtype):
    """Bit arithmetic agrees with torch.nextafter, subnormals, zeros, extremes and infinities included."""
    limits = torch.finfo(dtype)
    values = [0.0, -0.0, 1.0, -1.0, 0.1, 0.3, 255.0, 1e-40, -1e-45, 65504.0, limits.max, limits.min, limits.tiny, INF, -INF]
    values += (torch.randn(300, dtype=torch.float64) * 10.0 ** torch.randint(-8, 8, (300,))).tolist()
    for value in values:
        exact = torch.tensor(value, dtype=dtype)
        for up in (True, False):
            expected = torch.nextafter(exact, torch.tensor(INF if up else -INF, dtype=dtype))
            assert neighbor(value, dtype, up) == expected.item(), (value, up)
    assert math.isnan(neighbor(NAN, dtype, True))
