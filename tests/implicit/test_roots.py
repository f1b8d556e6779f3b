"""Solutions of equations: every transform against closed forms and unrolled iterations, and what the docstrings promise."""

import copy
import dataclasses
import functools
import gc
import pickle
import warnings
import weakref

import numpy
import pytest
import scipy.optimize
import torch
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from fullgrad import implicit
from fullgrad._suite.cases.implicit import CASES
from fullgrad.implicit import _linear_algorithms, _linear_solve
from tests.functions.transforms import NAMES, X, derivative

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")
F64 = torch.float64


def close(found, expected, tolerance=1e-8):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


# --- Problems, and what their solutions are ---------------------------------------------------------------------------------


@implicit.root(lambda z, x: torch.sinh(z) + z - x)
def by_scipy(init, x):
    def of(z):
        return numpy.sinh(z) + z - x.numpy().reshape(-1)

    return torch.from_numpy(scipy.optimize.root(of, init.numpy().reshape(-1), tol=1e-14).x).reshape(x.shape)


def by_newton(x):
    z = torch.zeros_like(x)
    for _ in range(12):
        z = z - (torch.sinh(z) + z - x) / (torch.cosh(z) + 1)
    return z


WEIGHT = torch.tensor([[0.3, -0.2, 0.1], [0.1, 0.2, -0.3], [-0.1, 0.3, 0.2]], dtype=F64)


def layer(z, x):
    """The layer by a matrix without a constant tensor, which compiled code could not take."""
    first, second, third = z
    y = (
        0.3 * first - 0.2 * second + 0.1 * third,
        0.1 * first + 0.2 * second - 0.3 * third,
        0.3 * second - 0.1 * first + 0.2 * third,
    )
    return torch.tanh(torch.stack(y) + x)


def iterated(step, z, *args, times=80):
    for _ in range(times):
        z = step(z, *args)
    return z


def equilibrium(**options):
    solve = implicit.fixed_point(layer, **options)(functools.partial(iterated, layer))
    return lambda x: solve(torch.zeros(3, dtype=F64), x)


def unrolled(x):
    return iterated(layer, torch.zeros_like(x), x)


def ridge(x):
    """Its objective closes over what is differentiated."""
    a = torch.outer(x, x) + torch.eye(3, dtype=F64)

    @implicit.argmin(lambda w: (a @ w - x).square().sum() + x.square().sum() * w.square().sum(), linear_solve="cg")
    def fit(init):
        return torch.linalg.solve(a.mT @ a + x.square().sum() * torch.eye(3, dtype=F64), a.mT @ x)

    return fit(torch.zeros(3, dtype=F64))


def ridge_in_closed_form(x):
    a = torch.outer(x, x) + torch.eye(3, dtype=F64)
    return torch.linalg.inv(a.mT @ a + x.square().sum() * torch.eye(3, dtype=F64)) @ (a.mT @ x)


def matrix(x):
    return torch.outer(x, x) + (x.square() + 1) * torch.eye(3, dtype=x.dtype)


@implicit.root(lambda s, x: {"x": matrix(x) @ s["x"] + x + s["nu"], "nu": s["x"].sum() - x[0]})
def quadratic_program(init, x):
    full = torch.ones(4, 4, dtype=F64)
    full[:3, :3], full[3, 3] = matrix(x), 0
    found = torch.linalg.solve(full, torch.cat([-x, x[:1]]))
    return {"x": found[:3], "nu": found[3]}


def eliminated(x):
    inverse = torch.linalg.inv(matrix(x))
    one = torch.ones(3, dtype=F64)
    nu = -(x[0] + (inverse @ x).sum()) / (one @ inverse @ one)
    return inverse @ (-x - nu)


def linear(method):
    return lambda x: implicit.solve(lambda w, x: matrix(x) @ w + x * w.sum(), x.sin(), x, linear_solve=method)


def linear_in_closed_form(x):
    return torch.linalg.inv(matrix(x) + torch.outer(x, torch.ones(3, dtype=F64))) @ x.sin()


PROBLEMS = {
    "scipy": (lambda x: by_scipy(torch.zeros(3, dtype=F64), x), by_newton),
    "dense": (equilibrium(), unrolled),
    "gmres": (equilibrium(linear_solve="gmres"), unrolled),
    "normal_cg": (equilibrium(linear_solve="normal_cg"), unrolled),
    "inside vmap": (equilibrium(vmap_method="map"), unrolled),
    "ridge": (ridge, ridge_in_closed_form),
    "conditions": (lambda x: quadratic_program(None, x)["x"], eliminated),
    "solve": (linear("dense"), linear_in_closed_form),
    "solve by gmres": (linear("gmres"), linear_in_closed_form),
}


@pytest.mark.short(of=3)
@pytest.mark.parametrize("transform", NAMES)
@pytest.mark.parametrize(
    "problem", [pytest.param(name, marks=[] if i % 3 == 0 else pytest.mark.long) for i, name in enumerate(PROBLEMS)]
)
@pytest.mark.sampled(of=2)
def test_transforms(problem, transform):
    """Every transform is that of the closed form, or of an unrolled iteration."""
    ours, expected = PROBLEMS[problem]
    close(derivative(transform, ours), derivative(transform, expected))


@pytest.mark.parametrize("problem", ["dense", "gmres", "ridge", "solve"])
@pytest.mark.parametrize(
    "thrice", [lambda f: jacrev(jacrev(jacrev(f))), lambda f: jacfwd(jacfwd(jacfwd(f))), lambda f: jacfwd(hessian(f))]
)
@pytest.mark.sampled(of=3)
def test_third_order(problem, thrice):
    """Third derivatives hold to 1e-8, by dense and by matrix-free solves."""
    ours, expected = [lambda x, f=f: f(x).sin().sum() for f in PROBLEMS[problem]]
    close(thrice(ours)(X[0]), thrice(expected)(X[0]))


# --- Arguments and solutions ------------------------------------------------------------------------------------------------


class Equilibrium(torch.nn.Module):
    """A module whose step is the equation of its own solver."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 3, dtype=F64)
        with torch.no_grad():
            self.inner.weight.copy_(WEIGHT)
        self.solve = implicit.fixed_point(self.step)(functools.partial(iterated, self.step))

    def step(self, z, x):
        return torch.tanh(self.inner(z) + x)

    def forward(self, x):
        return self.solve(torch.zeros(3, dtype=F64), x)


def test_parameters_of_a_module_that_the_equation_closes_over():
    """They get gradients in eager code, and per sample by `functional_call`, and are left as they were."""
    module = Equilibrium()
    parameters = dict(module.named_parameters())
    weight = module.inner.weight

    def expected(parameters, x):
        def step(z, x):
            return torch.tanh(z @ parameters["inner.weight"].mT + parameters["inner.bias"] + x)

        return iterated(step, torch.zeros(3, dtype=F64), x).sin().sum()

    module(X[0]).sin().sum().backward()
    close({n: p.grad for n, p in parameters.items()}, grad(expected)({n: p.detach() for n, p in parameters.items()}, X[0]))

    def loss(p, x):
        return functional_call(module, p, (x,)).sin().sum()

    plain = {n: p.detach() for n, p in parameters.items()}
    for transform in (grad, lambda f: vmap(grad(f), (None, 0)), hessian):
        x = X if transform not in (grad, hessian) else X[0]
        close(transform(loss)(plain, x), transform(expected)(plain, x))
    assert module.inner.weight is weight


def test_a_module_as_an_argument_and_keywords():
    """Modules and keywords are arguments of solver and equation."""
    module = torch.nn.Linear(3, 3, dtype=F64)
    with torch.no_grad():
        module.weight.copy_(WEIGHT)

    def step(z, module, *, x):
        return torch.tanh(module(z) + x)

    solve = implicit.fixed_point(step)(lambda init, module, *, x: iterated(functools.partial(step, x=x), init, module))
    solve(torch.zeros(3, dtype=F64), module, x=X[0]).sum().backward()
    found = module.weight.grad.clone()
    module.zero_grad()
    iterated(functools.partial(step, x=X[0]), torch.zeros(3, dtype=F64), module).sum().backward()
    close(found, module.weight.grad)


@implicit.root(lambda z, x: z + by_scipy(torch.zeros_like(z), z) - x)
def nested(init, x):
    y = by_newton(x)  # z = sinh(y) + y, and z + y = x
    for _ in range(12):
        y = y - (torch.sinh(y) + 2 * y - x) / (torch.cosh(y) + 2)
    return torch.sinh(y) + y


def nested_by_newton(x):
    y = torch.zeros_like(x)
    for _ in range(12):
        y = y - (torch.sinh(y) + 2 * y - x) / (torch.cosh(y) + 2)
    return torch.sinh(y) + y


@pytest.mark.parametrize("transform", NAMES)
def test_a_root_in_the_equation_of_a_root(transform):
    """An equation may be made of solutions: of those by scipy, too."""
    ours = lambda x: nested(torch.zeros(3, dtype=F64), x)  # noqa: E731
    close(derivative(transform, ours), derivative(transform, nested_by_newton))


@pytest.mark.long(but=1)
@pytest.mark.parametrize("transform", NAMES)
def test_bilevel_problems(transform):
    """A minimizer in the objective of a minimizer, which closes over what is differentiated."""

    def ours(x):
        def inner(w):
            return implicit.argmin(lambda u: ((u - w) ** 2 + x**2 * u**2).sum())(lambda init: w / (1 + x**2))(None)

        objective = lambda w: ((inner(w) - x.sin()) ** 2 + w**2).sum()  # noqa: E731
        # inner(w) = w / s, so that w (1 + s^-2) = sin(x) / s, where s = 1 + x^2
        return implicit.argmin(objective)(lambda init: x.sin() * (1 + x**2) / (1 + (1 + x**2) ** 2))(None)

    close(derivative(transform, ours), derivative(transform, lambda x: x.sin() * (1 + x**2) / (1 + (1 + x**2) ** 2)))


def test_solvers_that_return_what_they_were_given():
    """An argument, the start, a tensor of inference mode or one that requires a gradient is a solution like any other."""

    def of_inference(init, x):
        with torch.inference_mode():
            return x * 1

    for solver in (lambda init, x: x, lambda init, x: init, lambda init, x: x.clone().requires_grad_(), of_inference):
        solve = implicit.root(lambda z, x: z - x)(solver)
        x = X[0].clone().requires_grad_()
        (g,) = torch.autograd.grad(solve(X[0], x).sum(), x)
        close(g, torch.ones_like(g))


def test_numbers_that_a_solver_returns():
    """A number becomes a tensor like `init`."""
    solve = implicit.root(lambda z, x: z**3 - x)(lambda init, x: float(x) ** (1 / 3))
    init, x = torch.ones((), dtype=F64), torch.tensor(8.0, dtype=F64)
    assert solve(init, x).dtype == F64
    close(grad(solve, 1)(init, x), torch.tensor(1 / 12, dtype=F64))


def test_aux():
    """What else a solver returns is given back, without a derivative."""
    solve = implicit.root(lambda z, x: z**2 - x, has_aux=True)(lambda init, x: (x.sqrt(), {"steps": 3, "path": x.sqrt()}))
    x = torch.tensor(4.0, dtype=F64, requires_grad=True)
    z, aux = solve(None, x)
    assert z == 2
    assert z.requires_grad
    assert aux["steps"] == 3
    assert not aux["path"].requires_grad
    close(vmap(grad(lambda x: solve(None, x)[0]))(torch.tensor([1.0, 4.0], dtype=F64)), torch.tensor([0.5, 0.25], dtype=F64))


def test_complex_solutions():
    """A complex solution has derivatives by real and imaginary parts, of an equation that is not holomorphic too."""
    solve = implicit.root(lambda z, c: z * z.conj() * z - c)(lambda init, c: c / c.abs() ** (2 / 3))
    c = torch.tensor(1.0 + 2.0j, dtype=torch.complex128)
    ours, expected = lambda c: solve(c, c), lambda c: c / c.abs() ** (2 / 3)
    for transform in (
        lambda f: grad(lambda c: f(c).real.sin())(c),
        lambda f: jacfwd(grad(lambda r: f(r * c).imag.sin()))(X[0, 2]),
    ):
        close(transform(ours), transform(expected))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtypes(dtype):
    """Lower precisions solve in float32, and a derivative has an error of a few units of their last place."""
    solve = implicit.root(lambda z, x: torch.exp(z) - x)(lambda init, x: torch.log(x))
    x = torch.tensor([0.5, 1.0, 3.0], dtype=dtype)
    found = vmap(grad(lambda x: solve(x, x)))(x)
    assert found.dtype == dtype
    torch.testing.assert_close(found, 1 / x, rtol=8 * torch.finfo(dtype).eps, atol=0)


def test_float32_has_the_stated_accuracy():
    """1e-6 times the condition of the Jacobian by a dense solver, 1e-5 times it by an iterative one."""
    for condition in (1.0, 100.0):
        matrix = torch.linalg.qr(torch.randn(20, 20, dtype=F64))[0]
        matrix = matrix @ torch.diag(torch.logspace(0, -numpy.log10(condition), 20, dtype=F64)) @ matrix.mT
        b = torch.randn(20, dtype=F64)
        expected = torch.linalg.inv(matrix) @ b
        for method, error in (("dense", 1e-6), ("gmres", 1e-5), ("cg", 1e-5)):
            low = implicit.solve(lambda w, a: a @ w, b.float(), matrix.float(), linear_solve=method)
            assert (low - expected).norm() <= error * condition * expected.norm(), (method, condition)


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e30])
@pytest.mark.parametrize("method", ["dense", "cg", "normal_cg", "gmres"])
def test_any_unit(method, scale):
    """A problem in other units has its solution in other units, without a warning."""
    a = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=F64)
    x = torch.tensor([0.3, -0.5], dtype=F64)
    solve = implicit.root(lambda z, x: a @ z + (z / scale).square() * scale * 0.1 - x, linear_solve=method)(
        lambda init, x: iterated(lambda z: torch.linalg.solve(a, x - (z / scale).square() * scale * 0.1), torch.zeros_like(x))
    )
    found = jacrev(solve, 1)(torch.zeros_like(x), x * scale)
    z = solve(torch.zeros_like(x), x * scale) / scale
    close(found, torch.linalg.inv(a + 0.2 * torch.diag(z)))


def test_empty_solutions():
    """A solution without elements has a derivative without elements."""
    solve = implicit.root(lambda z, x: z**3 - x)(lambda init, x: x.sign() * x.abs() ** (1 / 3))
    x = torch.ones(0, requires_grad=True)
    (g,) = torch.autograd.grad(solve(x, x).sum(), x)
    assert g.shape == (0,)
    assert vmap(grad(lambda x: solve(x, x).sum()))(torch.ones(0, 3)).shape == (0, 3)


# --- Derivatives that are declared instead ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "terms"), [("one_step", 0), (("neumann", 2), 2), (("neumann", 80), 80)])
def test_cheaper_derivatives(name, terms):
    """One step leaves the inverse out, and Neumann's series is the sum of its first powers; both modes agree."""
    ours = equilibrium(derivative=name)
    z = unrolled(X[0])
    by_z, by_x = jacrev(layer, (0, 1))(z, X[0])
    series = sum(torch.linalg.matrix_power(by_z, i) for i in range(terms + 1))
    for transform in (jacrev, jacfwd):
        close(transform(ours)(X[0]), series @ by_x)
    close(vmap(jacrev(ours))(X)[0], series @ by_x)


def test_second_derivatives_of_a_cheaper_derivative_are_its_own():
    """The second derivative is that of the declared first one, along the declared solution."""
    ours = equilibrium(derivative="one_step")

    def by_x(z, x):
        return jacrev(layer, 1)(z, x)

    z = unrolled(X[0])
    by_z, partly = jacrev(by_x, (0, 1))(z, X[0])
    expected = partly + torch.einsum("ijk,kl->ijl", by_z, by_x(z, X[0]))
    close(jacfwd(jacrev(ours))(X[0]), expected)
    close(jacrev(jacfwd(ours))(X[0]), expected)


# --- Linear equations -------------------------------------------------------------------------------------------------------


def test_one_factorization_serves_all_derivatives_of_a_call(monkeypatch):
    """A gradient, its derivative and a tangent of one call make the Jacobian and its factors once."""
    made = []
    monkeypatch.setattr(_linear_solve, "LU", lambda m: made.append(m) or _linear_algorithms.LU(m))
    ours = equilibrium()
    x = X[0].clone().requires_grad_()
    y = ours(x)
    torch.autograd.grad(y.sum(), x, retain_graph=True)
    (g,) = torch.autograd.grad(y.sin().sum(), x, create_graph=True)
    torch.autograd.grad(g.square().sum(), x)
    assert len(made) == 1


def test_factors_are_those_of_the_numbers():
    """Tensors that are changed are seen: autograd refuses them, and factors are not used again."""
    weight = WEIGHT.clone()
    solve = implicit.fixed_point(lambda z, x: weight @ z + x, tol=None)(
        lambda init, x: torch.linalg.solve(torch.eye(3, dtype=F64) - weight, x)
    )
    x = X[0].clone().requires_grad_()
    y = solve(torch.zeros(3, dtype=F64), x)
    first = torch.autograd.grad(y.sum(), x, retain_graph=True)[0]
    x.data.mul_(1)
    close(torch.autograd.grad(y.sum(), x)[0], first)


def test_a_solver_of_ones_own():
    """A function gets products and vectors, with a batch in front, and serves every order."""
    seen = []

    def richardson(matvec, b):
        seen.append(b.ndim)
        w = torch.zeros_like(b)
        for _ in range(200):
            w = w + 0.8 * (b - matvec(w))
        return w

    ours = equilibrium(linear_solve=richardson)

    def loss(f):
        return lambda x: f(x).sin().sum()

    close(vmap(hessian(loss(ours)))(X), vmap(hessian(loss(unrolled)))(X))
    assert min(seen) > 1


def test_samples_stop_by_themselves():
    """In a batch each sample is solved to its own tolerance, whatever its scale and condition."""
    scale = torch.tensor([1e-10, 1.0, 1e10], dtype=F64)
    damping = torch.tensor([1.0, 1e2, 1e4], dtype=F64)

    def ours(scale, damping):
        a = torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=F64)) * damping + torch.ones(3, 3, dtype=F64)
        return implicit.solve(lambda w: scale * (a @ w), X[0], linear_solve="cg"), torch.linalg.inv(scale * a) @ X[0]

    found, expected = vmap(ours)(scale, damping)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)


# --- Warnings and errors ----------------------------------------------------------------------------------------------------


def test_a_solution_that_solves_nothing_warns():
    """The warning names the function, the residual and the sample; tol=None leaves it out."""

    def lazy(init, x):
        return iterated(lambda z: torch.cos(x * z), init, times=2)

    def of(**options):
        return implicit.fixed_point(lambda z, x: torch.cos(x * z), **options)(lazy)

    init, x = torch.tensor(0.5), torch.tensor([0.0, 0.0, 1.0])
    with pytest.warns(RuntimeWarning, match=r"implicit.fixed_point: lazy: .* residual of 0.\d* in sample 2, where"):
        vmap(of(), (None, 0))(init, x)
    with pytest.warns(RuntimeWarning, match=r"residual of 0.\d*, where the equation has the scale"):
        of()(init, torch.tensor(1.0))
    of(tol=None)(init, torch.tensor(1.0))
    of(tol=10.0)(init, torch.tensor(1.0))
    minimize = implicit.argmin(lambda w, x: (w - x).square().sum())(lambda init, x: x + 1)
    with pytest.warns(RuntimeWarning, match="where the gradient has the scale"):
        minimize(torch.zeros(2), torch.ones(2))


def test_good_solutions_do_not_warn():
    """A solution at 0, one that `init` already is, and one of float32 after a usual solver are silent."""
    solve = implicit.root(lambda z, x: z**3 + z - x, vmap_method="map")(
        lambda init, x: implicit.newton(lambda z: z**3 + z - x, init)
    )
    for x in (0.0, 1e-20, 3.0, 1e6):
        x = torch.tensor(x)
        z = solve(torch.ones(()), x)
        close(solve(z, x), z, 1e-6)
    nan = solve(torch.ones(()), torch.tensor(torch.nan))
    assert nan.isnan()


@pytest.mark.parametrize("method", [None, "dense"])
def test_singular_jacobians_raise(method):
    """A double root has no derivative: the error says so, and which sample it was. NaN in a sample leaves others alone."""
    root = implicit.root(lambda z, x: z**2 - x, linear_solve=method)(lambda init, x: x.sqrt())
    slope = vmap(grad(lambda x: root(x, x)))
    with pytest.raises(
        RuntimeError, match=r"implicit.root: .*the Jacobian of the equation by its solution is singular in sample 1"
    ):
        slope(torch.tensor([1.0, 0.0, 4.0]))
    found = slope(torch.tensor([1.0, torch.nan, 4.0]))
    assert found[1].isnan()
    close(found[[0, 2]], torch.tensor([0.5, 0.25]))
    numbers = torch.arange(1.0, 10.0).reshape(3, 3)
    with pytest.raises(RuntimeError, match="singular"):
        implicit.solve(lambda w: numbers @ w, torch.tensor([1.0, 0.0, 0.0]), linear_solve=method)


def test_rows_and_columns_of_other_scales_are_not_singular():
    """A regular matrix with rows and columns in other units is solved."""
    rows, columns = torch.tensor([[1.0, 1e-20, 1e20], [1e15, 1.0, 1e-9]], dtype=F64)
    scaled = rows[:, None] * matrix(X[0]) * columns
    found = implicit.solve(lambda w: scaled @ w, rows * (matrix(X[0]) @ X[1]))
    close(found * columns, X[1])


@pytest.mark.parametrize("method", ["cg", "gmres", "normal_cg"])
def test_iterative_solvers_that_fail_raise(method):
    """A system without a solution is an error, not a number."""
    a = torch.tensor([[1.0, 1.0], [1.0, 1.0]], dtype=F64)
    with pytest.raises(RuntimeError, match=f"{method} does not solve the linear equations"):
        implicit.solve(lambda w: a @ w, torch.tensor([1.0, -1.0], dtype=F64), linear_solve=method)


def test_a_solver_of_ones_own_that_stops_early_warns():
    """What a given function leaves is said, and is no error: papers stop early on purpose."""
    few = functools.partial(implicit.cg, maxiter=1)
    a = torch.diag(torch.tensor([1.0, 2.0, 9.0], dtype=F64))
    with pytest.warns(RuntimeWarning, match=r"leaves a residual of 0\.\d+ of the right-hand side"):
        implicit.solve(lambda w: a @ w, X[0], linear_solve=few)
    implicit.solve(lambda w: a @ w, X[0], linear_solve=few, tol=None)


ERRORS = {
    "no function": (lambda: implicit.root(3), TypeError, "implicit.root: the function must be callable, got .*int"),
    "no solver": (lambda: implicit.root(lambda z: z)(3), TypeError, "implicit.root: `f` must be callable"),
    "linear_solve": (lambda: implicit.root(lambda z: z, linear_solve="lu"), ValueError, "`linear_solve` must be .*'lu'"),
    "derivative": (
        lambda: implicit.fixed_point(lambda z: z, derivative="exact"),
        ValueError,
        "implicit.fixed_point: `derivative` must be .*'exact'",
    ),
    "terms": (lambda: implicit.fixed_point(lambda z: z, derivative=("neumann", -1)), ValueError, "neumann"),
    "vmap_method": (lambda: implicit.argmin(lambda z: z, vmap_method="loop"), ValueError, "`vmap_method` must be .*'loop'"),
    "no init": (lambda: implicit.root(lambda z: z)(lambda z: z)(), TypeError, "is called with `init` first"),
    "structure of init": (
        lambda: implicit.root(lambda z, x: z)(lambda init, x: (x,))(X[0], X[0]),
        TypeError,
        "the solution must have the structure of `init`",
    ),
    "dtype of init": (
        lambda: implicit.root(lambda z, x: z)(lambda init, x: x)(X[0].float(), X[0]),
        TypeError,
        "the solution must have the dtype of `init`, torch.float32, got torch.float64",
    ),
    "shape of init": (
        lambda: implicit.root(lambda z, x: z)(lambda init, x: x)(X, X[0]),
        ValueError,
        "the solution must have the shape of `init`",
    ),
    "an array": (
        lambda: implicit.root(lambda z, x: z)(lambda init, x: numpy.sqrt(x.numpy()))(None, X[0].abs()),
        TypeError,
        "the solution must be tensors, got a value of type numpy.ndarray. .*torch.from_numpy",
    ),
    "integers": (
        lambda: implicit.root(lambda z, x: z)(lambda init, x: x)(None, torch.arange(3)),
        TypeError,
        "the solution must be tensors of one floating dtype, got .*int64",
    ),
    "structure of the equation": (
        lambda: implicit.root(lambda z, x: (z, x))(lambda init, x: x)(None, X[0]),
        TypeError,
        "the value of the function",
    ),
    "shape of the equation": (
        lambda: implicit.root(lambda z, x: z.sum())(lambda init, x: x)(None, X[0]),
        ValueError,
        r"the value of the function must have the shape of the solution, \(3,\), got \(\)",
    ),
    "objective": (
        lambda: implicit.argmin(lambda z, x: z)(lambda init, x: x)(None, X[0]),
        TypeError,
        "must be a real scalar tensor, as it is the objective",
    ),
    "aux": (
        lambda: implicit.root(lambda z, x: z, has_aux=True)(lambda init, x: x)(None, X[0]),
        TypeError,
        "by `has_aux` the solver must return the pair",
    ),
    "in place": (
        lambda: implicit.root(lambda z, x: z)(lambda init, x: x.zero_())(None, X[0].clone()),
        RuntimeError,
        "changes an argument in place",
    ),
    "random": (
        lambda: implicit.root(lambda z, x: z - x + torch.rand(3))(lambda init, x: x)(None, X[0]),
        NotImplementedError,
        "draws random numbers",
    ),
    "matvec": (lambda: implicit.solve(3, X[0]), TypeError, "implicit.solve: `matvec` must be callable"),
    "right-hand side": (lambda: implicit.solve(lambda w: w, torch.arange(3)), TypeError, "must be tensors of one floating dtype"),
    "size of a solver's result": (
        lambda: implicit.solve(lambda w: w, X[0], linear_solve=lambda matvec, b: b[:2]),
        ValueError,
        r"`linear_solve` must return a tensor of shape \(3,\), got \(2,\)",
    ),
    "newton": (lambda: implicit.newton(3, X[0]), TypeError, "implicit.newton: `f` must be callable"),
    "bisection": (lambda: implicit.bisection(torch.cos, 0, 3), TypeError, "the bounds must be floating tensors"),
}


@pytest.mark.short
@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    """Bad input raises an error that names the function, the rule and what was found."""
    call, kind, message = ERRORS[name]
    with pytest.raises(kind, match=message):
        call()


# --- Memory, pickles, compiled code -----------------------------------------------------------------------------------------


def test_memory_does_not_grow_with_iterations():
    """Saved are the arguments and the solution, whatever the solver does."""
    saved = {}
    for times in (3, 300):
        solve = implicit.fixed_point(layer, tol=None)(functools.partial(iterated, layer, times=times))
        x = X[0].clone().requires_grad_()
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, sizes=sizes: sizes.append(t.nbytes) or t, lambda t: t):
            solve(torch.zeros(3, dtype=F64), x)
        saved[times] = sum(sizes)
    assert saved[3] == saved[300] <= 2 * X[0].nbytes


def test_arguments_are_kept_by_autograd_alone():
    """After a backward that frees what was saved, an argument is gone, although the solution is there."""
    for linear_solve in ("gmres", "normal_cg"):
        solve = implicit.fixed_point(layer, linear_solve=linear_solve)(functools.partial(iterated, layer))
        x = X[0].clone().requires_grad_()
        argument = x * 1
        ref = weakref.ref(argument)
        y = solve(argument.detach(), argument)
        y.sum().backward()
        del argument
        gc.collect()
        assert ref() is None


def test_a_solver_in_the_place_of_its_equation_is_told():
    """``@implicit.root`` without an equation takes the solver for one."""

    @implicit.root
    def solve(init, x):
        return x

    with pytest.raises(TypeError, match=r"implicit.root of a function is a decorator of solvers, got 2 arguments. .* write "):
        solve(X[0], X[0])


def step(z, x):
    return torch.tanh(0.5 * z + x)


@implicit.fixed_point(step)
def named(init, x):
    return iterated(step, init, x)


def test_pickles_and_copies():
    """A solver pickles by its name, and one that is no function's own by its parts."""
    assert pickle.loads(pickle.dumps(named)) is named
    made = implicit.fixed_point(step, linear_solve="gmres")(functools.partial(iterated, step))
    for other in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        close(jacrev(other, 1)(X[1], X[0]), jacrev(named, 1)(X[1], X[0]))


@pytest.mark.sampled(of=7)
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
@pytest.mark.parametrize("problem", ["scipy", "gmres", "inside vmap", "conditions", "solve"])
def test_compiled(problem, backend):
    """Compiled code of a forward and a backward, and of transforms, has the numbers of eager code."""
    ours, _ = PROBLEMS[problem]
    if problem == "conditions":

        def like(init, x):
            return {"x": torch.empty(3, dtype=F64), "nu": torch.empty((), dtype=F64)}

        made = implicit.root(quadratic_program.given, like=like)(quadratic_program.function)

        def ours(x):
            return made(None, x)["x"]

    def loss(x):
        return ours(x).sin().sum()

    x = X[0].clone().requires_grad_()
    torch.compile(loss, backend=backend, fullgraph=True)(x).backward()
    close(x.grad, grad(loss)(X[0]))

    def tangent(f):
        return lambda x: jvp(f, (x[0],), (x[1],))[1]

    # torch does not compile the tangent of this problem's matrix, in plain code either.
    for transform in (lambda f: vmap(grad(f)), *[tangent] * (problem != "solve")):
        close(torch.compile(transform(loss), backend=backend, fullgraph=True)(X), transform(loss)(X))


def test_compiled_code_must_know_the_result():
    """Without `init` and `like` the cause of Dynamo's error says what to write."""
    with pytest.raises(Exception, match="nonstrict_trace") as caught:
        torch.compile(lambda x: quadratic_program(None, x)["x"], backend="aot_eager", fullgraph=True)(X[0])
    error = caught.value
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__
    assert "State it by `like`" in str(error)


def test_saved_tensor_hooks_see_no_solver():
    """Hooks around a call see what is saved for its derivative, and nothing of a solver that uses autograd."""
    for case in CASES:
        seen = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, seen=seen: seen.append(t) or t, lambda t: t):
            case.operator(*case.inputs)
        assert not seen, case.name


def test_autocast():
    """The equation is computed as it was at the call, and its Jacobian belongs to the solution's dtype."""
    module = torch.nn.Linear(3, 3)
    solve = implicit.fixed_point(lambda z, x: torch.tanh(0.3 * module(z) + x), tol=None)(
        lambda init, x: iterated(lambda z: torch.tanh(0.3 * module(z).float() + x), init)
    )
    x = X[0].float().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = solve(torch.zeros(3), x)
    (low,) = torch.autograd.grad(y.sum(), x)
    (full,) = torch.autograd.grad(solve(torch.zeros(3), x).sum(), x)
    torch.testing.assert_close(low, full, rtol=0.03, atol=0.03)
    assert low.dtype == torch.float32


def test_batched_gradients_of_autograd():
    """`is_grads_batched` and `torch.autograd.functional` use torch's legacy vmap, which is served too."""
    for problem in ("dense", "gmres", "inside vmap"):
        ours, expected = PROBLEMS[problem]
        x = X[0].clone().requires_grad_()
        y = ours(x)
        (rows,) = torch.autograd.grad(y, x, torch.eye(3, dtype=F64), is_grads_batched=True)
        close(rows, jacrev(expected)(X[0]))
        for strategy in ("reverse-mode", "forward-mode"):
            found = torch.autograd.functional.jacobian(ours, X[0], vectorize=True, strategy=strategy)
            close(found, jacrev(expected)(X[0]))


def test_a_warning_is_given_once():
    """A call gives one warning, at the line of the user."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        implicit.root(lambda z, x: z - x)(lambda init, x: x + 1)(None, X[0])
    assert [w.filename for w in seen] == [__file__]


def test_conjugate_gradients_name_a_matrix_that_is_indefinite():
    """Where p A p is 0 or has both signs, and the residual is not small, a number that is nearly right is an error."""
    x = torch.tensor([2.0, 3.0], dtype=F64)
    for sign in (1.0, -1.0):
        solve = lambda a: implicit.solve(lambda w: a * w, x, linear_solve="cg")  # noqa: E731
        close(solve(sign * x), torch.full_like(x, sign))
    indefinite = implicit.root(lambda z, x: torch.stack([x[0] - z[0], z[1] - x[1]]), linear_solve="cg")(lambda init, x: x.clone())
    with pytest.raises(RuntimeError, match="cg does not solve the linear equations"):
        grad(lambda x: indefinite(None, x).sum())(x)


def energy(z, y):
    return ((z - y) ** 2 + 0.1 * z**4).sum()


slope = grad(energy)


@pytest.mark.parametrize("method", ["map", "sequential"])
@pytest.mark.parametrize("kind", ["root", "argmin"])
def test_solvers_and_equations_may_use_transforms(kind, method):
    """`torch.func.grad` makes tensors below what a mode of torch functions sees."""
    decorate = implicit.root(slope, vmap_method=method) if kind == "root" else implicit.argmin(energy, vmap_method=method)
    solve = decorate(lambda init, y: implicit.newton(lambda z: slope(z, y), init))
    y = torch.tensor([1.0, 2.0, 3.0], dtype=F64, requires_grad=True)
    z = solve(torch.ones_like(y), y)
    close(slope(z.detach(), y.detach()), torch.zeros(3, dtype=F64))
    first = 2 / (2 + 1.2 * z**2)  # of z by y, where 2 (z - y) + 0.4 z**3 = 0
    g = torch.autograd.grad(z.sum(), y, create_graph=True)[0]
    close(g, first)
    close(torch.autograd.grad(g.sum(), y)[0], (-2.4 * z * first / (2 + 1.2 * z**2) * first).detach())
    of_samples = vmap(grad(lambda y: solve(torch.ones_like(y), y)))(y.detach())
    close(of_samples, first.detach())


def test_a_network_that_a_solver_makes_and_trains():
    """Parameters made in the call are the solver's own, not what it closes over."""

    @implicit.fixed_point(lambda z, x: x.mean(0), tol=None)
    def mean(init, x):
        net = torch.nn.Linear(1, 2).double()
        net.weight.requires_grad_(False).zero_()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        for _ in range(60):
            optimizer.zero_grad()
            (net(torch.ones(1, dtype=F64)) - x).square().sum(-1).mean().backward()
            optimizer.step()
        return net.bias

    x = torch.arange(6.0, dtype=F64).reshape(3, 2).requires_grad_()
    y = mean(None, x)
    close(y.detach(), x.detach().mean(0))
    close(torch.autograd.grad(y.sum(), x)[0], torch.full((3, 2), 1 / 3, dtype=F64))


@pytest.mark.parametrize("method", ["cg", "normal_cg", "gmres"])
def test_subnormal_cotangents(method):
    """Vectors without digits leave no residual that means something; `torch.func.linearize` runs such ones once."""
    solve = implicit.root(lambda z, x: z * torch.tensor([1.0, 3.0, 7.0], dtype=F64) - x, linear_solve=method)(
        lambda init, x: x / torch.tensor([1.0, 3.0, 7.0], dtype=F64)
    )
    x = torch.ones(3, dtype=F64, requires_grad=True)
    found = torch.autograd.grad(solve(None, x), x, torch.full((3,), 6e-323, dtype=F64))[0]
    assert (found.abs() < 1e-321).all()


def test_a_solution_at_which_the_equation_has_no_number_warns():
    """An infinite residual is no small one, whatever the scale. An infinite solution is seen."""
    solve = implicit.root(lambda z, x: z.exp() - x)(lambda init, x: init)
    x = torch.tensor(1e6, dtype=F64)
    with pytest.warns(RuntimeWarning, match="leaves a residual"):
        solve(torch.tensor(1000.0, dtype=F64), x)
    solve(torch.tensor(torch.inf, dtype=F64), x)


def test_an_equation_whose_scale_overflows_does_not_warn():
    """A solution next to the largest number leaves a residual that rounding explains, although the scale is infinite."""
    solve = implicit.argmin(lambda z, x: ((z - x) * (z - x) + z * z * 0.3).sum())(lambda init, x: x / 1.3)
    solve(torch.zeros(5, dtype=F64), torch.tensor([0.7, 0.123, -1.9, 3.3, torch.finfo(F64).max], dtype=F64))


# --- Structures, and transforms in an equation, in traced code --------------------------------------------------------------


@dataclasses.dataclass
class Pair:
    """A structure of one's own."""

    a: torch.Tensor
    b: torch.Tensor


pytree.register_dataclass(Pair)
STRUCTURES = {
    "dict": lambda a, b: {"b": b, "a": a},
    "tuple": lambda a, b: (a, b),
    "list": lambda a, b: [a, [b]],
    "dataclass": Pair,
}


def energy_of_structure(z, x):
    """A function of a structure, which is least where each number is ``x.sum() / x[0]``."""
    return sum([(t * t * x[0]).sum() / 2 - (t * x.sum()).sum() for t in pytree.tree_leaves(z)])


TRANSFORMS = {
    "grad": grad(energy_of_structure),
    "vjp": lambda z, x: torch.func.vjp(lambda z: energy_of_structure(z, x), z)[1](torch.ones((), dtype=F64))[0],
    "jvp": lambda z, x: pytree.tree_map(lambda t: jvp(lambda s: s * s * x[0] / 2 - s * x.sum(), (t,), (t * 0 + 1,))[1], z),
    "jacrev": jacrev(energy_of_structure),
    "vmap": lambda z, x: pytree.tree_map(vmap(lambda t: t * x[0] - x.sum()), z),
}


def direct(init, x):
    """The solution in closed form."""
    return pytree.tree_map(lambda t: torch.zeros_like(t) + x.sum() / x[0], init)


def total(solver, make, x):
    """A function of a solution."""
    return sum([t.square().sum() for t in pytree.tree_leaves(solver(make(x.new_ones(2), x.new_zeros(1)), x))])


def compiled_gradient(f, x):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(torch.compile(f, backend="aot_eager", fullgraph=True)(x), x)[0]


TRACED = {
    "linearize": lambda f, x: torch.stack([torch.func.linearize(f, x)[1](t) for t in torch.eye(2, dtype=F64)]),
    "make_fx": lambda f, x: make_fx(grad(f))(x)(x),
    "compiled": compiled_gradient,
}
# torch.func.linearize fails or is wrong around torch's own jvp and jacrev.
PAIRS = [("grad", way) for way in TRACED] + [(name, "compiled") for name in TRANSFORMS if name != "grad"]


@pytest.mark.parametrize(("transform", "way"), PAIRS)
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.sampled(of=3)
def test_structures_and_transforms_in_traced_code(structure, transform, way):
    """A solution of any structure, by an equation that uses transforms, has its derivative in traced code."""
    if transform != "grad" and structure != "dict":
        pytest.skip("each structure with one transform, each transform with one structure")
    x = torch.tensor([2.0, 3.0], dtype=F64)
    solver, make = implicit.root(TRANSFORMS[transform])(direct), STRUCTURES[structure]
    close(TRACED[way](lambda x: total(solver, make, x), x), grad(lambda x: 3 * (x.sum() / x[0]) ** 2)(x))


@pytest.mark.parametrize("found", [lambda z: [z], lambda z: {"a": z}, lambda z: None, lambda z: 1.0])
def test_values_of_another_structure_are_refused(found):
    """An equation whose value is not like the solution raises the documented error, whichever equation it is."""
    with pytest.raises(TypeError, match=r"implicit\.solve: .*the value of the function must"):
        implicit.solve(found, torch.ones(2))
    for kind in (implicit.root, implicit.fixed_point):
        with pytest.raises(TypeError, match="the value of the function must"):
            kind(lambda z: found(z))(lambda init: init)(torch.ones(2))


def test_values_of_another_shape_are_refused():
    """A value that would broadcast to the solution is no value of the equation."""
    with pytest.raises(ValueError, match="must have the shape of the solution"):
        implicit.fixed_point(lambda z: z[:1])(lambda init: init)(torch.ones(2))
    with pytest.raises(ValueError, match="must have the shape of the solution"):
        implicit.solve(lambda w: w.sum(), torch.ones(2))
