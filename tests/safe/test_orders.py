"""Derivatives of every order, against exact formulas at high precision, over all magnitudes."""

import itertools

import mpmath
import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, vmap

from fullgrad import safe

MAGNITUDES = [3.1 * 10.0**m for m in (-37, -25, -20, -17, -10, -3, 0, 2, 9, 18, 26, 37)]
# Derivatives beyond these are not compared: float32 has none, or few digits.
LARGEST, SMALLEST = 1e36, 1e-36


def orders(most, arguments=2):
    """By which arguments one differentiates, one after the other."""
    return [by for n in range(1, most + 1) for by in itertools.combinations_with_replacement(range(arguments), n)]


def in_turn(function, by, transform):
    for i in by:
        function = transform(function, i)
    return function


def check(function, exact, numbers, most):
    """Forward mode and reverse mode have the exact derivatives at numbers that float32 has."""
    x = [torch.tensor(v) for v in numbers]
    true = [mpmath.mpf(v.item()) for v in x]
    for by in orders(most, len(x)):
        with mpmath.workdps(100):
            expected = exact(*true, *[sum(k == i for k in by) for i in range(len(x))])
        if abs(expected) < LARGEST:
            for transform in (grad, jacfwd):
                found = in_turn(function, by, transform)(*x).item()
                assert abs(found - float(expected)) <= 1e-3 * abs(float(expected)) + SMALLEST, (by, transform.__name__, numbers)


def falling(e, n):
    """e (e - 1) … (e - n + 1), as the coefficients of its powers."""
    found = [mpmath.mpf(1)]
    for m in range(n):
        found = [a - m * b for a, b in zip([0, *found], [*found, 0], strict=True)]
    return found


def of_power(x, e, n, k):
    """The derivative of the power, n times by the base and k times by the exponent."""
    p, total = falling(e, n), mpmath.mpf(0)
    for r in range(k + 1):
        total += mpmath.binomial(k, r) * mpmath.polyval(p[::-1] or [0], e) * mpmath.log(x) ** (k - r)
        p = [d * c for d, c in enumerate(p)][1:]
    return total * mpmath.power(x, e - n)


def of_quotient(x, y, n, k):
    return (x if n == 0 else mpmath.mpf(n == 1)) * (-1) ** k * mpmath.factorial(k) / y ** (k + 1)


def of_norm(p):
    def exact(x, y, n, k):
        ratio = y / x
        of_parts = lambda u, v: (abs(1 + u) ** p + abs(ratio * (1 + v)) ** p) ** (1 / p)  # noqa: E731
        if n and k:
            found = mpmath.diff(of_parts, (0, 0), (n, k))
        else:
            found = mpmath.diff((lambda u: of_parts(u, 0)) if n else (lambda v: of_parts(0, v)), 0, n + k)
        return found * x / x**n / y**k

    return exact


@pytest.mark.parametrize("e", [0.0, 1.0, 2.0, 0.5, -1.3])
@pytest.mark.parametrize("x", MAGNITUDES[1::3])
def test_pow_to_the_fourth_order(x, e):
    """Also at exponents where a coefficient is 0 and the power overflows."""
    check(safe.pow, of_power, (x, e), 4)


@pytest.mark.parametrize("x", [0.0, 3.1e-25, 0.3, 3.1e18])
@pytest.mark.parametrize("y", MAGNITUDES[::2])
def test_div_to_the_fourth_order(x, y):
    """Also at a dividend of 0 whose slope overflows."""
    check(safe.div, of_quotient, (x, y), 4)


@pytest.mark.parametrize("p", [2, 3, 3.5, 1.5, 0.5, -0.5, -1, -2, 5])
@pytest.mark.parametrize("x", [3.1e-17, 1.0, *[2.0**k * 1.2 for k in (27, 40, 55, 69)], 3.1e18])
def test_norms_to_the_third_order(x, p):
    """In every unit of the vector."""
    check(lambda x, y: safe.norm(torch.stack([x, y]), p), of_norm(mpmath.mpf(p)), (x, 0.7 * x), 3)


@pytest.mark.parametrize("of", [safe.asin, safe.acos])
@pytest.mark.parametrize("steps", [1, 3, 100, 10000, 2**23])
def test_arcs_keep_all_digits_next_to_1(of, steps):
    """The difference of a square from 1 would lose half of them."""
    x = torch.tensor(1 - steps * 2.0**-24)
    exact, f = getattr(mpmath, of.__name__), of
    for n in range(1, 4):
        f = grad(f)
        with mpmath.workdps(60):
            expected = float(mpmath.diff(exact, mpmath.mpf(x.item()), n))
        assert f(x).item() == pytest.approx(expected, rel=2e-6 * n)


@pytest.mark.parametrize("outer", [jacfwd, jacrev])
@pytest.mark.parametrize("inner", [jacfwd, jacrev])
def test_a_derivative_that_overflows_leaves_the_other_elements_alone(inner, outer):
    """At 1e-30 derivatives of a logarithm overflow; those by other elements are 0, and no product with them is NaN."""
    x, f = torch.tensor([1e-30, 2.0]), safe.log
    for n in range(1, 5):
        f = (outer if n % 2 else inner)(f)
        found = f(x)
        assert not found.isnan().any()
        assert found.flatten()[-1] == pytest.approx([0.5, -0.25, 0.25, -0.375][n - 1])
        assert (found != 0).sum() == 2


def test_the_power_0_has_no_curvature():
    """A coefficient of 0 is certain, though the other factor overflows."""
    assert hessian(lambda x: safe.pow(x, torch.tensor(0.0)))(torch.tensor(1e-20)) == 0


ONE_ARGUMENT = {
    "sqrt": safe.sqrt,
    "log": safe.log,
    "acos": safe.acos,
    "asin": safe.asin,
    "div by a number": lambda x: safe.div(x, 3.0),
    "div by x": lambda x: safe.div(torch.ones_like(x), x),
    "atan2": lambda x: safe.atan2(x, torch.ones_like(x)),
    "norm": safe.norm,
    **{f"pow {e}": lambda x, e=e: safe.pow(x, e) for e in (3, 3.0, -2, 0.5, torch.tensor(3.0))},
}


@pytest.mark.short
@pytest.mark.parametrize("inner", [grad, jacfwd])
@pytest.mark.parametrize("outer", [grad, jacfwd])
@pytest.mark.parametrize("name", ONE_ARGUMENT)
def test_samples_without_dimensions_have_the_second_derivative_of_single_numbers(name, inner, outer):
    """Under vmap torch multiplies such a sample by the tangent 0 of a number: NaN where the slope overflows, and float64."""
    x, f = torch.tensor([1e-30, 0.5, 1e20, 1e30]), outer(inner(ONE_ARGUMENT[name]))
    found = vmap(f)(x)
    torch.testing.assert_close(found, torch.stack([f(v) for v in x]), equal_nan=True)
