"""First and second derivatives of spikes at numbers of every size, next to those of the surrogate in 40 digits and more."""

import functools
import itertools
import math

import mpmath
import pytest
import torch
from torch.func import grad, jvp

import fullgrad
from fullgrad._suite.cases.spikes import CASES
from fullgrad.spikes import spike_rate_escape

mp = mpmath.mp.clone()
mp.dps = 520  # a difference has the digits that a second difference of numbers like 1e-200 leaves
STEP = mp.mpf(10) ** -40


# --- The surrogates, in digits enough for differences of them -----------------------------------------------------------


def _normal(x):
    return mp.erfc(-x / mp.sqrt(2)) / 2


def _limited(u, low, high):
    return min(max(u, low), high)


def _of_s2nn(u, alpha, beta):
    return beta * mp.log1p(u) if u > 0 else mp.tanh(alpha * u / 2) / 2


def _of_escape(u, beta, slope):
    b = beta * (u - 1)
    return slope / beta * ((mp.exp(b) if b <= 0 else 2 - mp.exp(-b)) - mp.exp(-beta))


def _of_gaussians(u, sigma, mu, h, s):
    lobes = _normal((u - sigma) / (s * sigma)) + _normal((u + sigma) / (s * sigma)) - 1
    return (1 + h) * (_normal((u - mu) / sigma) - _normal(-mu / sigma)) - h * lobes


def _of_counts(v, threshold, window, scale):
    return scale * max(v - threshold, -window) / threshold


def _of_logs(z):
    return z if abs(z) <= 1 else mp.sign(z) * (1 + mp.log(abs(z)))


def _swish(x, beta):
    z = beta * x
    return 2 / (1 + mp.exp(-z)) * (1 + z / (1 + mp.exp(z))) - 1


# Without the series of a square wave: far out no float has its phase.
RISES = {
    "sigmoid": lambda u, a: mp.tanh(a * u / 2) / 2,
    "atan": lambda u, a: mp.atan(mp.pi / 2 * a * u) / mp.pi,
    "erf": lambda u, a: mp.erf(a * u) / 2,
    "circ": lambda u, a: a * u / (2 * mp.sqrt(1 + (a * u) ** 2)),
    "soft_sign": lambda u, a: a * u / (2 * (1 + abs(a * u))),
    "piecewise_exp": lambda u, a: mp.sign(u) * (1 - mp.exp(-a * abs(u))) / 2,
    "piecewise_quadratic": lambda u, a: (lambda z: z - z * abs(z) / 2)(_limited(a * u, -1, 1)),
    "rect": lambda u, a: _limited(a * u, -0.5, 0.5),
    "nonzero_sign_log_abs": lambda u, a: mp.sign(u) * mp.log1p(a * abs(u)),
    "fast_sigmoid": lambda u, k: u / (1 + k * abs(u)),
    "sparse_fast_sigmoid": lambda u, k: (lambda w, z: w / (1 + k * abs(w)) - z / (1 + k * z))(
        _limited(u, mp.mpf(0.1), 1.5), mp.mpf(0.1)
    ),
    "q_pseudo_spike": lambda u, a: mp.sign(u) / 2 * (1 - (1 + 2 * abs(u) / (a - 1)) ** (1 - a)),
    "piecewise_leaky_relu": lambda u, w, c: u / (2 * w) if abs(u) < w else mp.sign(u) * (0.5 + c * (abs(u) - w)),
    "s2nn": _of_s2nn,
    "leaky_k_relu": lambda u, leak, k: (leak if u < 0 else k) * u,
    "log_tailed_relu": lambda u, a: a * u if u <= 0 else _of_logs(u),
    "fake_numerical_gradient": lambda u, a: _of_logs(a * u),
    "spike_rate_escape": _of_escape,
    "dspike": lambda u, a: mp.tanh(a * _limited(u, -0.5, 0.5)) / (2 * mp.tanh(a / 2)),
    "multi_gaussian": _of_gaussians,
    "ste_heaviside": lambda u, c: _limited(u, -c, c),
    "sso": lambda u, mean, variance: u if u >= 0 else variance * (mp.mpf(0.4) - 0.5 + mean) * u,
}
SURROGATES = {
    **{name: (lambda r: lambda v, *p: p[-1] * r(v - p[-2], *p[:-2]))(rise) for name, rise in RISES.items()},
    "ste_sign": lambda x, c: _limited(x, -c, c),
    "ternary_sign": lambda x, t, c: _limited(x, -c, c),
    "swish_sign": _swish,
    "multi_spike": _of_counts,
}
LEARNED = {c.name.split(".")[1].split()[0]: c for c in CASES if c.name.endswith(" learned")}

# Parameters of which the formulas lose digits where they are far from 1, as docs/limits.md says.
ORDINARY = {
    "dspike": (1,),
    "q_pseudo_spike": (1,),
    "sparse_fast_sigmoid": (1,),
    "spike_rate_escape": (1,),
    "multi_gaussian": (1, 2, 3, 4, 6),
}
# Of these, derivatives by the parameter lose digits at every potential.
CANCEL = ("dspike", "q_pseudo_spike", "multi_gaussian", "sparse_fast_sigmoid")
EXPONENTS = {torch.float32: (-20, -3, 0.2, 1.25, 4.1, 8.4, 10.3, 15.1, 20, 30), torch.float64: (-20, 1.25, 8.4, 15.1, 40, 80)}


def points(name, dtype):
    """Inputs of one element each, as columns: the potential of every size, then each parameter, at several potentials."""
    usual = [t.flatten()[0].item() for t in LEARNED[name].tensors]
    if name in RISES:
        usual[-2] = 0.0  # so that no difference is rounded
    sizes = [1.3 * 10.0**k for k in EXPONENTS[dtype]]
    found = [[sign * v, *usual[1:]] for v in sizes for sign in (1, -1)]
    for i in range(1, len(usual)):
        if usual[i] and i not in ORDINARY.get(name, ()):
            for p in [p for p in sizes if 1e-16 < p < 1e16]:  # the squares of its inverse are numbers, too
                found += [[v, *usual[1:i], p, *usual[i + 1 :]] for v in (0.37, -17.8, 0.6 / p)]
    return [torch.tensor(column, dtype=dtype) for column in zip(*found, strict=True)]


def exact(f, x, steps):
    """The gradient and the Hessian of a function of numbers, by differences of so many digits that they are exact."""
    n = len(x)
    at = functools.cache(lambda *offsets: f(*[a + o * h for a, o, h in zip(x, offsets, steps, strict=True)]))

    def moved(*moves):
        return at(*[sum(by for i, by in moves if i == k) for k in range(n)])

    gradient = [(moved((i, 1)) - moved((i, -1))) / (2 * steps[i]) for i in range(n)]
    hessian = {}
    for i, j in itertools.combinations_with_replacement(range(n), 2):
        four = moved((i, 1), (j, 1)) - moved((i, 1), (j, -1)) - moved((i, -1), (j, 1)) + moved((i, -1), (j, -1))
        hessian[i, j] = hessian[j, i] = four / (4 * steps[i] * steps[j])
    return gradient, hessian


def derivatives(operator, inputs):
    """First derivatives, and second ones by reverse over reverse and by forward over reverse, as named lists."""
    places = range(len(inputs))
    leaves = [x.clone().requires_grad_() for x in inputs]
    first = torch.autograd.grad(operator(*leaves).sum(), leaves, create_graph=True, materialize_grads=True)
    reverse, forward = {}, {}
    for i in places:
        parts = (
            torch.autograd.grad(first[i].sum(), leaves, retain_graph=True, materialize_grads=True)
            if first[i].requires_grad
            else ()
        )
        reverse |= {(i, j): g for j, g in enumerate(parts)}
    for j in places:

        def gradient(x, j=j):
            return grad(lambda *a: operator(*a).sum(), tuple(places))(*inputs[:j], x, *inputs[j + 1 :])

        _, tangents = jvp(gradient, (inputs[j],), (torch.ones_like(inputs[j]),))
        forward |= {(i, j): t for i, t in enumerate(tangents)}
    return [g.detach() for g in first], {"reverse over reverse": reverse, "forward over reverse": forward}


def wrong(found, expected, noise, dtype):
    """Whether a number is NaN, or further from the exact one than rounding explains; beyond the largest, only its sign counts."""
    info = torch.finfo(dtype)
    if math.isnan(found) or (math.isinf(found) and abs(expected) < info.max / 100):
        return True
    if abs(expected) > info.max / 100:
        return found * mp.sign(expected) < info.max / 1e4
    return abs(found - expected) > 3e4 * info.eps * (abs(expected) + noise / 1000) + 1e4 * info.tiny


def failures(name, operator, dtype):
    """What is wrong in the derivatives of an operator, as text."""
    inputs = points(name, dtype)
    first, second = derivatives(operator, inputs)
    told, left_out = [], {*ORDINARY[name]} if name in CANCEL else set()
    for k, x in enumerate(zip(*[c.tolist() for c in inputs], strict=True)):
        x = [*map(mp.mpf, x)]
        sizes = [abs(a) for a in x]
        if name in RISES:
            sizes[-2] = sizes[0]
        gradient, hessian = exact(SURROGATES[name], x, [STEP * size for size in sizes])
        for i, g in enumerate(first):
            if i not in left_out and wrong(g[k].item(), gradient[i], 0, dtype):
                told.append(f"first derivative {i} at {[*map(float, x)]}: {g[k].item()}, not {float(gradient[i])}")
        for way, parts in second.items():
            for (i, j), h in parts.items():
                noise = abs(gradient[i]) / sizes[j] + abs(gradient[j]) / sizes[i]
                if not {i, j} & left_out and wrong(h[k].item(), hessian[i, j], noise, dtype):
                    told.append(f"{way} {i, j} at {[*map(float, x)]}: {h[k].item()}, not {float(hessian[i, j])}")
    return told


@pytest.mark.sampled(of=4)
@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_derivatives_far_out_are_exact(name, dtype):
    """First and second derivatives by every input have the right sign and size, wherever they are numbers of the dtype."""
    told = failures(name, LEARNED[name].op, dtype)
    assert not told, f"{len(told)}, such as\n" + "\n".join(told[:: len(told) // 8 + 1])


def test_a_power_that_overflows_is_seen():
    """The slope of an arctangent as it is written in books: far out, its derivative by the width has the other sign."""

    def book(v, alpha, threshold, scale):
        return scale * torch.atan(math.pi / 2 * alpha * (v - threshold)) / math.pi

    assert any("over reverse (0, 1)" in line for line in failures("atan", book, torch.float32))


# --- Numbers of another dtype ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SURROGATES)
def test_parameters_of_a_narrower_dtype(name):
    """Potentials in float64 and parameters in float32 have derivatives of both orders, at the extremes too."""
    f = LEARNED[name].op
    rest = [t.flatten()[:1].float().requires_grad_() for t in LEARNED[name].tensors[1:]]
    v = torch.tensor([1e300, -1e300, 1e38, 1e-300, 0.5], dtype=torch.float64, requires_grad=True)
    first = torch.autograd.grad(f(v, *rest).sum(), (v, *rest), create_graph=True, materialize_grads=True)
    for g in first:
        if g.requires_grad:
            torch.autograd.grad(g.sum(), (v, *rest), retain_graph=True, materialize_grads=True)
    assert not first[0].isnan().any()


@pytest.mark.parametrize("name", ["multi_spike", "ste_sign", "ternary_sign", "swish_sign", *RISES])
@pytest.mark.parametrize("number", [1e-45, 1e-40, 1e40])
def test_parameters_beyond_float32_as_numbers(name, number):
    """A parameter that float32 does not have is used as a limit, and raises nothing."""
    case = LEARNED[name]
    usual = [t.flatten()[0].item() for t in case.tensors]
    for i in range(1, len(usual)):
        if name == "q_pseudo_spike" and i == 1 and number < 1:
            continue
        v = torch.tensor([0.5, -0.5, 3.0], requires_grad=True)
        y = case.op(v, *usual[1:i], number, *usual[i + 1 :])
        (g,) = torch.autograd.grad(y.sum(), v, create_graph=True)
        if g.requires_grad:
            torch.autograd.grad(g.sum(), v)


HEAVY_TAILED = ["atan", "circ", "soft_sign", "fast_sigmoid", "nonzero_sign_log_abs"]


@pytest.mark.parametrize("name", HEAVY_TAILED)
@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("width", [1e20, 1e25])
def test_tiny_widths(name, width, learned):
    """Slopes of inverse widths whose squares overflow are exact, and none of the second derivatives is NaN."""
    operator, rise, names = getattr(fullgrad.spikes, name), RISES[name], ["u", "alpha"]
    for u in (0.0, 1e-26, -3e-21, 1e-15, -1.0, 1e10):
        v, alpha = torch.tensor(u, requires_grad=True), torch.tensor(width, requires_grad=True)
        leaves = (v, alpha) if learned else (v,)
        x = [mp.mpf(v.item()), mp.mpf(alpha.item())]
        expected, hessian = exact(rise, x, [STEP * (abs(x[0]) or 1 / x[1]), STEP * x[1]])
        plain = torch.autograd.grad(operator(v, alpha if learned else width), leaves)
        first = torch.autograd.grad(operator(v, alpha if learned else width), leaves, create_graph=True)
        second = torch.autograd.grad(first[0], leaves)
        for part, other, by, d in zip(plain, first, names, expected, strict=False):
            assert not wrong(part.item(), d, 0, v.dtype), f"by {by} at {u}: {part.item()}, not {float(d)}"
            assert not wrong(other.item(), d, 0, v.dtype), f"by {by} at {u}, recorded: {other.item()}, not {float(d)}"
        for j, h in enumerate(second):
            noise = abs(expected[0]) / (abs(x[j]) or 1 / x[1])
            assert not wrong(h.item(), hessian[0, j], noise, v.dtype), (
                f"{names[j]} at {u}: {h.item()}, not {float(hessian[0, j])}"
            )


@pytest.mark.parametrize("learned", [True, False])
def test_the_slope_that_ends_at_the_inverse_distance(learned):
    """It is the inverse distance up to the largest number and 0 at infinity; by the width it is the inverse of that."""
    v = torch.tensor([1e15, 1e38, -3e38, math.inf], requires_grad=True)
    alpha = torch.tensor(100.0, requires_grad=learned)
    for create_graph in (False, True):
        y = fullgrad.spikes.nonzero_sign_log_abs(v, alpha if learned else 100.0).sum()
        found = torch.autograd.grad(y, (v, alpha) if learned else v, create_graph=create_graph)
        torch.testing.assert_close(found[0], 1 / v.abs(), rtol=1e-5, atol=3e-39)
    for v in (1e15, 1e38, 3e38) if learned else ():
        by_width = grad(fullgrad.spikes.nonzero_sign_log_abs, 1)(torch.tensor(v), alpha.detach())
        plain = torch.autograd.grad(fullgrad.spikes.nonzero_sign_log_abs(torch.tensor(v), alpha), alpha)[0]
        torch.testing.assert_close(torch.stack([by_width, plain]), torch.full((2,), 0.01))


@pytest.mark.parametrize(("v", "beta"), [(-20.0, 1.0), (-10.0, 2.0), (-5.0, 5.0), (-1.5, 1.0)])
def test_the_escape_rate_left_of_the_threshold(v, beta):
    """Its slope by the potential and the factor is the exponential, whichever comes first."""
    v, beta, factor = torch.tensor(v), torch.tensor(beta), torch.tensor(25.0)
    for first, second in ((2, 0), (0, 2)):
        found = grad(grad(spike_rate_escape, first), second)(v, beta, factor)
        torch.testing.assert_close(found, torch.exp(beta * (v - 1)), rtol=1e-5, atol=0)


@pytest.mark.parametrize("beta", [0.5, 5.0, 20.0])
@pytest.mark.parametrize("u", [-5.0, -1.5, -1e-4, 0.0, 1e-6, 0.3, 1.0, 1.2, 4.0])
def test_the_escape_rate_by_its_width(u, beta):
    """The integral differentiated with respect to beta keeps its digits, far below the threshold and next to it."""
    v, b = torch.tensor(u), torch.tensor(beta)
    x = [mp.mpf(v.item()), mp.mpf(b.item()), mp.mpf(25)]
    (_, by_beta, _), hessian = exact(_of_escape, x, [STEP, STEP, STEP])
    found = grad(spike_rate_escape, 1)(v, b)
    assert abs(found.item() - by_beta) <= 1e-5 * abs(by_beta)
    second = grad(grad(spike_rate_escape, 1), 1)(v, b)
    assert abs(second.item() - hessian[1, 1]) <= 1e-4 * abs(hessian[1, 1])


@pytest.mark.parametrize("v", [1e3, -1e8, 1e12, 1e18, -1e25])
@pytest.mark.parametrize("alpha", [1.1, 1.5, 2.0])
def test_the_power_of_q_pseudo_spike_far_out(alpha, v):
    """Its slope, its integral by the exponent and the slope by the exponent are exact, where they are numbers of the dtype."""
    leaves = torch.tensor(v, requires_grad=True), torch.tensor(alpha, requires_grad=True)
    x = [mp.mpf(t.item()) for t in leaves]
    expected, hessian = exact(RISES["q_pseudo_spike"], x, [STEP * abs(a) for a in x])
    first = torch.autograd.grad(fullgrad.spikes.q_pseudo_spike(*leaves), leaves, create_graph=True)
    second = torch.autograd.grad(first[0], leaves)
    for found, d in zip((*first, *second), (*expected, hessian[0, 0], hessian[0, 1]), strict=True):
        assert abs(found.item() - d) <= 1e-4 * abs(d) + 1e-40, f"{found.item()}, not {float(d)}"
