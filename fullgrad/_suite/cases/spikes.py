"""Cases of the family `spikes`: each operator with numbers and with parameters that learn; the surrogates as plain torch code.

The surrogate of a step is ``S = 1/2 + grad_scale R(v - threshold)``. Every step has the rules of one base, and its formulas are
compared in `tests/spikes` in every run; so a few of them are in the short suite, the rest in the long tests.
"""

import functools
import importlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fullgrad import spikes
from fullgrad._suite.cases._case import Case, in_compute_dtype, numbers, straight_through

V = numbers(4, 3)
THRESHOLD, GRAD_SCALE = numbers(4, 1, scale=0.3, seed=1), torch.tensor(0.7, dtype=torch.float64)
UP = torch.tensor([1.0, 1.1, 0.8], dtype=torch.float64)


# --- Surrogates as they stand, of u = v - threshold; those of x for signs and counts ----------------------------------------


def _exp(x: Any) -> Any:
    return torch.exp(x) if isinstance(x, Tensor) else math.exp(x)


def _tanh(x: Any) -> Any:
    return torch.tanh(x) if isinstance(x, Tensor) else math.tanh(x)


def _normal_cdf(x: Any) -> Any:
    return 0.5 * (1 + (torch.erf(x / math.sqrt(2)) if isinstance(x, Tensor) else math.erf(x / math.sqrt(2))))


def _piecewise_quadratic(u, alpha):
    z = alpha * u
    return torch.where(z.abs() < 1, z - torch.sign(z) * z * z / 2, torch.sign(z) / 2)


def _q_pseudo_spike(u, alpha):
    return torch.sign(u) / 2 * (1 - (1 + 2 * u.abs() / (alpha - 1)) ** (1 - alpha))


def _piecewise_leaky_relu(u, w, c):
    return torch.where(u.abs() < w, u / (2 * w), torch.sign(u) * (0.5 + c * (u.abs() - w)))


def _squarewave(u, terms, period):
    waves = [torch.sin((2 * i + 1) * 2 * math.pi * u / period) / (2 * i + 1) for i in range(terms)]
    return 2 / math.pi * functools.reduce(torch.add, waves)


def _sparse_fast_sigmoid(u, slope, low, high):
    at, zero = torch.clamp(u, low, high), min(max(0.0, low), high)
    return at / (1 + slope * at.abs()) - zero / (1 + slope * abs(zero))


def _fake_numerical_gradient(u, alpha):
    z = alpha * u
    return torch.where(z.abs() <= 1, z, torch.sign(z) * (1 + torch.log(torch.clamp(z.abs(), min=1))))


def _log_tailed_relu(u, alpha):
    return torch.where(u <= 0, alpha * u, torch.where(u <= 1, u, 1 + torch.log(torch.clamp(u, min=1))))


def _spike_rate_escape(u, beta, slope):
    b = beta * (u - 1)
    return slope / beta * (torch.where(b <= 0, torch.exp(b), 2 - torch.exp(-b)) - _exp(-beta))


def _dspike(u, alpha):
    return _tanh(alpha * torch.clamp(u, -0.5, 0.5)) / (2 * _tanh(alpha / 2))


def _multi_gaussian(u, sigma, mu, h, s):
    lobes = _normal_cdf((u - sigma) / (s * sigma)) + _normal_cdf((u + sigma) / (s * sigma)) - 1
    return (1 + h) * (_normal_cdf((u - mu) / sigma) - _normal_cdf(-mu / sigma)) - h * lobes


def _ste_heaviside(u, clip):
    return u if clip is None else torch.clamp(u, -clip, clip)


def _swish_sign(x, beta):
    z = beta * x
    return 2 * torch.sigmoid(z) * (1 + z * torch.sigmoid(-z)) - 1


def _approx_sign(x):
    return torch.where(x.abs() < 1, 2 * x - x * x.abs(), torch.sign(x))


def _multi_spike(v, threshold, max_spikes, window, grad_scale):
    return 1 + grad_scale * (torch.maximum(v - threshold, torch.zeros_like(v) - window) / threshold)


def _periodic_exponential(v, threshold, width, max_spikes, grad_scale):
    u = v - threshold
    n = torch.clamp(torch.round(v / threshold).detach(), min=1)
    r, a = v - n * threshold, threshold / width
    above = (n - 1) * width * (1 - _exp(-a)) + torch.sign(r) * width / 2 * (1 - torch.exp(-2 * r.abs() / width))
    return 1 + grad_scale * torch.where(u < 0, width * (torch.exp(torch.clamp(u, max=0) / width) - 1), above)


# --- Values --------------------------------------------------------------------------------------------------------------


def _spread(value: Tensor, *inputs: Any) -> Tensor:
    """A value expanded to the shape to which all inputs broadcast."""
    shape = torch.broadcast_shapes(value.shape, *[a.shape for a in inputs if isinstance(a, Tensor)])
    return value if value.shape == shape else value.expand(shape).clone()


def step(v: Tensor, *inputs: Any) -> Tensor:
    """The plain step of ``(v, *parameters, threshold, grad_scale, tie)``."""
    *parameters, threshold, grad_scale, tie = inputs
    dtype = torch.result_type(v, threshold) if isinstance(threshold, Tensor) else v.dtype
    at, above = (v >= threshold).to(dtype), (v > threshold).to(dtype)
    return _spread({1.0: at, 0.0: above}.get(tie, (at + above) / 2), *parameters, threshold, grad_scale)


def _sign(x: Tensor, *inputs: Any) -> Tensor:
    return _spread(torch.where(x >= 0, 1.0, -1.0).to(x.dtype), *inputs)


def _ternary(x: Tensor, threshold: Any, clip_value: Any, tie: float) -> Tensor:
    return _spread((x >= threshold).to(x.dtype) - (x <= -threshold).to(x.dtype), clip_value)


@in_compute_dtype
def _count(v: Tensor, threshold: Any, max_spikes: Any, *inputs: Any) -> Tensor:
    return _spread(torch.clamp(torch.trunc(v / threshold), 0, max_spikes) + 0.0, *inputs)


# --- The cases -----------------------------------------------------------------------------------------------------------

# The operators of the short suite: one for each kind of formula.
SHORT = ("sigmoid", "rect", "leaky_k_relu", "ste_sign", "multi_spike", "jumprelu learned")

# R, and the parameters: as numbers, and as tensors where they can be.
STEPS: dict[str, tuple[Callable[..., Tensor], tuple[Any, ...], tuple[Any, ...]]] = {
    "sigmoid": (lambda u, alpha: torch.sigmoid(alpha * u) - 0.5, (4.0,), (2 * UP,)),
    "atan": (lambda u, alpha: torch.atan(math.pi / 2 * alpha * u) / math.pi, (2.0,), (UP,)),
    "erf": (lambda u, alpha: torch.erf(alpha * u) / 2, (2.0,), (UP,)),
    "circ": (lambda u, alpha: alpha * u / (2 * torch.sqrt(1 + (alpha * u) ** 2)), (2.0,), (UP,)),
    "soft_sign": (lambda u, alpha: alpha * u / (2 * (1 + (alpha * u).abs())), (2.0,), (UP,)),
    "piecewise_exp": (lambda u, alpha: torch.sign(u) * (1 - torch.exp(-alpha * u.abs())) / 2, (1.0,), (UP,)),
    "piecewise_quadratic": (_piecewise_quadratic, (1.0,), (0.5 * UP,)),
    "rect": (lambda u, alpha: torch.clamp(alpha * u, -0.5, 0.5), (1.0,), (0.3 * UP,)),
    "nonzero_sign_log_abs": (lambda u, alpha: torch.sign(u) * torch.log1p(alpha * u.abs()), (1.0,), (UP,)),
    "fast_sigmoid": (lambda u, slope: u / (1 + slope * u.abs()), (25.0,), (3 * UP,)),
    "sparse_fast_sigmoid": (_sparse_fast_sigmoid, (25.0, -1.0, 1.0), (3 * UP, 0.1, 1.5)),
    "q_pseudo_spike": (_q_pseudo_spike, (2.0,), (8 * UP,)),  # above 1 in the samples of a batch too, which are halved twice
    "piecewise_leaky_relu": (_piecewise_leaky_relu, (1.0, 0.01), (UP, 0.1 * UP)),
    "squarewave_fourier_series": (_squarewave, (1, 8.0), (3, 5 * UP)),
    "s2nn": (
        lambda u, alpha, beta: torch.where(u < 0, torch.sigmoid(alpha * u) - 0.5, beta * torch.log1p(torch.clamp(u, min=0))),
        (4.0, 1.0),
        (2 * UP, UP),
    ),
    "leaky_k_relu": (lambda u, leak, k: torch.where(u < 0, leak * u, k * u), (0.0, 1.0), (0.2 * UP, UP)),
    "log_tailed_relu": (_log_tailed_relu, (0.0,), (0.2 * UP,)),
    "fake_numerical_gradient": (_fake_numerical_gradient, (0.3,), (UP,)),
    "spike_rate_escape": (_spike_rate_escape, (1.0, 25.0), (UP, 2 * UP)),
    "dspike": (_dspike, (3.0,), (3 * UP,)),
    "multi_gaussian": (_multi_gaussian, (0.5, 0.0, 0.15, 6.0), (0.5 * UP, 0.2 * UP, 0.15 * UP, 5 * UP)),
    "ste_heaviside": (_ste_heaviside, (1.0,), (UP,)),
}


def surrogate_of(rise: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The surrogate S of a step, as a function of the operator's inputs."""

    def surrogate(v: Tensor, *inputs: Any) -> Tensor:
        *parameters, threshold, grad_scale, _ = inputs
        return _spread(0.5 + grad_scale * rise(v - threshold, *parameters), *inputs)

    return surrogate


def _constant(v: Any) -> Any:
    return v.detach() if isinstance(v, Tensor) else v


def _case(name: str, inputs: tuple[Any, ...], surrogate: Any, value: Any, *, learned: bool = False, **options: Any) -> Case:
    words = " learned" * learned
    module = importlib.import_module(f"fullgrad.spikes._{name}")
    operator_class = getattr(module, "".join(part.capitalize() for part in name.split("_")))
    return Case(
        name=f"spikes.{name}{words}",
        covers=(f"spikes.{name}",),
        operator=options.pop("operator", getattr(spikes, name)),
        inputs=inputs,
        surrogate=lambda *a: straight_through(value(*map(_constant, a)), surrogate(*a)),
        value=value,
        smooth_forwards={operator_class: options.pop("smooth_forward", surrogate)},
        exhaustive=options.pop("exhaustive", learned != (name == "sigmoid")),
        long=not {name, name + words} & {*SHORT},
        **options,
    )


def _steps() -> Iterator[Case]:
    for name, (rise, plain, learned) in STEPS.items():
        surrogate = surrogate_of(rise)
        yield _case(name, (V, *plain, 0.0, 1.0, 1.0), surrogate, step)
        yield _case(name, (V, *learned, THRESHOLD, GRAD_SCALE, 1.0), surrogate, step, learned=True)


def _signs() -> Iterator[Case]:
    yield _case("ste_sign", (V, 1.0, 1.0), lambda x, clip, tie: torch.clamp(x, -clip, clip), _sign)
    yield _case("ste_sign", (V, UP, 1.0), lambda x, clip, tie: torch.clamp(x, -clip, clip), _sign, learned=True)
    yield _case("approx_sign", (V, 1.0), lambda x, tie: _approx_sign(x), _sign)
    yield _case("swish_sign", (V, 5.0, 1.0), lambda x, beta, tie: _swish_sign(x, beta), _sign)
    yield _case("swish_sign", (V, UP, 1.0), lambda x, beta, tie: _swish_sign(x, beta), _sign, learned=True)
    ternary = lambda x, t, clip, tie: torch.clamp(x, -clip, clip) + 0 * t  # noqa: E731
    yield _case("ternary_sign", (V, 0.05, 1.0, 1.0), ternary, _ternary)
    yield _case("ternary_sign", (V, 0.5 * UP, UP, 1.0), ternary, _ternary, learned=True)
    yield _case("abs_binary_sign_grad", (V, 1.0), lambda x, tie: x.abs(), lambda x, tie: x.abs())


def _counts() -> Iterator[Case]:
    widths = 0.6 + 0.2 * UP
    yield _case("multi_spike", (V, 1.0, None, 1.0, 1.0), _multi_spike, _count)
    yield _case("multi_spike", (V, UP, 2, widths, GRAD_SCALE), _multi_spike, _count, learned=True)
    by_width = lambda v, threshold, width, most, scale: _count(v, threshold, most, width, scale)  # noqa: E731
    periodic = lambda v, t, width, most, scale: _periodic_exponential(v, t, width, most, scale)  # noqa: E731
    yield _case("periodic_exponential", (V, 1.0, 0.5, None, 1.0), periodic, by_width)
    yield _case("periodic_exponential", (V, UP, widths, 2, GRAD_SCALE), periodic, by_width, learned=True)
    clamped = lambda v, most, window: torch.clamp(v, *(window or (0, most)))  # noqa: E731
    yield _case(
        "spike_count",
        (V, 4, None),
        clamped,
        lambda v, most, window: torch.round(torch.clamp(v, 0, most)),
        smooth_forward=lambda v, most, low, high: torch.clamp(v, low, high),
    )


def _random() -> Iterator[Case]:
    """Cases with given noise, the same for every element: it broadcasts with inputs of every shape."""

    def rise(u: Tensor, mean: Any, variance: Any) -> Tensor:
        return torch.where(u < 0, variance * (0.4 - 0.5 + mean) * u, u)

    def with_noise(v: Tensor, mean: Any, variance: Any, *rest: Any) -> Tensor:
        return spikes.sso(v, mean, variance, v.new_full((), 0.4), *rest)

    for learned, inputs in ((False, (0.1, 0.2, 0.0, 1.0, 1.0)), (True, (0.3 * UP, 0.2 * UP, THRESHOLD, GRAD_SCALE, 1.0))):
        yield _case(
            "sso",
            (V, *inputs),
            surrogate_of(rise),
            step,
            learned=learned,
            operator=with_noise,
            smooth_forward=lambda v, mean, variance, noise, *rest: surrogate_of(rise)(v, mean, variance, *rest),
            max_saved_bytes=1,  # the noise, for any size
            elementwise=False,
        )
    yield _case(
        "bernoulli",
        (V,),
        lambda p: p,
        lambda p: (p.new_full((), 0.4) < p).to(p.dtype),
        operator=lambda p: spikes.bernoulli(p, p.new_full((), 0.4)),
        smooth_forward=lambda p, noise: p.clone(),
        elementwise=False,
    )


def _jumprelu(x: Tensor, threshold: Any, bandwidth: float, of_input: str) -> Tensor:
    inside = ((x - threshold).detach().abs() < bandwidth / 2).to(x.dtype)
    rises = threshold / bandwidth * x * inside if of_input == "ste" else 0
    return torch.where(x > threshold, x, 0) + rises - inside * threshold * threshold / (2 * bandwidth)


def _jump(x: Tensor, threshold: Any, *_: Any) -> Tensor:
    if isinstance(threshold, Tensor):
        return torch.where(x.isnan() | threshold.isnan(), math.nan, torch.where(x > threshold, x, 0))
    return torch.where(x.isnan(), math.nan, torch.where(x > threshold, x, 0))


def _jumps() -> Iterator[Case]:
    # With "ste" the threshold is a number: mixed second derivatives of the declared ones depend on the order.
    yield _case("jumprelu", (V, UP, 1.5, "mask"), _jumprelu, _jump, learned=True, exhaustive=False)
    yield _case("jumprelu", (V, 0.7, 1.5, "ste"), _jumprelu, _jump)


CASES = [*_steps(), *_signs(), *_counts(), *_random(), *_jumps()]
