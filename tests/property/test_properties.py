"""Properties of the operators on drawn shapes, layouts, dtypes, parameters and nestings."""

import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import grad, jacfwd, jvp, vjp, vmap

import fullgrad
from fullgrad._suite.cases._case import in_compute_dtype
from fullgrad.testing._subject import close, equal, like, scalar
from tests.property.strategies import FLOATING, dtypes, shapes, tensors


def _slope_of_soft_round(x):
    r = x.round()
    slope = torch.where(r == 0, (x == 0).to(x.dtype), x / r)
    return torch.where(x.isfinite(), slope, torch.nan)


def _in(x, low, high):
    """The inclusive mask, with numbers rounded to the dtype of x as torch.clamp rounds them."""
    inside = x == x
    if low is not None:
        inside &= x >= torch.tensor(low).to(x.dtype)
    return inside & (x <= torch.tensor(high).to(x.dtype)) if high is not None else inside


filled = shapes.filter(lambda shape: 0 not in shape)

# Each elementwise operator: the call, the plain value, and the declared derivative as a function of x.
bounds = st.one_of(st.none(), st.floats(-3, 3, width=16), st.sampled_from([0.0, -0.0, 0.1, 1e-7, float("inf"), -float("inf")]))
ELEMENTWISE = {
    "round": lambda draw: (fullgrad.round, torch.round, torch.ones_like),
    "ceil": lambda draw: (fullgrad.ceil, torch.ceil, torch.ones_like),
    "floor": lambda draw: (fullgrad.floor, torch.floor, torch.ones_like),
    "soft_round": lambda draw: (fullgrad.soft_round, torch.round, _slope_of_soft_round),
    "step_quantize": lambda draw: _with_step(draw(st.floats(1e-3, 10))),
    "k_bit_quantize": lambda draw: _with_bits(draw(st.integers(1, 12))),
    "clamp": lambda draw: _with_bounds(*draw(st.tuples(bounds, bounds).filter(lambda pair: pair != (None, None)))),
}


def _with_step(step):
    plain = in_compute_dtype(lambda x: torch.round(x / step) * step)
    return functools.partial(fullgrad.step_quantize, step=step), plain, torch.ones_like


def _with_bits(k):
    levels = 2.0**k - 1
    plain = in_compute_dtype(lambda x: torch.round(x * levels) / levels)
    return functools.partial(fullgrad.k_bit_quantize, k=k), plain, torch.ones_like


def _with_bounds(low, high):
    operator = functools.partial(fullgrad.clamp, min_value=low, max_value=high)
    return operator, lambda x: torch.clamp(x, low, high), lambda x: _in(x, low, high).to(x.dtype)


@pytest.mark.parametrize("name", ELEMENTWISE)
@given(data=st.data(), x=tensors())
def test_value_and_derivative_of_any_number(name, data, x):
    """Value, ``D(x) g`` and ``D(x) t`` are right for any number, layout and dtype; outside a clamp 0 even for infinite ``g``."""
    operator, plain, derivative = ELEMENTWISE[name](data.draw)
    equal(operator(x), plain(x))
    leaf = x.clone().requires_grad_()
    g = data.draw(tensors(dtype=x.dtype, shape=tuple(x.shape)))
    (actual,) = torch.autograd.grad(operator(leaf), leaf, g)
    d = derivative(x)
    expected = torch.where(d == 0, torch.zeros_like(g), g) if name == "clamp" else g * d
    torch.testing.assert_close(actual, expected, rtol=1e-2 if x.dtype.itemsize == 2 else 1e-6, atol=0, equal_nan=True)
    torch.testing.assert_close(jvp(operator, (x,), (g,))[1], actual, rtol=0, atol=0, equal_nan=True)


CASES = {
    "round": (fullgrad.round, lambda x: x + (x.round() - x).detach()),
    "k_bit_quantize": (lambda x: fullgrad.k_bit_quantize(x, 2), lambda x: x + ((x * 3).round() / 3 - x).detach()),
    "soft_round": (fullgrad.soft_round, None),
    "clamp": (lambda x: fullgrad.clamp(x, -1.03, 0.72), lambda x: torch.clamp(x, -1.03, 0.72)),
    "scale_grad": (fullgrad.scale_grad, None),
    "clip_grad": (lambda x: fullgrad.clip_grad(x, 0.4), None),
    "clip_grad_norm": (lambda x: fullgrad.clip_grad_norm(x, 0.9), None),
    "scale": (lambda x: fullgrad.scale(x, 2.0, 0.5), lambda x: 0.5 * x + (1.5 * x).detach()),
    "clamp_by_linear": (fullgrad.clamp_by_linear, lambda x: (x - x.amin()) / (x.amax() - x.amin() + 1e-5)),
}


@pytest.mark.long(but=3)
@pytest.mark.parametrize("name", CASES)
@given(data=st.data(), shape=filled, size=st.integers(1, 3))
def test_vmap_equals_the_loop(name, data, shape, size):
    """vmap equals the loop for any shape and pair of in and out dimensions, forward and per-sample gradient."""
    operator = CASES[name][0]
    in_dim = data.draw(st.integers(-len(shape) - 1, len(shape)))
    out_dim = data.draw(st.integers(-len(shape) - 1, len(shape)))
    x = data.draw(tensors(dtype=torch.float64, shape=(size, *shape), any_number=False))
    batch = x.movedim(0, in_dim)
    expected = torch.stack([operator(sample) for sample in x])
    close(vmap(operator, in_dims=in_dim, out_dims=out_dim)(batch), expected.movedim(0, out_dim))
    gradients = torch.stack([grad(scalar(operator))(sample) for sample in x])
    close(vmap(grad(scalar(operator)), in_dims=in_dim, out_dims=out_dim)(batch), gradients.movedim(0, out_dim))


@given(data=st.data(), x_shape=shapes, dtype=dtypes)
def test_clamp_with_bounds_of_any_shape(data, x_shape, dtype):
    """Bounds that broadcast, ties and crossings included: each element's gradient goes to exactly one of the three."""
    x = data.draw(tensors(dtype=dtype, shape=x_shape, any_number=False)).clone().requires_grad_()
    shape = tuple(data.draw(st.sampled_from([n, 1])) for n in x_shape)
    low, high = (data.draw(tensors(dtype=dtype, shape=shape, any_number=False)).clone().requires_grad_() for _ in range(2))
    y = fullgrad.clamp(x, low, high)
    equal(y.detach(), torch.clamp(x, low, high).detach())
    to_x, to_low, to_high = torch.autograd.grad(y.sum(), (x, low, high))
    assert torch.equal(to_x, ((x >= low) & (x <= high)).to(dtype))
    total = to_x.double().sum() + to_low.double().sum() + to_high.double().sum()
    assert total == y.numel()


_MODES = {
    "reverse": lambda f, t: lambda x: (grad(f)(x) * t).sum(),
    "forward": lambda f, t: lambda x: jvp(f, (x,), (t,))[1],
    "pulled": lambda f, t: lambda x: (vjp(f, x)[1](torch.ones((), dtype=x.dtype))[0] * t).sum(),
    "jacfwd": lambda f, t: lambda x: (jacfwd(f)(x) * t).sum(),
}


@pytest.mark.exhaustive(but=1)
@pytest.mark.parametrize("name", [n for n, (_, surrogate) in CASES.items() if surrogate])
@given(
    data=st.data(),
    shape=filled,
    modes=st.lists(st.sampled_from(sorted(_MODES)), min_size=1, max_size=3),
)
def test_any_nesting_agrees_with_the_surrogate(name, data, shape, modes):
    """Up to three random transforms around each other, and vmap around them, agree with the surrogate."""
    operator, surrogate = CASES[name]
    x = torch.randn(2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99))))

    def nest(f):
        f = scalar(f)
        for i, mode in enumerate(modes):
            f = _MODES[mode](f, directions[i])
        return f

    directions = [like(x[0], i) for i in range(3)]
    close(nest(operator)(x[0]), nest(surrogate)(x[0]))
    close(vmap(nest(operator))(x), vmap(nest(surrogate))(x))


@given(x=tensors(any_number=False, shape=filled))
def test_clamp_by_linear_stays_in_the_unit_interval(x):
    """The value lies in [0, 1], is 0 at the minimum, and is right to its dtype's accuracy."""
    y = fullgrad.clamp_by_linear(x)
    assert y.dtype == x.dtype
    assert bool(((y >= 0) & (y <= 1)).all())
    assert bool((y[x == x.min()] == 0).all())
    z = x.double()
    torch.testing.assert_close(y.double(), (z - z.min()) / (z.max() - z.min() + 1e-5), rtol=0, atol=2 * torch.finfo(x.dtype).eps)


# --- every number of the small dtypes ---------------------------------------------------------------------------------


def _all_numbers(dtype):
    """The 65,536 numbers of a dtype of 16 bits."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["round", "ceil", "floor", "soft_round"])
def test_every_half_precision_number(name, dtype):
    """Value and derivative of all 65,536 numbers, at every position of a vector register and behind its end."""
    operator, plain, derivative = ELEMENTWISE[name](None)
    x = _all_numbers(dtype)[:-3]
    equal(operator(x), plain(x))
    leaf = x.clone().requires_grad_()
    (d,) = torch.autograd.grad(operator(leaf), leaf, torch.ones_like(leaf))
    torch.testing.assert_close(d, derivative(x), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "pair", [(-1.0, 1.0), (0.0, 6.0), (-0.0, None), (None, 0.1), (0.1, 0.3), (1.0, -1.0), (-float("inf"), float("inf"))]
)
def test_clamp_passes_every_half_precision_number_inside(pair, dtype):
    """The fused kernels pass the inclusive mask for all 65,536 numbers and special bounds; NaN is always outside."""
    x = _all_numbers(dtype)[:-3].requires_grad_()
    (d,) = torch.autograd.grad(fullgrad.clamp(x, *pair), x, torch.full_like(x, float("inf")))
    assert torch.equal(d == float("inf"), _in(x.detach(), *pair))
    assert not d.isnan().any()


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("block", range(16))
def test_clamp_at_every_bound(block, dtype):
    """Each bound on the number line and its neighbors fall on the right side."""
    generator = torch.Generator().manual_seed(block)
    values = torch.randn(400, generator=generator, dtype=torch.float64) * 10.0 ** torch.randint(
        -30, 30, (400,), generator=generator
    )
    for bound in values.to(dtype).double().tolist():
        if abs(bound) == float("inf"):
            continue
        b = torch.tensor(bound, dtype=dtype)
        around = torch.stack((b.nextafter(b - 1e30 if dtype.itemsize > 2 else b * 0 - 60000), b, b.nextafter(b * 0 + 60000)))
        x = around.repeat(7).requires_grad_()
        assert torch.equal(torch.autograd.grad(fullgrad.clamp(x, bound, None).sum(), x)[0], (x >= b).to(dtype))
        assert torch.equal(torch.autograd.grad(fullgrad.clamp(x, None, bound).sum(), x)[0], (x <= b).to(dtype))
        assert torch.equal(torch.autograd.grad(fullgrad.clamp(x, bound, bound).sum(), x)[0], (x == b).to(dtype))
