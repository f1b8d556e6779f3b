"""The solvers: of linear equations next to numpy, and of equations next to scipy and closed forms."""

import math

import numpy
import pytest
import scipy.optimize
import torch
from torch.func import jvp, vjp, vmap

from fullgrad import implicit
from fullgrad.implicit._linear_algorithms import LU, norm, normal_cg

F64 = torch.float64


def matrices(n, kind, dtype=F64):
    """A batch of matrices of condition 100."""
    q = torch.linalg.qr(torch.randn(3, n, n, dtype=F64))[0]
    other = q.mT if kind == "definite" else torch.linalg.qr(torch.randn(3, n, n, dtype=F64))[0]
    if kind == "skew":
        return (torch.randn(3, n, n, dtype=F64) * 0.1).triu(1) - (torch.randn(3, n, n, dtype=F64) * 0.1).tril(-1) + torch.eye(n)
    return (q @ torch.diag(torch.logspace(0, -2, n, dtype=F64)) @ other).to(dtype)


SOLVERS = {
    "cg": (("definite",), lambda a, b: implicit.cg(lambda w: (a @ w.unsqueeze(-1)).squeeze(-1), b)),
    "gmres": (("definite", "any", "skew"), lambda a, b: implicit.gmres(lambda w: (a @ w.unsqueeze(-1)).squeeze(-1), b)),
    "gmres, restarted": (
        ("any",),
        lambda a, b: implicit.gmres(lambda w: (a @ w.unsqueeze(-1)).squeeze(-1), b, restart=25, maxiter=400),
    ),
    "normal_cg": (
        ("definite", "any", "skew"),
        lambda a, b: normal_cg(*[lambda w, a=m: (a @ w.unsqueeze(-1)).squeeze(-1) for m in (a, a.mT)], b),
    ),
    "LU": (("definite", "any", "skew"), lambda a, b: LU(a).solve(b, False)),
    "LU transposed": (("definite", "any", "skew"), lambda a, b: LU(a.mT).solve(b, True)),
}


@pytest.mark.parametrize("unit", [1e-150, 1.0, 1e150])
@pytest.mark.parametrize(("name", "kind"), [(n, k) for n, (kinds, _) in SOLVERS.items() for k in kinds])
def test_linear_equations(name, kind, unit):
    """Each sample of a batch is solved, in any unit of the right-hand side."""
    a, b = matrices(20, kind), torch.randn(3, 20, dtype=F64)
    found = SOLVERS[name][1](a, b * unit) / unit
    assert ((found - torch.linalg.solve(a, b)).norm(dim=-1) <= 1e-8 * found.norm(dim=-1)).all()


def test_directions_where_the_residual_does_not_fall():
    """GMRES takes n steps for a cyclic shift, whose residual falls in the last one alone."""
    b = torch.zeros(12, dtype=F64)
    b[0] = 1.0
    seen = []
    found = implicit.gmres(lambda w: seen.append(1) or w.roll(1), b)
    torch.testing.assert_close(found, b.roll(-1))
    assert len(seen) == 12


def test_limits_of_iterations():
    """`maxiter` counts products, and `tol` is relative."""
    a = matrices(20, "definite")[0]
    b = torch.randn(20, dtype=F64)
    for solver in (implicit.cg, implicit.gmres):
        seen = []
        solver(lambda w, seen=seen: seen.append(1) or a @ w, b, maxiter=5)
        assert len(seen) == 5
        found = solver(lambda w: a @ w, b, tol=0.1)
        assert 1e-4 < (b - a @ found).norm() / b.norm() <= 0.1


def test_zero_right_hand_sides():
    """The solution for 0 is 0."""
    for solver in (implicit.cg, implicit.gmres):
        assert (solver(lambda w: 2 * w, torch.zeros(2, 3)) == 0).all()


def test_norms_do_not_overflow():
    """Norms of the largest and smallest numbers are finite and not 0."""
    for unit in (1e-300, 1e300):
        torch.testing.assert_close(norm(torch.tensor([3.0, 4.0], dtype=F64) * unit), torch.tensor([5.0], dtype=F64) * unit)


# --- Solvers of equations -----------------------------------------------------------------------------------------------------

EQUATIONS = {
    "cubic": lambda z: z**3 + z - torch.tensor([1.0, -20.0, 3e4], dtype=F64),
    "coupled": lambda z: torch.stack([z[0] ** 2 + z[1] ** 2 + z[2] ** 2 - 3, z[0] - z[1], z[1] * z[2] - 1]),
    "steep": lambda z: torch.atan(z * 5) - 0.3,  # the full step diverges
}


@pytest.mark.parametrize("name", EQUATIONS)
def test_newton(name):
    """The residual is that of rounding, as with scipy."""
    f, start = EQUATIONS[name], torch.tensor([3.0, 2.0, 1.0], dtype=F64)
    found = implicit.newton(f, start)
    expected = scipy.optimize.root(lambda z: f(torch.from_numpy(z)).numpy(), found.numpy(), tol=1e-14).x
    numpy.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-12)
    assert (f(found).abs() <= 1e-10 * f(start).abs().max()).all()


def test_newton_of_a_batch():
    """In vmap each sample stops by itself, also where it has no root or is NaN."""
    x = torch.tensor([1.0, 1e8, torch.nan, 2.0], dtype=F64)
    found = vmap(lambda x: implicit.newton(lambda z: z**2 - x, x.new_ones(())))(x)
    torch.testing.assert_close(found, x.sqrt(), equal_nan=True)


@pytest.mark.parametrize("x", [1e1, 1e5, 1e12])
def test_newton_makes_no_step_to_where_there_is_no_number(x):
    """The first step for an exponential overflows."""
    found = implicit.newton(lambda z: z.exp() - x, torch.zeros((), dtype=F64), maxiter=400)
    torch.testing.assert_close(found, torch.tensor(x, dtype=F64).log())


def test_bisection_between_infinities_is_nan():
    """There is no middle."""
    most = torch.finfo(torch.float32).max
    found = implicit.bisection(lambda z: z - most / 2, torch.tensor([-most, -torch.inf]), most)
    torch.testing.assert_close(found, torch.tensor([most / 2, torch.nan]), equal_nan=True)


def test_newton_of_a_structure():
    """Solutions are structures of tensors."""
    found = implicit.newton(
        lambda s: {"a": s["a"] ** 2 - 4, "b": s["b"] - s["a"].sum()}, {"a": torch.ones(2), "b": torch.zeros(())}
    )
    torch.testing.assert_close(found, {"a": torch.full((2,), 2.0), "b": torch.tensor(4.0)})


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, F64])
def test_anderson(dtype):
    """A slow iteration is fast: the fixed point of a contraction by 0.99 in 30 calls."""
    a = 0.99 * torch.linalg.qr(torch.randn(4, 4, dtype=F64))[0].to(dtype)
    calls = []

    def f(z):
        calls.append(1)
        return a @ z + 1

    found = implicit.anderson(f, torch.zeros(4, dtype=dtype), maxiter=30)
    expected = torch.linalg.solve(torch.eye(4, dtype=F64) - a.to(F64), torch.ones(4, dtype=F64))
    assert len(calls) <= 30
    assert (found.to(F64) - expected).norm() <= 200 * torch.finfo(dtype).eps ** 0.75 * expected.norm()


def test_anderson_of_a_batch():
    """In vmap each sample stops by itself."""
    x = torch.linspace(0.1, 1.2, 5, dtype=F64)
    found = vmap(lambda x: implicit.anderson(lambda z: torch.cos(x * z), x.new_zeros(())))(x)
    torch.testing.assert_close(found, torch.cos(x * found))


def test_anderson_where_the_plain_iteration_converges():
    """A misleading history is forgotten: of random layers that converge by themselves, some 1 % did not."""
    generator = torch.Generator().manual_seed(0)
    w = 1.5 * torch.randn(1000, 3, 3, generator=generator, dtype=F64) / 3**0.5
    b = torch.randn(1000, 3, generator=generator, dtype=F64)

    def step(z):
        return torch.tanh((w @ z.unsqueeze(-1)).squeeze(-1) + b)

    plain = torch.zeros_like(b)
    for _ in range(400):
        plain = step(plain)
    converges = (step(plain) - plain).norm(dim=-1) < 1e-10
    found = vmap(lambda w, b: implicit.anderson(lambda z: torch.tanh(w @ z + b), torch.zeros(3, dtype=F64)))(w, b)
    off = (step(found) - found).norm(dim=-1)[converges]
    assert converges.sum() > 500
    assert (off > 1e-3).sum() <= 1


def test_bisection():
    """Roots in any unit, at the bounds, and NaN where there is none."""
    low, high = torch.tensor([0.0, -1.0, 0.0, 2.0, 0.0], dtype=F64), torch.tensor([9.0, 1.0, 3.0, 3.0, 2.0], dtype=F64)
    c = torch.tensor([4.0, 0.0, 9.0, 1.0, 1e-12], dtype=F64)
    found = implicit.bisection(lambda z: z * z.abs() - c, low, high)
    torch.testing.assert_close(
        found, torch.tensor([2.0, 0.0, 3.0, torch.nan, 1e-6], dtype=F64), equal_nan=True, rtol=1e-12, atol=1e-16
    )
    assert implicit.bisection(torch.cos, torch.tensor(0.0), 3.0).dtype == torch.float32


@pytest.mark.long
def test_compiled_code_runs_all_iterations():
    """A tracer knows no numbers, and gets a graph of `maxiter` iterations."""
    f = lambda x: implicit.newton(lambda z: z**2 - x, torch.ones_like(x), maxiter=6)  # noqa: E731
    x = torch.tensor([2.0, 3.0])
    torch.testing.assert_close(torch.compile(f, backend="aot_eager", fullgraph=True)(x), x.sqrt())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gmres_and_anderson_under_autocast(dtype):
    """Their own products are not those of a layer: solutions and gradients are those outside."""
    x = torch.linspace(1, 100, 8)

    def f(z, x):
        return 0.5 * (z + x / z + 0.1 * z.roll(1))

    @implicit.fixed_point(f, linear_solve="gmres")
    def solve(init, x):
        return implicit.anderson(lambda z: f(z, x), init)

    def both():
        return torch.func.vjp(lambda x: solve(torch.ones(8), x), x)

    value, pull = both()
    expected = pull(torch.ones(8))[0]
    with torch.autocast("cpu", dtype=dtype):
        found, pull = both()
        torch.testing.assert_close(found, value)
        torch.testing.assert_close(pull(torch.ones(8))[0], expected)


@pytest.mark.filterwarnings("ignore:implicit.root. quotient. the solution leaves a residual of nan")
@pytest.mark.parametrize("place", ["of the matrix", "of the right-hand side"])
@pytest.mark.parametrize("linear_solve", ["dense", "cg", "normal_cg", "gmres"])
def test_an_infinite_coefficient_makes_no_finite_number_that_is_wrong(linear_solve, place):
    """A derivative is the true one, or NaN, where a step of 0 in an infinite direction would end the iteration at 0."""
    x, y = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    (y if place == "of the matrix" else x)[2] = math.inf

    @implicit.root(lambda z, x, y: z + y * z - x, linear_solve=linear_solve)
    def quotient(init, x, y):
        return x / (1 + y)

    for i, true in ((0, 1 / (1 + y)), (1, -x / (1 + y) ** 2)):
        f = lambda v: quotient(y, *[v if i == j else w for j, w in enumerate((x, y))])  # noqa: B023, E731
        one = torch.ones_like(x)
        for found in (jvp(f, ((x, y)[i],), (one,))[1], vjp(f, (x, y)[i])[1](one)[0]):
            assert not ((found != true) & found.isfinite() & ((found - true).abs() > 1e-9)).any()
