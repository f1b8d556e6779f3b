"""Properties specific to `lower_bound` and `upper_bound`: the gradient beyond the bound, its tangent, and the edges."""

import math

import pytest
import torch
from torch.func import grad, hessian, jvp, vjp, vmap

import fullgrad
from tests.operators import raises

pytestmark = pytest.mark.short

INF, NAN = math.inf, math.nan
X = torch.tensor([-2.0, -0.5, 0.0, 1.5, INF, -INF], dtype=torch.float64)
G = torch.tensor([1.0, -1.0, 0.0, -2.5, NAN], dtype=torch.float64)


def published(x, bound, g, lower):
    """The gradient of compressai's LowerBound, by elements; the bound above is its mirror image."""
    if not lower:
        return -published(-x, -bound, -g, True)
    return torch.stack([v if u >= bound or v < 0 else v * 0 for u, v in zip(x, g, strict=True)])


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_gradient_passes_where_a_step_leads_back(lower, dtype):
    """Value and gradient are those of compressai, for every pair of a number and a gradient."""
    operator = fullgrad.lower_bound if lower else fullgrad.upper_bound
    pairs = torch.cartesian_prod(X, G).to(dtype)
    x, g = pairs.unbind(1)
    y, pull = vjp(lambda x: operator(x, 0.25), x)
    expected = (torch.maximum if lower else torch.minimum)(x, torch.tensor(0.25, dtype=dtype))
    assert torch.equal(y, expected)
    torch.testing.assert_close(pull(g)[0], published(x, 0.25, g, lower), rtol=0, atol=0, equal_nan=True)


def test_an_infinite_gradient_is_dropped_or_kept():
    """The gradient that leads away is 0 even if infinite, where the product with a mask would be NaN."""
    pull = vjp(lambda x: fullgrad.lower_bound(x, 0.0), torch.tensor([-1.0, -1.0]))[1]
    assert pull(torch.tensor([INF, -INF]))[0].tolist() == [0, -INF]


def test_descent_recovers_and_does_not_drift():
    """From below the bound, descent reaches a target above it, and stays where the target is below; a clamp is stuck."""
    for gradient, target, expected in (("toward", 2.0, 2.0), ("toward", -5.0, -1.0), ("inside", 2.0, -1.0)):
        x = torch.tensor(-1.0)
        for _ in range(200):
            x = x - 0.1 * grad(lambda x: (fullgrad.lower_bound(x, 0.0, gradient) - target) ** 2)(x)  # noqa: B023
        torch.testing.assert_close(x, torch.tensor(expected), rtol=1e-4, atol=1e-4)


def test_the_tangent_is_true_and_the_map_is_differentiated_as_it_is():
    """Forward mode has the derivative of the maximum; the second derivative is that of what passed."""
    x = torch.tensor([-1.0, -0.5, 2.0], dtype=torch.float64)
    assert jvp(lambda x: fullgrad.lower_bound(x, 0.0), (x,), (torch.ones_like(x),))[1].tolist() == [0, 0, 1]
    assert jvp(lambda x: fullgrad.upper_bound(x, 0.0), (x,), (torch.ones_like(x),))[1].tolist() == [1, 1, 0]
    # The gradient -y + w passes below the bound where it is negative; its derivative by w is then 1.
    w = torch.tensor([-1.0, 1.0, -1.0], dtype=torch.float64)
    of_w = torch.func.jacrev(lambda w: grad(lambda x: (fullgrad.lower_bound(x, 0.0) * w).sum())(x))(w)
    assert of_w.diagonal().tolist() == [1, 0, 1]
    assert hessian(lambda x: fullgrad.lower_bound(x, 0.0).square().sum())(x).tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 2]]


def test_samples_that_share_an_input_are_mapped_before_their_sum():
    """Under vmap the sign is that of each sample's gradient, also where the input is not batched and the bound is."""
    x, bounds = torch.tensor(-1.0), torch.tensor([0.0, 1.0])
    loss = lambda x: (vmap(lambda b: fullgrad.lower_bound(x, b))(bounds) * torch.tensor([3.0, -1.0])).sum()  # noqa: E731
    assert grad(loss)(x) == -1


@pytest.mark.parametrize("gradient", ["toward", "inside", "identity"])
def test_a_bound_learns_from_the_elements_beyond_it(gradient):
    """The bound's gradient is that of torch.maximum and torch.minimum, summed to its shape."""
    x = torch.tensor([[-2.0, 0.5], [3.0, -0.2]], dtype=torch.float64)
    bound = torch.tensor([0.0, 1.0], dtype=torch.float64)
    weights = torch.tensor([[1.0, -2.0], [3.0, 4.0]], dtype=torch.float64)
    for operator, plain in ((fullgrad.lower_bound, torch.maximum), (fullgrad.upper_bound, torch.minimum)):
        found = grad(lambda b: (operator(x, b, gradient) * weights).sum())(bound)  # noqa: B023
        assert torch.equal(found, grad(lambda b: (plain(x, b) * weights).sum())(bound))  # noqa: B023


def test_the_choices():
    """``inside`` is a clamp's derivative, ``identity`` is 1 everywhere, forward and backward."""
    x = torch.tensor([-2.0, 0.0, 3.0])
    for gradient, expected in (("inside", [0, 1, 1]), ("identity", [1, 1, 1])):
        assert vmap(grad(lambda x: fullgrad.lower_bound(x, 0.0, gradient)))(x).tolist() == expected  # noqa: B023
        assert jvp(lambda x: fullgrad.lower_bound(x, 0.0, gradient), (x,), (torch.ones(3),))[1].tolist() == expected  # noqa: B023
        assert vmap(grad(lambda x: fullgrad.upper_bound(x, 0.0, gradient)))(-x).tolist() == expected  # noqa: B023


def test_nan():
    """NaN in the input or in the bound gives NaN and no gradient."""
    for x, bound in ((NAN, 0.0), (1.0, NAN), (NAN, NAN)):
        for operator in (fullgrad.lower_bound, fullgrad.upper_bound):
            y, pull = vjp(lambda x, b: operator(x, b), torch.tensor(x), torch.tensor(bound))  # noqa: B023
            assert y.isnan()
            assert [float(v) for v in pull(torch.tensor(-1.0))] == [0, 0]


def test_errors():
    """Each error has the name of the function."""
    x = torch.ones(2)
    for operator in (fullgrad.lower_bound, fullgrad.upper_bound):
        with raises(ValueError, match="`gradient` must be one of 'toward', 'inside', 'identity', got 'mask'"):
            operator(x, 0.0, "mask")
        with raises(TypeError, match="`bound` must be a number or a tensor"):
            operator(x, None)
        with raises(TypeError, match="`x` must be a real tensor"):
            operator(x > 0, 0.0)
