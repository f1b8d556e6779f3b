"""Special functions inside `completing`: derivatives next to mpmath's, and errors where there is none."""

import math

import mpmath
import pytest
import torch
from torch.func import grad, jvp, vmap

import fullgrad
from fullgrad.completion._registry import COMPLETED

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="torch is too old for it"),
]
special = torch.special
A = torch.tensor(2.5, dtype=torch.float64)
X = torch.tensor([0.3, 1.7, 2.6], dtype=torch.float64)

FUNCTIONS = {
    "bessel_j0": (special.bessel_j0, lambda x: mpmath.besselj(0, x)),
    "bessel_j1": (special.bessel_j1, lambda x: mpmath.besselj(1, x)),
    "bessel_y0": (special.bessel_y0, lambda x: mpmath.bessely(0, x)),
    "bessel_y1": (special.bessel_y1, lambda x: mpmath.bessely(1, x)),
    "modified_bessel_i0": (special.modified_bessel_i0, lambda x: mpmath.besseli(0, x)),
    "modified_bessel_i1": (special.modified_bessel_i1, lambda x: mpmath.besseli(1, x)),
    "modified_bessel_k0": (special.modified_bessel_k0, lambda x: mpmath.besselk(0, x)),
    "modified_bessel_k1": (special.modified_bessel_k1, lambda x: mpmath.besselk(1, x)),
    "scaled_modified_bessel_k0": (special.scaled_modified_bessel_k0, lambda x: mpmath.exp(x) * mpmath.besselk(0, x)),
    "scaled_modified_bessel_k1": (special.scaled_modified_bessel_k1, lambda x: mpmath.exp(x) * mpmath.besselk(1, x)),
    "spherical_bessel_j0": (special.spherical_bessel_j0, mpmath.sinc),
    "i1": (special.i1, lambda x: mpmath.besseli(1, x)),
    "igamma": (lambda x: special.gammainc(A, x), lambda x: mpmath.gammainc(2.5, 0, x, regularized=True)),
    "igammac": (lambda x: special.gammaincc(A, x), lambda x: mpmath.gammainc(2.5, x, regularized=True)),
    "zeta": (lambda x: special.zeta(A, x), lambda x: mpmath.zeta(2.5, x)),
    "zeta.self_scalar": (lambda x: special.zeta(2.5, x), lambda x: mpmath.zeta(2.5, x)),
    "chebyshev_polynomial_t": (special.chebyshev_polynomial_t, mpmath.chebyt),
    "chebyshev_polynomial_u": (special.chebyshev_polynomial_u, mpmath.chebyu),
    "chebyshev_polynomial_v": (special.chebyshev_polynomial_v, lambda n, x: mpmath.chebyu(n, x) - mpmath.chebyu(n - 1, x)),
    "chebyshev_polynomial_w": (special.chebyshev_polynomial_w, lambda n, x: mpmath.chebyu(n, x) + mpmath.chebyu(n - 1, x)),
    "hermite_polynomial_h": (special.hermite_polynomial_h, mpmath.hermite),
    "hermite_polynomial_he": (
        special.hermite_polynomial_he,
        lambda n, x: mpmath.hermite(n, x / mpmath.sqrt(2)) / mpmath.sqrt(2) ** n,
    ),
    "laguerre_polynomial_l": (special.laguerre_polynomial_l, lambda n, x: mpmath.laguerre(n, 0, x)),
    "legendre_polynomial_p": (special.legendre_polynomial_p, mpmath.legendre),
}
for _letter in "tuvw":  # the shifted ones, of 2x - 1
    _own = FUNCTIONS[f"chebyshev_polynomial_{_letter}"][1]
    FUNCTIONS[f"shifted_chebyshev_polynomial_{_letter}"] = (
        getattr(special, f"shifted_chebyshev_polynomial_{_letter}"),
        lambda n, x, f=_own: f(n, 2 * x - 1),
    )


def functions(name):
    """torch's function and mpmath's, of x alone."""
    f, reference = FUNCTIONS[name]
    if "polynomial" not in name:
        return f, reference
    return (lambda x: f(x, 5)), (lambda x: reference(5, x))


def forward(f):
    return lambda x: jvp(f, (x,), (torch.ones_like(x),))[1]


def reverse(f):
    return grad(lambda x: f(x).sum())


def test_every_function_is_tested():
    """But those without a derivative, and samples of a gamma distribution."""
    names = {name.removeprefix("special_").partition(".")[0] for name in COMPLETED if name.startswith("special_")}
    names |= {name for name in COMPLETED if COMPLETED[name].slopes and name in ("igamma", "igammac", "_standard_gamma")}
    assert names - {"airy_ai", "_standard_gamma"} == {name.partition(".")[0] for name in FUNCTIONS}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_of_special_functions(name):
    """The first three are mpmath's, in each nesting, of a batch, and in eager code; the value is torch's."""
    f, reference = functions(name)
    expected = [torch.tensor([float(mpmath.diff(reference, float(v), k)) for v in X], dtype=X.dtype) for k in (1, 2, 3)]

    def check(found, order):
        torch.testing.assert_close(found, expected[order - 1], rtol=2e-8, atol=2e-8)  # torch's own values have some 9 digits

    with fullgrad.completing():
        for first in (forward, reverse):
            check(first(f)(X), 1)
            assert torch.equal(vmap(first(f))(X.reshape(3, 1))[:, 0], first(f)(X))
            for second in (forward, reverse):
                check(second(first(f))(X), 2)
        check(forward(forward(forward(f)))(X), 3)
        check(forward(reverse(forward(f)))(X), 3)
        check(reverse(forward(reverse(f)))(X), 3)
        assert torch.equal(jvp(f, (X,), (X,))[0], f(X))
        leaf = X.clone().requires_grad_()
        y = f(leaf)
        for order in (1, 2, 3):
            (y,) = torch.autograd.grad(y.sum(), leaf, create_graph=True)
            check(y.detach(), order)


def test_functions_of_bessel_at_0():
    """Their quotients have limits there: J1' = 1/2 and J1''' = -3/8, I1''' = 3/8, sin(x)/x '' = -1/3; Y1' is infinite."""
    x = torch.zeros(1, dtype=torch.float64)
    with fullgrad.completing():
        assert forward(special.bessel_j1)(x).item() == 0.5
        for f, order, expected in (
            (special.bessel_j1, 3, -0.375),
            (special.modified_bessel_i1, 3, 0.375),
            (special.spherical_bessel_j0, 2, -1 / 3),
        ):
            for way in (forward, reverse):
                derivative = f
                for _ in range(order):
                    derivative = way(derivative)
                torch.testing.assert_close(derivative(x).item(), expected)
        assert reverse(special.bessel_y1)(x).item() == torch.inf
        assert reverse(special.modified_bessel_k1)(x).item() == -torch.inf


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scaled_functions_of_bessel_at_large_numbers(order, dtype):
    """Three derivatives have their digits, in every way, though the functions of both orders are almost equal there."""
    f = getattr(special, f"scaled_modified_bessel_k{order}")
    x = torch.tensor([2.5, 20.0, 1e3, 1e5, 1e8], dtype=dtype)

    def reference(v, k):
        """Their integral of exp(-x (cosh t - 1)) cosh(nu t), by u = x (cosh t - 1)."""
        v = mpmath.mpf(float(v))
        g = lambda u: u**k * (1 + u / v) ** order * mpmath.exp(-u) / mpmath.sqrt(u * (u / v + 2))  # noqa: E731
        return (-1) ** k * v ** (-k - mpmath.mpf(1) / 2) * mpmath.quad(g, [0, 1, 10, 60, 200])

    expected = [torch.tensor([float(reference(v, k)) for v in x], dtype=torch.float64).to(dtype) for k in (1, 2, 3)]
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    with fullgrad.completing():
        for ways in ((forward, forward, forward), (reverse, reverse, reverse), (reverse, forward, reverse)):
            derivative = f
            for way, y in zip(ways, expected, strict=True):
                derivative = way(derivative)
                torch.testing.assert_close(derivative(x), y, rtol=tolerance, atol=0)
        ends = torch.tensor([0.0, math.inf, math.nan], dtype=dtype)
        torch.testing.assert_close(reverse(f)(ends), torch.tensor([-math.inf, 0, math.nan], dtype=dtype), equal_nan=True)


def test_polynomials_of_several_degrees():
    """Degrees in a tensor that broadcasts, also of each sample, with ends and degrees of 0 and below."""
    x, n = torch.tensor([-1.0, 0.5, 1.0], dtype=torch.float64), torch.tensor([[-1], [0], [1], [4]])
    f = special.chebyshev_polynomial_t
    # T4' = 32x^3 - 16x
    expected = torch.stack([x * 0, x * 0, x * 0 + 1, 32 * x**3 - 16 * x])
    with fullgrad.completing():
        torch.testing.assert_close(jvp(lambda x: f(x, n), (x,), (torch.ones_like(x),))[1], expected)
        torch.testing.assert_close(vmap(grad(lambda n, x: f(x, n).sum(), argnums=1), (0, None))(n, x), expected)
        torch.testing.assert_close(grad(lambda x: f(x, n).sum())(x), expected.sum(0))
        assert torch.equal(jvp(lambda x: x * f(0.5, n[3]), (x,), (x,))[1], x * f(0.5, 4 * torch.ones(1)))


def test_what_has_no_derivative_is_refused():
    """Airy's function, degrees, and the shapes of gamma functions: torch gives a tangent of 0 for the first two."""
    x = torch.ones(2, dtype=torch.float64)
    calls = {
        special.airy_ai: "no derivative",
        lambda n: special.hermite_polynomial_h(x, n): "no derivative with respect to its degree",
        lambda n: special.hermite_polynomial_h(0.5, n): "no derivative with respect to its degree",
        lambda a: special.gammainc(a, x): "no derivative with respect to its argument 0",
        lambda s: special.zeta(s, x + 1): "no derivative with respect to its argument 0",
    }
    with fullgrad.completing():
        for f, message in calls.items():
            with pytest.raises(NotImplementedError, match=message):
                jvp(f, (x,), (x,))
            with pytest.raises(
                (NotImplementedError, RuntimeError), match=r"no derivative|not implemented|not currently implemented"
            ):
                grad(lambda x: f(x).sum())(x)  # noqa: B023
    assert fullgrad.completion.operators()["aten::special_airy_ai"].endswith("refused")


def test_samples_of_gamma_have_tangents():
    """In forward mode they are those of reverse mode, for the distributions made of them."""
    d = torch.distributions
    a, t = torch.tensor([0.7, 2.0, 5.0], dtype=torch.float64), torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64)
    calls = (
        lambda a: d.Gamma(a, a.cos() + 2, validate_args=False).rsample(),
        lambda a: d.Chi2(a, validate_args=False).rsample(),
        lambda a: d.StudentT(a, validate_args=False).rsample(),
    )
    with fullgrad.completing():
        for f in calls:
            torch.manual_seed(0)
            value, tangent = jvp(f, (a,), (t,))
            torch.manual_seed(0)
            assert torch.equal(f(a), value)
            torch.manual_seed(0)
            leaf = a.clone().requires_grad_()
            torch.testing.assert_close((torch.autograd.grad(f(leaf).sum(), leaf)[0] * t).sum(), tangent.sum())
