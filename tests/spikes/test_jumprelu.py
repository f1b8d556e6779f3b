"""`jumprelu` next to the published formulas."""

import math

import pytest
import torch
from torch.func import grad, jvp, vjp, vmap

from fullgrad import spikes
from tests.operators import raises

pytestmark = pytest.mark.short

INF, NAN = math.inf, math.nan


def published(x, threshold, bandwidth, g, of_input):
    """Value and gradients, written after the paper's appendix and after the option of SAELens, one number at a time."""
    value, of_x, of_threshold = [], [], []
    for u, t, v in zip(x.tolist(), threshold.tolist(), g.tolist(), strict=True):
        inside = -0.5 < (u - t) / bandwidth < 0.5
        value.append(u if u > t else 0.0)
        of_threshold.append(-(t / bandwidth) * v if inside else 0.0)
        of_x.append((v if u > t else 0.0) - (of_threshold[-1] if of_input == "ste" else 0.0))
    return [torch.tensor(column, dtype=x.dtype) for column in (value, of_x, of_threshold)]


@pytest.mark.parametrize("of_input", ["mask", "ste"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_published_formulas(of_input, dtype):
    """Value and gradients, with ties and the ends of the window, in every dtype."""
    generator = torch.Generator().manual_seed(0)
    threshold = torch.rand(64, generator=generator).to(dtype)
    x = (threshold + torch.randn(64, generator=generator).to(dtype) / 8).to(dtype)
    x[:4], threshold[:4] = torch.tensor([1.0, 1.125, 0.875, 1.0625]).to(dtype), 1.0
    g = torch.randn(64, generator=generator).to(dtype)
    y, pull = vjp(lambda x, t: spikes.jumprelu(x, t, 0.25, of_input), x, threshold)
    value, of_x, of_threshold = published(x.double(), threshold.double(), 0.25, g.double(), of_input)
    assert torch.equal(y, value.to(dtype))
    for found, expected in zip(pull(g), (of_x, of_threshold), strict=True):
        torch.testing.assert_close(found, expected.to(dtype), rtol=2 * torch.finfo(dtype).eps, atol=0)
    tangents = jvp(lambda x, t: spikes.jumprelu(x, t, 0.25, of_input), (x.double(), threshold.double()), (g.double(),) * 2)[1]
    torch.testing.assert_close(tangents, of_x + of_threshold)


def test_one_threshold_for_each_feature():
    """A threshold of a row broadcasts, and its gradient is the sum over the samples."""
    x = torch.tensor([[0.9, 2.0], [1.05, 1.9], [5.0, 0.0]], dtype=torch.float64)
    threshold = torch.tensor([1.0, 2.0], dtype=torch.float64)
    loss = lambda x, t: spikes.jumprelu(x, t, 0.5).sum()  # noqa: E731
    assert grad(loss, argnums=1)(x, threshold).tolist() == [-4.0, -8.0]
    per_sample = vmap(grad(loss, argnums=1), in_dims=(0, None))(x, threshold)
    assert per_sample.tolist() == [[-2.0, -4.0], [-2.0, -4.0], [0.0, 0.0]]


def test_the_edges():
    """Zero on the threshold, no NaN from infinities, and NaN only from NaN, with no gradient."""
    x = torch.tensor([1.0, INF, -INF, NAN, 0.0])
    y, pull = vjp(lambda x: spikes.jumprelu(x, 1.0, 0.5, "ste"), x)
    torch.testing.assert_close(y, torch.tensor([0.0, INF, 0.0, NAN, 0.0]), rtol=0, atol=0, equal_nan=True)
    assert pull(torch.ones(5))[0].tolist() == [2, 1, 0, 0, 0]
    assert pull(torch.full((5,), INF))[0].tolist() == [INF, INF, 0, 0, 0]
    y, pull = vjp(lambda x, t: spikes.jumprelu(x, t, 0.5), torch.tensor([1.0, 1.0]), torch.tensor([NAN, INF]))
    torch.testing.assert_close(y, torch.tensor([NAN, 0.0]), rtol=0, atol=0, equal_nan=True)
    assert [v.tolist() for v in pull(torch.ones(2))] == [[0, 0], [0, 0]]


def test_half_precision_does_not_overflow():
    """The quotient of threshold and bandwidth is computed in float32: 60 / 0.001 is beyond float16."""
    x, threshold = torch.tensor([60.0], dtype=torch.float16), torch.tensor([60.0], dtype=torch.float16)
    pull = vjp(lambda t: spikes.jumprelu(x, t, 1e-3), threshold)[1]
    torch.testing.assert_close(
        pull(torch.tensor([2.0**-8], dtype=torch.float16))[0], torch.tensor([-234.4]).half(), rtol=1e-3, atol=0
    )


def test_second_derivatives():
    """The threshold's own slope is -1 / bandwidth inside the window, and the bandwidth gets a gradient from it alone."""
    x, t, width = torch.tensor([1.05, 3.0], dtype=torch.float64), torch.tensor(1.0).double(), torch.tensor(0.5).double()
    loss = lambda t, w: spikes.jumprelu(x, t, w).sum()  # noqa: E731
    assert grad(loss, argnums=1)(t, width) == 0
    assert grad(grad(loss))(t, width) == -2
    assert grad(grad(loss), argnums=1)(t, width) == 4


def test_errors():
    """Each error has the name of the function."""
    x = torch.ones(2)
    with raises(ValueError, match="`bandwidth` must be positive and finite, got 0.0"):
        spikes.jumprelu(x, 1.0, 0.0)
    with raises(ValueError, match="`input_gradient` must be one of 'mask', 'ste', got 'all'"):
        spikes.jumprelu(x, 1.0, 0.1, "all")
    with raises(TypeError, match="`threshold` must be a number or a tensor"):
        spikes.jumprelu(x, "1", 0.1)
