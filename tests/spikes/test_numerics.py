"""Slopes far out, at infinity and in half precision: finite in first and second order, and accurate."""

import functools
import inspect
import math

import mpmath
import pytest
import torch
from torch.func import grad, vmap

from fullgrad import spikes
from fullgrad._suite.cases.spikes import CASES, STEPS

pytestmark = pytest.mark.short

SIGNS = ("ste_sign", "approx_sign", "swish_sign", "ternary_sign", "abs_binary_sign_grad")
NAMES = (*STEPS, *SIGNS, "multi_spike", "spike_count")
FLOATS = (torch.float32, torch.float64)


LEARNED = [case for case in CASES if case.name.endswith(" learned") and "periodic" not in case.name]


def points(dtype, count=1000):
    """Numbers from the smallest to the largest, of both signs, and those at which values compare."""
    info = torch.finfo(dtype)
    low, high = torch.tensor([info.tiny, info.max], dtype=torch.float64).log2()
    magnitudes = torch.exp2(torch.linspace(low, high, count, dtype=torch.float64)).to(dtype).clamp(max=info.max)
    some = torch.tensor([0.0, 0.5, 1.0, 2.0, 88.0, 89.0, 104.0, 709.0, 711.0, info.max], dtype=dtype)
    magnitudes = torch.cat((magnitudes, some))
    return torch.cat((magnitudes, -magnitudes))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_no_finite_number_gives_nan(name, dtype):
    """Slope and second derivative of every finite number are finite, and the slope is the same with and without a graph."""
    v = points(dtype)
    operator = getattr(spikes, name)
    x = v.clone().requires_grad_()
    (plain,) = torch.autograd.grad(operator(x).sum(), x)
    (first,) = torch.autograd.grad(operator(x).sum(), x, create_graph=True)
    assert plain.isfinite().all()
    # Recorded steps are bounded at half the largest number, where the slopes are below ten of the smallest normal ones.
    torch.testing.assert_close(first.detach(), plain, rtol=1e-5, atol=10 * torch.finfo(dtype).tiny)
    if first.requires_grad:
        assert torch.autograd.grad(first.sum(), x)[0].isfinite().all()


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.name.endswith(" learned") and "periodic" not in c.name], ids=lambda c: c.name
)
@pytest.mark.parametrize("dtype", FLOATS)
def test_no_finite_number_gives_nan_to_a_parameter(case, dtype):
    """Derivatives by every parameter, and their derivatives, are finite."""
    v = points(dtype, 200).requires_grad_()
    rest = [t.flatten()[0].to(dtype).expand(v.shape).clone().requires_grad_() for t in case.tensors[1:]]
    first = torch.autograd.grad(case.op(v, *rest).sum(), (v, *rest), create_graph=True)
    for g in first:
        assert not g.isnan().any()
        if g.requires_grad:
            for h in torch.autograd.grad(g.sum(), (v, *rest), retain_graph=True, materialize_grads=True):
                assert not h.isnan().any()


# --- Limits -----------------------------------------------------------------------------------------------------------

# The slope at minus infinity, at infinity and at NaN, where it is not 0, 0 and NaN.
LIMITS = {
    "rect": (0, 0, 0),
    "ste_heaviside": (0, 0, 0),
    "ste_sign": (0, 0, 0),
    "ternary_sign": (0, 0, 0),
    "spike_count": (0, 0, 0),
    "multi_spike": (0, 1, 0),
    "leaky_k_relu": (0, 1, 0),
    "piecewise_leaky_relu": (0.01, 0.01, 0.01),
    "abs_binary_sign_grad": (-1, 1, -1),
    "squarewave_fourier_series": (float("nan"),) * 3,
    "sparse_fast_sigmoid": (0, 0, 0),
    "dspike": (0, 0, 0),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [*FLOATS, torch.float16, torch.bfloat16])
def test_limits(name, dtype):
    """Infinities have the limit of the slope, and NaN that of the comparison; the same under every transform."""
    v = torch.tensor([-float("inf"), float("inf"), float("nan")], dtype=dtype)
    expected = torch.tensor(LIMITS.get(name, (0, 0, float("nan")))).to(dtype)
    operator = getattr(spikes, name)
    leaf = v.clone().requires_grad_()
    found = {
        "backward": torch.autograd.grad(operator(leaf).sum(), leaf)[0],
        "with a graph": torch.autograd.grad(operator(leaf).sum(), leaf, create_graph=True)[0].detach(),
        "vmap(grad)": vmap(grad(operator))(v),
        "jvp": torch.func.jvp(operator, (v,), (torch.ones_like(v),))[1],
    }
    for way, slope in found.items():
        torch.testing.assert_close(slope, expected, equal_nan=True, msg=lambda m, way=way: f"{way}: {m}")


# --- Accuracy ---------------------------------------------------------------------------------------------------------

mp = mpmath.mp.clone()
mp.dps = 40


def _s(z):
    return 1 / (1 + mp.exp(-z))


# The slope in 40 digits, and the error in units of the last place, of the result down to subnormal numbers.
EXACT = {
    "sigmoid": (lambda u: 4 * _s(4 * u) * _s(-4 * u), 8),
    "atan": (lambda u: 1 / (1 + (mp.pi * u) ** 2), 4),
    "circ": (lambda u: (1 + 4 * u * u) ** mp.mpf("-1.5"), 6),
    "soft_sign": (lambda u: 1 / (1 + 2 * abs(u)) ** 2, 4),
    "fast_sigmoid": (lambda u: 1 / (1 + 25 * abs(u)) ** 2, 4),
    "nonzero_sign_log_abs": (lambda u: 1 / (1 + abs(u)), 2),
    "q_pseudo_spike": (lambda u: (1 + 2 * abs(u)) ** -2, 5),
    "fake_numerical_gradient": (lambda u: min(1 / abs(u), mp.mpf(0.3)), 2),
    "piecewise_exp": (lambda u: mp.exp(-abs(u)) / 2, 150),
    "erf": (lambda u: 2 / mp.sqrt(mp.pi) * mp.exp(-4 * u * u), 300),
    "piecewise_quadratic": (lambda u: max(0, 1 - abs(u)), 1),
    "log_tailed_relu": (lambda u: 0 if u <= 0 else 1 / max(u, mp.mpf(1)), 1),
    "s2nn": (lambda u: 4 * _s(4 * u) * _s(-4 * u) if u < 0 else 1 / (1 + u), 8),
}


@pytest.mark.parametrize("name", ["fast_sigmoid", "sparse_fast_sigmoid", "soft_sign"])
def test_a_large_gradient_reaches_far(name):
    """The product of a gradient and a slope that falls as 1 / u^2 is right where that slope, or u^2, is beyond float32."""
    operator = functools.partial(getattr(spikes, name), **{"low": -math.inf, "high": math.inf} if "sparse" in name else {})
    narrow = torch.logspace(-20, 24, 45).requires_grad_()
    wide = narrow.detach().double().requires_grad_()
    (found,), (expected,) = [torch.autograd.grad(operator(x), x, torch.full_like(x, 1e30)) for x in (narrow, wide)]
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-20)


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("recorded", [False, True])
def test_slopes_are_accurate(name, dtype, recorded):
    """Slopes agree with 40 digits, from the threshold to where the slope is 0."""
    exact, units = EXACT[name]
    torch.manual_seed(0)
    v = torch.cat((torch.randn(60, dtype=dtype) * 3, torch.exp2(torch.linspace(-20, 30, 60, dtype=dtype)))).requires_grad_()
    slope = torch.autograd.grad(getattr(spikes, name)(v).sum(), v, create_graph=recorded)[0].detach()
    info = torch.finfo(dtype)
    # torch.sigmoid is 0 where its exponential overflows.
    smallest = info.smallest_normal * (1 if name in ("sigmoid", "s2nn") else info.eps)
    for u, d in zip(v.tolist(), slope.tolist(), strict=True):
        right = exact(mp.mpf(u))
        assert abs(d - right) <= units * (info.eps * abs(right) + smallest), (u, d, right)


@pytest.mark.short(of=3)
@pytest.mark.parametrize("name", [*STEPS, *SIGNS, "spike_count"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("count", [64, 300_000])
def test_half_precision_is_rounded_once(name, dtype, count):
    """The slope is that of float32, rounded, for few numbers, and for many, which are computed in pieces."""
    torch.manual_seed(0)
    v = (torch.randn(count) * 2).to(dtype)
    operator = functools.partial(getattr(spikes, name))
    threshold = {"threshold": 0.7} if name in STEPS else {}
    slope = torch.autograd.grad(operator(x := v.clone().requires_grad_(), **threshold).sum(), x)[0]
    rounded = {"threshold": torch.tensor(0.7, dtype=dtype).item()} if name in STEPS else {}
    wide = torch.autograd.grad(operator(x := v.float().requires_grad_(), **rounded).sum(), x)[0]
    torch.testing.assert_close(slope, wide.to(dtype), rtol=torch.finfo(dtype).eps, atol=torch.finfo(dtype).tiny)
    assert (slope != wide.to(dtype)).float().mean() < 0.02


def test_a_parameter_sums_its_gradient_in_float32():
    """The gradient of a width over many bfloat16 elements is right, where a bfloat16 sum would stop growing at 256 terms."""
    v = torch.full((40_000,), 0.5, dtype=torch.bfloat16)
    alpha = torch.tensor(2.0, dtype=torch.bfloat16, requires_grad=True)
    (g,) = torch.autograd.grad(spikes.atan(v, alpha).sum(), alpha)
    wide = torch.tensor(2.0, requires_grad=True)
    (expected,) = torch.autograd.grad(spikes.atan(v.float(), wide).sum(), wide)
    torch.testing.assert_close(g.float(), expected, rtol=1e-2, atol=0)


@pytest.mark.parametrize("terms", [1, 2, 3, 8, 64])
def test_the_fourier_series_is_the_sum_of_its_waves(terms):
    """The series equals its sum, which is a product for a power of two where nothing is recorded."""
    u = torch.linspace(-9, 9, 1801, dtype=torch.float64, requires_grad=True)
    waves = sum(torch.cos(2 * math.pi * (2 * i + 1) * u.detach() / 8.0) for i in range(terms))
    (slope,) = torch.autograd.grad(spikes.squarewave_fourier_series(u, terms, 8.0).sum(), u)
    torch.testing.assert_close(slope, waves / 2, rtol=0, atol=1e-13 * terms**2)


UNITS = {
    **{
        n: ({"alpha": -1}, -1)
        for n in ("atan", "circ", "erf", "fake_numerical_gradient", "nonzero_sign_log_abs", "piecewise_exp")
    },
    **{n: ({"alpha": -1}, -1) for n in ("piecewise_quadratic", "rect", "sigmoid", "soft_sign")},
    "fast_sigmoid": ({"slope": -1}, 0),
    "leaky_k_relu": ({"leak": -1, "k": -1}, -1),
    "multi_gaussian": ({"sigma": 1, "mu": 1}, -1),
    "multi_spike": ({"threshold": 1, "window": 1}, -1),
    "periodic_exponential": ({"threshold": 1, "width": 1}, 0),
    "piecewise_leaky_relu": ({"w": 1, "c": -1}, -1),
    "sparse_fast_sigmoid": ({"slope": -1, "low": 1, "high": 1}, 0),
    "squarewave_fourier_series": ({"period": 1}, -1),
    "ste_heaviside": ({"clip_value": 1}, 0),
    "ste_sign": ({"clip_value": 1}, 0),
    "swish_sign": ({"beta": -1}, -1),
    "ternary_sign": ({"clip_value": 1, "threshold": 1}, 0),
}


@pytest.mark.parametrize("unit", [1e-6, 1e6])
@pytest.mark.parametrize("name", UNITS)
def test_the_unit_of_the_input_may_be_any(name, unit):
    """Volts, millivolts or microvolts: widths and thresholds in the same unit give the same slope, per unit."""
    powers, power = UNITS[name]
    defaults = {k: p.default for k, p in inspect.signature(getattr(spikes, name)).parameters.items() if k in powers}
    v = torch.tensor([-3.1, -1.2, -0.45, -0.21, -0.03, 0.02, 0.17, 0.4, 0.9, 2.7], dtype=torch.float64)

    def slope(c):
        parameters = {k: defaults[k] * c ** powers[k] for k in powers}
        return grad(lambda v: getattr(spikes, name)(v, **parameters).sum())(c * v)

    torch.testing.assert_close(slope(unit) / unit**power, slope(1.0), rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("name", ["atan", "circ", "erf", "fast_sigmoid", "sigmoid", "soft_sign", "s2nn", "piecewise_exp"])
def test_the_integral_of_the_slope_has_its_limits_far_out(name):
    """The derivative with respect to the factor of the slope is the integral R: in float32, at every power of ten on both sides,
    that of float64, where squares of the potential do not overflow.
    """
    f = getattr(spikes, name)
    v = torch.tensor([sign * 10.0**k for k in range(-30, 38) for sign in (1, -1)])

    def integral(v):
        return vmap(grad(lambda g, v: f(v, grad_scale=g)), (None, 0))(torch.ones((), dtype=v.dtype), v)

    torch.testing.assert_close(integral(v).double(), integral(v.double()), rtol=1e-5, atol=1e-30)
