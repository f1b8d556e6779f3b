"""Properties specific to `clamping`: bounds of every kind, NaN, and the range that the original lost."""

import math

import pytest
import torch
from torch.func import grad, jacrev, vmap

import fullgrad
from tests.operators import flushed_denormals

pytestmark = pytest.mark.short

INF, NAN = math.inf, math.nan


def gradient(x, *bounds, g=1.0):
    """The gradient that clamp passes to x."""
    leaf = torch.as_tensor(x).clone().requires_grad_()
    y = fullgrad.clamp(leaf, *bounds)
    return torch.autograd.grad(y, leaf, torch.full_like(y, g))[0].tolist()


def test_both_bounds_are_inside(device):
    """x on a bound has gradient 1, as in torch.clamp and unlike hardtanh."""
    x = torch.tensor([-1.0, 1.0, -1.0000001, 1.0000001], device=device)
    assert gradient(x, -1.0, 1.0) == [1, 1, 0, 0]


@pytest.mark.parametrize("size", [1, 7, 16, 17, 33])
def test_nan_has_no_gradient_at_any_position(size, device):
    """The fused kernels treat NaN differently inside and behind their vector registers; the operator does not."""
    assert gradient(torch.full((size,), NAN, device=device), -1.0, 1.0) == [0] * size
    assert gradient(torch.full((size,), NAN, device=device), None, 1.0) == [0] * size
    assert gradient(torch.full((size,), NAN, device=device), -1.0, None) == [0] * size


def test_infinite_input_and_bounds():
    """Infinity inside an infinite bound is inside, beyond a finite one outside; NaN is outside everything."""
    x = [-INF, -1.0, INF, NAN]
    assert gradient(x, -1.0, 1.0) == [0, 1, 0, 0]
    assert gradient(x, -INF, INF) == [1, 1, 1, 0]
    assert gradient(x, -INF, 0.0) == [1, 1, 0, 0]
    assert gradient(x, INF, INF) == [0, 0, 1, 0]
    assert gradient(x, -INF, -INF) == [1, 0, 0, 0]


def test_outside_is_zero_for_an_infinite_gradient():
    """The gradient outside is 0, not infinity times 0."""
    assert gradient([-2.0, 0.0, 2.0], -1.0, 1.0, g=INF) == [0, INF, 0]
    assert gradient([-2.0, 0.0, 2.0], torch.tensor(-1.0), torch.tensor(1.0), g=INF) == [0, INF, 0]


def test_nan_bound_gives_nan_and_no_gradient():
    """The value is torch's, NaN everywhere (for one bound alone since torch 2.12)."""
    x = torch.randn(5)
    for bounds in ((NAN, 1.0), (-1.0, NAN), (NAN, None), (None, NAN)):
        torch.testing.assert_close(fullgrad.clamp(x, *bounds), torch.clamp(x, *bounds), rtol=0, atol=0, equal_nan=True)
        assert gradient(x, *bounds) == [0] * 5


def test_crossed_bounds_give_the_upper_one():
    """min above max: the value is max everywhere, and so is the gradient, when max is a tensor."""
    x = torch.tensor([-2.0, 0.0, 2.0])
    assert fullgrad.clamp(x, 1.0, -1.0).tolist() == [-1, -1, -1]
    assert gradient(x, 1.0, -1.0) == [0, 0, 0]
    low, high = torch.tensor(1.0), torch.tensor(-1.0)
    assert [g.item() for g in grad(lambda low, high: fullgrad.clamp(x, low, high).sum(), (0, 1))(low, high)] == [0, 3]


def test_equal_bounds_share_nothing():
    """low == high: below goes to low, above to high, on it to x; no gradient is lost, as torch.clamp loses that from below."""
    x = torch.tensor([-2.0, 1.0, 2.0])
    bound = torch.tensor(1.0)
    to_x, to_low, to_high = grad(lambda x, low, high: fullgrad.clamp(x, low, high).sum(), (0, 1, 2))(x, bound, bound)
    assert (to_x.tolist(), to_low.item(), to_high.item()) == ([0, 1, 0], 1, 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_number_is_compared_in_the_dtype_of_x(dtype):
    """0.1 rounded to half precision lies on the bound 0.1."""
    assert gradient(torch.tensor([0.1], dtype=dtype), 0.1, 1.0) == [1]
    assert gradient(torch.tensor([0.1], dtype=dtype), -1.0, 0.1) == [1]


def test_flushed_denormals():
    """With subnormal numbers flushed to 0, 0 still lies on a bound of 0."""
    with flushed_denormals():
        assert gradient([0.0, 1.0, -1.0], 0.0, 1.0) == [1, 1, 0]


def test_bounds_of_every_kind_by_keyword_and_position():
    """Bounds may be numbers, tensors, a mixture, or absent; by keyword through the function and the class."""
    x = torch.tensor([-2.0, 0.5, 2.0])
    for call in (fullgrad.clamp, fullgrad.Clamp.apply):
        assert call(x, max_value=1.0).tolist() == [-2, 0.5, 1]
        assert call(x, min_value=torch.tensor(-1.0)).tolist() == [-1, 0.5, 2]
        assert call(x, -1, torch.tensor([1.0, 0.0, 1.0])).tolist() == [-1, 0, 1]
    with pytest.raises(ValueError, match=r"`min_value` or `max_value` must be given"):
        fullgrad.clamp(x)
    with pytest.raises(TypeError, match=r"`max_value` must be a number or a tensor, got a value of type str"):
        fullgrad.clamp(x, 0.0, "1")


def test_a_batch_with_shared_or_per_sample_bounds_is_a_loop():
    """``vmap(fullgrad.clamp)`` with shared and with per-sample bounds, and its gradients, equal the loop."""
    x, low, high = torch.randn(4, 3), -torch.rand(4), torch.rand(4)
    assert torch.equal(vmap(fullgrad.clamp, in_dims=(0, None, None))(x, -1.0, 1.0), x.clamp(-1, 1))
    loop = torch.stack([x[i].clamp(low[i], high[i]) for i in range(4)])
    assert torch.equal(vmap(fullgrad.clamp)(x, low, high), loop)
    total = lambda x, low, high: fullgrad.clamp(x, low, high).sum()  # noqa: E731
    for i, per_sample in enumerate(zip(*vmap(grad(total, (0, 1, 2)))(x, low, high), strict=True)):
        for a, b in zip(per_sample, grad(total, (0, 1, 2))(x[i], low[i], high[i]), strict=True):
            torch.testing.assert_close(a, b)


def test_a_per_sample_scalar_bound_does_not_promote():
    """A float64 scalar bound per sample leaves a float32 sample float32, in vmap as in the loop."""
    x, low = torch.randn(4, 3), -torch.rand(4, dtype=torch.float64)
    assert fullgrad.clamp(x[0], low[0]).dtype == torch.float32
    assert vmap(fullgrad.clamp)(x, low).dtype == torch.float32


def test_clamp_backward_is_the_rule_of_clamp():
    """The helper is what the operator's vjp computes, under compile too."""
    g, x = torch.randn(20), torch.randn(20)
    expected = grad(lambda x: (fullgrad.clamp(x, -0.5, 0.5) * g).sum())(x)
    assert torch.equal(fullgrad.clamp_backward(g, x, -0.5, 0.5), expected)
    compiled = torch.compile(fullgrad.clamp_backward, backend="eager", fullgraph=True)
    assert torch.equal(compiled(g, x, -0.5, 0.5), expected)


def test_clamp_of_integers():
    """Integer bounds keep the dtype, floating ones promote; no gradient."""
    assert fullgrad.clamp(torch.arange(5), 1, 3).tolist() == [1, 1, 2, 3, 3]
    assert fullgrad.clamp(torch.arange(5), 1, 3).dtype == torch.int64
    assert fullgrad.clamp(torch.arange(5), 0.5, None).dtype == torch.float32


# --- clamp_by_linear --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("constant", [0.0, 1.0, 3.0, 300.0, 6e4])
def test_constant_input_is_zero(constant, dtype):
    """Constant input gives 0, also where eps is lost beside the maximum and the original gives NaN."""
    x = torch.full((3,), constant, dtype=dtype, requires_grad=True)
    y = fullgrad.clamp_by_linear(x)
    assert y.tolist() == [0, 0, 0]
    (g,) = torch.autograd.grad(y, x, torch.tensor([1.0, 2.0, 3.0], dtype=dtype))
    expected = torch.tensor([-1e5, 0.0, 1e5], dtype=torch.float64).to(dtype)  # infinite in float16, where 1e5 is beyond the range
    torch.testing.assert_close(g, expected, rtol=1e-2 if dtype.itemsize == 2 else 1e-4, atol=0.05)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_range_beyond_the_largest_number(dtype):
    """From the smallest to the largest number of the dtype, value and gradient are finite and right."""
    limits = torch.finfo(dtype)
    x = torch.tensor([limits.min, 0.0, limits.max], dtype=dtype, requires_grad=True)
    y = fullgrad.clamp_by_linear(x)
    assert y.tolist() == [0, 0.5, 1]
    (g,) = torch.autograd.grad(y[1] * limits.max, x)
    assert g.isfinite().all()


def test_ties_share_the_derivative_of_an_extreme():
    """Two minima each receive half of what one would, in both modes."""
    x = torch.tensor([1.0, 1.0, 2.0, 4.0], dtype=torch.float64)
    jacobian = jacrev(fullgrad.clamp_by_linear)(x)
    shared = jacobian[:, :2] - torch.eye(4, 2, dtype=x.dtype) / 3.00001  # without each element's own part
    torch.testing.assert_close(shared[:, 0], shared[:, 1])
    torch.testing.assert_close(torch.func.jacfwd(fullgrad.clamp_by_linear)(x), jacobian)
    torch.testing.assert_close(jacobian.sum(1), torch.zeros(4, dtype=x.dtype))  # a shift of all changes nothing


def test_it_is_per_sample_under_vmap():
    """Each sample has its own minimum and maximum, at every level of nesting, for samples that are single numbers too."""
    x = torch.randn(2, 3, 4)
    loop = torch.stack([torch.stack([fullgrad.clamp_by_linear(x[i, :, j]) for i in range(2)], 0) for j in range(4)])
    torch.testing.assert_close(vmap(vmap(fullgrad.clamp_by_linear, in_dims=0), in_dims=2)(x), loop)
    assert vmap(fullgrad.clamp_by_linear)(torch.randn(5)).tolist() == [0] * 5
    assert vmap(vmap(fullgrad.clamp_by_linear))(torch.randn(5, 3)).tolist() == [[0] * 3] * 5


def test_bad_input_of_clamp_by_linear():
    """Empty tensors and a non-positive eps are refused, under vmap and compile too; an empty batch of samples is not empty."""
    for call in (fullgrad.clamp_by_linear, vmap(fullgrad.clamp_by_linear)):
        with pytest.raises(ValueError, match=r"`x` must have at least one element, got shape \(0,\)|\(3, 0\)"):
            call(torch.zeros(0) if call is fullgrad.clamp_by_linear else torch.zeros(3, 0))
    with pytest.raises(ValueError, match=r"`eps` must be positive and finite, got 0.0"):
        fullgrad.clamp_by_linear(torch.ones(3), 0.0)
    with pytest.raises(Exception, match=r"`x` must have at least one element"):
        torch.compile(fullgrad.clamp_by_linear, backend="eager", fullgraph=True)(torch.zeros(0))


def test_nan_and_infinity_spread():
    """One NaN or infinity gives NaN, or what the formula gives beside an infinite range; never a plausible number."""
    for bad in (NAN, INF, -INF):
        y = fullgrad.clamp_by_linear(torch.tensor([0.0, bad, 1.0]))
        assert y.isnan().any()


@pytest.mark.parametrize("side", ["min_value", "max_value"])
def test_a_tie_with_one_tensor_bound_is_inside(side):
    """The gradient of a tie goes to x alone, as with two bounds; beyond the bound it goes to the bound alone."""
    x = torch.tensor([-1.0, 0.5, 2.0], requires_grad=True)
    bound = torch.tensor([0.5, 0.5, 0.5], requires_grad=True)
    to_x, to_bound = torch.autograd.grad(fullgrad.clamp(x, **{side: bound}).sum(), (x, bound))
    outside = [1.0, 0.0, 0.0] if side == "min_value" else [0.0, 0.0, 1.0]
    assert to_bound.tolist() == outside
    assert to_x.tolist() == [1 - v for v in outside]


@pytest.mark.parametrize(
    ("arguments", "name"), [(("a", torch.ones(2), 0.0, 1.0), "grad_output"), ((torch.ones(2), "a", 0.0, 1.0), "x")]
)
def test_errors_of_the_helper_name_the_argument(arguments, name):
    """Errors give the operator, the argument, and what was found."""
    with pytest.raises(TypeError, match=f"^clamp_backward: `{name}` must be a tensor"):
        fullgrad.clamp_backward(*arguments)


def test_a_number_in_a_batch_of_batches_is_alone():
    """A number in a batch of batches has its own range."""
    x = torch.tensor([[1.0, 2.0, 4.0], [0.5, -1.0, 3.0]])
    assert torch.func.vmap(torch.func.vmap(fullgrad.clamp_by_linear))(x).tolist() == [[0.0] * 3] * 2
    assert torch.func.vmap(torch.func.vmap(torch.func.grad(fullgrad.clamp_by_linear)))(x).tolist() == [[0.0] * 3] * 2
