"""First and second derivatives of spikes at numbers of every size, next to those of the surrogate in 40 digits and more."""

import itertools
import math

import mpmath
import pytest
import torch
from torch.func import grad, jvp

from fullgrad._suite.cases.spikes import CASES

pytestmark = pytest.mark.short

mp = mpmath.mp.clone()
mp.dps = 420
STEP = mp.mpf(10) ** -70


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
    "sparse_fast_sigmoid": lambda u, k: (lambda w, z: w / (1 + k * abs(w)) - z / (1 + k * z))(_limited(u, mp.mpf(0.1), 1.5), mp.mpf(0.1)),
    "q_pseudo_spike": lambda u, a: mp.sign(u) / 2 * (1 - (1 + 2 * abs(u) / (a - 1)) ** (1 - a)),
    "piecewise_leaky_relu": lambda u, w, c: u / (2 * w) if abs(u) < w else mp.sign(u) * (0.5 + c * (abs(u) - w)),
    "squarewave_fourier_series": lambda u, T: 2 / mp.pi * sum(mp.sin(2 * mp.pi * k * u / T) / k for k in (1, 3, 5)),
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
