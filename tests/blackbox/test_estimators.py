"""Perturbed solvers, smoothed functions and score functions: closed forms, unbiasedness, and formulas written by hand."""

import math

import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from fullgrad import blackbox
from fullgrad._core.noise import gumbel_like, normal_like

F64 = torch.float64
X = torch.tensor([0.3, -0.5, 1.0], dtype=F64)
DRAWS = 100_000


def close(found, expected, tolerance=1e-12):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def argmax(x):
    return (x == x.amax(-1, keepdim=True)).to(x.dtype)


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def within(found, expected, errors=5.0):
    """The mean of samples in the first dimension lies within some standard errors of what is expected."""
    error = found.std(0) / math.sqrt(len(found))
    assert ((found.mean(0) - expected).abs() <= errors * error + 1e-12).all(), (found.mean(0), expected, error)


# --- Closed forms ------------------------------------------------------------------------------------------------------------


def test_gumbel_noise_gives_the_softmax():
    """The mean of an argmax under Gumbel noise, its Jacobian and its Hessian are those of a softmax, in 5 standard errors."""
    z = gumbel_like(X, (DRAWS,), generator=torch.Generator().manual_seed(0)).reshape(-1, 50, 3)
    options = {"samples": 50, "sigma": 0.7, "distribution": "gumbel", "vmap_method": "broadcast"}

    def f(x, z):
        return blackbox.perturbed(argmax, x, noise=z, **options)

    def softmax(x):
        return torch.softmax(x / 0.7, -1)

    within(vmap(f, (None, 0))(X, z), softmax(X))
    within(vmap(jacrev(f), (None, 0))(X, z), jacrev(softmax)(X))
    within(vmap(jacfwd(jacrev(f)), (None, 0))(X, z), jacfwd(jacrev(softmax))(X))


@pytest.mark.parametrize("antithetic", [True, False])
def test_smoothed_square(antithetic):
    """The square under normal noise has the value x² + σ², the derivative 2 x and the second derivative 2."""
    x, sigma, z = torch.tensor(0.8, dtype=F64), 0.5, noise(2_000, 20)

    def f(x, z):
        return blackbox.smoothed(
            lambda x: x * x, x, samples=20, sigma=sigma, antithetic=antithetic, noise=z, vmap_method="broadcast"
        )

    within(vmap(f, (None, 0))(x, z), x * x + sigma**2)
    within(vmap(grad(f), (None, 0))(x, z), 2 * x)
    within(vmap(grad(grad(f)), (None, 0))(x, z), torch.tensor(2.0, dtype=F64))


@pytest.mark.parametrize("x", [-0.3, 0.0, 0.9])
def test_smoothed_step(x):
    """A step under normal noise is its distribution function, and the derivatives are the density and the slope of that."""
    x, sigma, z = torch.tensor(x, dtype=F64), 0.5, noise(2_000, 50, seed=1)

    def f(x, z):
        return blackbox.smoothed(lambda x: (x > 0).double(), x, samples=50, sigma=sigma, noise=z, vmap_method="broadcast")

    def exact(x):
        return torch.special.ndtr(x / sigma)

    within(vmap(f, (None, 0))(x, z), exact(x))
    within(vmap(grad(f), (None, 0))(x, z), grad(exact)(x))
    within(vmap(grad(grad(f)), (None, 0))(x, z), grad(grad(exact))(x))


def test_perturbed_of_normal_noise_is_unbiased():
    """The argmax of two elements under normal noise has the derivative of the distribution function of their difference."""
    x, z = X[:2], noise(2_000, 50, 2, seed=2)

    def f(x, z):
        return blackbox.perturbed(argmax, x, samples=50, sigma=0.6, noise=z, vmap_method="broadcast")

    def exact(x):
        p = torch.special.ndtr((x[0] - x[1]) / (0.6 * math.sqrt(2)))
        return torch.stack([p, 1 - p])

    within(vmap(f, (None, 0))(x, z), exact(x))
    within(vmap(jacrev(f), (None, 0))(x, z), jacrev(exact)(x))


def test_third_derivative_is_unbiased():
    """The third derivative of a cube under normal noise is 6."""
    x, z = torch.tensor(0.4, dtype=F64), noise(4_000, 50, seed=3)

    def f(x, z):
        return blackbox.smoothed(lambda x: x**3, x, samples=50, noise=z, vmap_method="broadcast")

    within(vmap(grad(grad(grad(f))), (None, 0))(x, z), torch.tensor(6.0, dtype=F64))


# --- Formulas ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("distribution", ["normal", "gumbel"])
@pytest.mark.parametrize("samples", [1, 4])
def test_formula_of_perturbed(distribution, samples):
    """The Jacobian is the sum over draws of (y - mean of the others) score, in both modes; the draws are those of the value."""
    z, sigma = noise(samples, 3), 0.7
    options = {"samples": samples, "sigma": sigma, "distribution": distribution, "noise": z}
    y = argmax(X + sigma * z) * torch.tensor([1.0, 2.0, 3.0], dtype=F64)
    score = z if distribution == "normal" else 1 - torch.exp(-z)
    others = [torch.cat([y[:i], y[i + 1 :]]).mean(0) if samples > 1 else 0 for i in range(samples)]
    expected = sum(torch.outer(y[i] - others[i], score[i]) for i in range(samples)) / (sigma * samples)

    def f(x):
        return blackbox.perturbed(lambda x: argmax(x) * torch.tensor([1.0, 2.0, 3.0], dtype=F64), x, **options)

    close(f(X), y.mean(0))
    close(jacrev(f)(X), expected)
    close(jacfwd(f)(X), expected)


@pytest.mark.parametrize("samples", [1, 3])
def test_formulas_of_smoothed(samples):
    """The first two derivatives of pairs are those of the docstring."""
    z, sigma = noise(samples, 3), 0.7

    def f(x):
        return (x**3).sum() + x[0] * x[1]

    def smoothed(x):
        return blackbox.smoothed(f, x, samples=samples, sigma=sigma, noise=z)

    up, down = torch.stack([f(X + sigma * v) for v in z]), torch.stack([f(X - sigma * v) for v in z])
    pairs = (up + down) / 2
    b = (pairs.sum() - pairs) / (samples - 1) if samples > 1 else torch.zeros(1, dtype=F64)
    hermite = torch.stack([torch.outer(v, v) - torch.eye(3, dtype=F64) for v in z])
    close(smoothed(X), pairs.mean())
    close(grad(smoothed)(X), ((up - down).unsqueeze(-1) * z).sum(0) / (2 * sigma * samples))
    second = ((up + down - 2 * b).reshape(-1, 1, 1) * hermite).sum(0) / (2 * sigma**2 * samples)
    close(hessian(smoothed)(X), second)
    close(jacrev(jacrev(smoothed))(X), second)


@pytest.mark.parametrize("maximize", [True, False])
def test_fenchel_young_loss(maximize):
    """The gradient is the perturbed solution less the target, its derivative that of `perturbed`, and the value is exact."""
    z, target = noise(5, 3), torch.tensor([1.0, 0.0, 0.0], dtype=F64)
    sign = 1 if maximize else -1

    def solver(x):
        return argmax(sign * x)

    def loss(x, t=target):
        return blackbox.fenchel_young_loss(solver, x, t, samples=5, sigma=0.4, maximize=maximize, noise=z)

    def perturbed(x):
        return blackbox.perturbed(solver, x, samples=5, sigma=0.4, noise=z)

    best = (sign * (X + 0.4 * z)).amax(-1).mean() - sign * X @ target
    close(loss(X), best)
    close(grad(loss)(X), sign * (perturbed(X) - target))
    close(grad(loss, 1)(X, target), -sign * X)
    close(jacfwd(grad(loss))(X), sign * jacrev(perturbed)(X))
    close(jvp(loss, (X, target), (z[0], z[1]))[1], grad(loss)(X) @ z[0] - sign * X @ z[1])


def test_fenchel_young_gradient_is_that_of_the_value():
    """With an exact solver and the same draws, differences of the value are the gradient."""
    z, target = noise(5, 3), torch.tensor([0.0, 1.0, 0.0], dtype=F64)

    def loss(x):
        return blackbox.fenchel_young_loss(argmax, x, target, samples=5, noise=z)

    h = 1e-6
    moved = [(loss(X + h * e) - loss(X - h * e)) / (2 * h) for e in torch.eye(3, dtype=F64)]
    close(grad(loss)(X), torch.stack(moved), 1e-8)


def test_jvp_and_vjp_are_adjoint():
    """The derivatives that are linear are one linear map in both modes."""
    z, g, t = noise(4, 3), noise(3, seed=5), noise(3, seed=6)
    for f in (
        lambda x: blackbox.perturbed(argmax, x, samples=4, noise=z),
        lambda x: blackbox.perturbed(argmax, x, samples=4, distribution="gumbel", noise=z),
        lambda x: blackbox.smoothed(torch.sin, x, samples=4, noise=z),
        lambda x: blackbox.smoothed(torch.sin, x, samples=4, antithetic=False, noise=z),
    ):
        close(jvp(f, (X,), (t,))[1] @ g, vjp(f, X)[1](g)[0] @ t)


def test_baseline_makes_the_variance_smaller():
    """A large constant in the values does not change the gradient, of which it is no part."""
    z = noise(200, 8, 3)

    def gradients(constant):
        f = lambda x, z: blackbox.perturbed(lambda x: (x * x).sum() + constant, x, samples=8, noise=z)  # noqa: E731
        return vmap(grad(f), (None, 0))(X, z)

    close(gradients(1000.0), gradients(0.0), 1e-9)


def test_infinite_elements():
    """An element of minus infinity is not chosen, has the gradient 0, and makes no other gradient NaN."""
    x, z = torch.tensor([0.3, -torch.inf, 1.0], dtype=F64), noise(6, 3)
    for distribution in ("normal", "gumbel"):
        options = {"samples": 6, "distribution": distribution, "noise": z}
        g = jacrev(lambda x, o=options: blackbox.perturbed(argmax, x, **o))(x)
        assert g.isfinite().all()
        assert (g[:, 1] == 0).all()
        assert g.abs().sum() > 0
        target = torch.tensor([1.0, 0.0, 0.0], dtype=F64)
        assert blackbox.fenchel_young_loss(argmax, x, target, **options).isfinite()


# --- score_function ----------------------------------------------------------------------------------------------------------


def bernoulli(logit, samples):
    return torch.distributions.Bernoulli(logits=logit).log_prob(samples)


@pytest.mark.parametrize("baseline", ["leave_one_out", None])
def test_score_function_is_unbiased(baseline):
    """Derivatives of three orders of the expected cost of a Bernoulli variable, whose cost depends on the parameter too."""
    x = torch.tensor(0.4, dtype=F64)
    u = torch.rand(4_000, 20, generator=torch.Generator().manual_seed(0), dtype=F64)

    def f(x, samples):
        return blackbox.score_function((samples - x) ** 2, bernoulli(x, samples), baseline)

    def exact(x):
        p = torch.sigmoid(x)
        return p * (1 - x) ** 2 + (1 - p) * x**2

    samples = (u < torch.sigmoid(x)).double()
    ours, expected = f, exact
    for _ in range(4):
        within(vmap(ours, (None, 0))(x, samples), expected(x))
        ours, expected = grad(ours), grad(expected)


def test_formula_of_the_score_function():
    """The gradient is the sum of cost less baseline times the gradient of the logarithm, per output."""
    samples, x = torch.tensor([1.0, 0.0, 1.0], dtype=F64), torch.tensor(0.4, dtype=F64)
    cost = noise(3, 2)
    b = (cost.sum(0) - cost) / 2
    slopes = samples - torch.sigmoid(x)
    f = lambda x: blackbox.score_function(cost, bernoulli(x, samples))  # noqa: E731
    close(f(x), cost.mean(0))
    close(jacrev(f)(x), ((cost - b) * slopes.unsqueeze(-1)).mean(0))
    close(jacfwd(f)(x), jacrev(f)(x))


def test_one_sample_has_no_baseline():
    """With one sample the baseline is left out."""
    one, x = torch.ones(1, dtype=F64), torch.tensor(0.4, dtype=F64)
    close(grad(lambda x: blackbox.score_function(3 * one, bernoulli(x, one)))(x).item(), 3 * torch.sigmoid(-x).item())


# --- Noise -------------------------------------------------------------------------------------------------------------------


def test_normal_noise():
    """The noise is normal: its first four moments, and a histogram, are right; no number is infinite."""
    z = normal_like(torch.zeros(1), (400_000,), generator=torch.Generator().manual_seed(0)).flatten().double()
    for power, expected in ((1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0)):
        within(z**power, torch.tensor(expected, dtype=F64))
    for edge in (-2.5, -1.0, 0.3, 1.7):
        within((z < edge).double(), torch.special.ndtr(torch.tensor(edge, dtype=F64)))
    assert z.isfinite().all()
    close((z[1:] * z[:-1]).mean().item(), 0.0, 0.01)
