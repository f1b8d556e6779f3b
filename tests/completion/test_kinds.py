"""What samples of other users found inside `completing`: next to 0, in nested batches, of lists, in graphs of `linearize`."""

import contextlib
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap

import fullgrad
from tests.completion.test_completing import NESTINGS, seeded

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="torch is too old for it"),
]
SERIES = {  # the coefficients of powers of the argument, from 0
    "sinc": (torch.sinc, [0 if k % 2 else (-1) ** (k // 2) * math.pi**k / math.factorial(k + 1) for k in range(30)]),
    "i1": (
        torch.special.i1,
        [0 if k % 2 == 0 else 0.5**k / (math.factorial(k // 2) * math.factorial(k // 2 + 1)) for k in range(30)],
    ),
}


def of_series(coefficients, order, x):
    return sum(math.perm(k, order) * c * x ** (k - order) for k, c in enumerate(coefficients) if k >= order)


@pytest.mark.parametrize("name", SERIES)
@pytest.mark.parametrize("nesting", NESTINGS)
@pytest.mark.parametrize("x", [0.0, 1e-6, -1e-4, 1e-3, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_derivatives_next_to_0(name, nesting, x, dtype):
    """They are those of the series; torch's are differences of numbers that are almost equal."""
    f, coefficients = SERIES[name]
    rounded = torch.tensor(x, dtype=dtype)
    with fullgrad.completing():
        value, second = f(rounded), NESTINGS[nesting](f)(rounded)
        third = grad(NESTINGS[nesting](f))(rounded)
    assert value == f(rounded)
    for order, found in ((2, second), (3, third)):
        right = of_series(coefficients, order, rounded.item())
        assert abs(found.item() - right) <= 20 * torch.finfo(dtype).eps * max(abs(right), 1)


@pytest.mark.parametrize("name", SERIES)
def test_eager_derivatives_next_to_0(name):
    """The first one is torch's own, bit for bit, and the next ones are right."""
    f, coefficients = SERIES[name]
    x = torch.tensor([0.0, 1e-5, 2.5], dtype=torch.float64, requires_grad=True)
    (own,) = torch.autograd.grad(f(x).sum(), x)
    with fullgrad.completing():
        (first,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        (third,) = torch.autograd.grad(second.sum(), x)
    assert torch.equal(first, own)
    for order, found in ((2, second), (3, third)):
        right = torch.tensor([of_series(coefficients, order, v) for v in x.tolist()[:2]], dtype=x.dtype)
        torch.testing.assert_close(found[:2], right)


def test_sinc_of_other_numbers():
    """Complex numbers, half precision and integers have torch's values."""
    samples = [torch.tensor([0.3 + 1j, 0, 2]), torch.tensor([0.3, 0.0, 2.5]).half(), torch.tensor([0, 1])]
    for x in samples:
        with fullgrad.completing():
            found = vmap(torch.sinc)(x)
            if x.is_floating_point() or x.is_complex():
                assert vjp(torch.sinc, x)[1](torch.ones_like(x))[0].isfinite().all()
        torch.testing.assert_close(found, torch.sinc(x))


@pytest.mark.parametrize("nesting", NESTINGS)
@pytest.mark.parametrize("exponent", [torch.tensor(2), torch.tensor(3.0, dtype=torch.float64)])
@pytest.mark.parametrize("x", [0.0, -1.5, 2.0])
def test_powers_by_a_tensor(nesting, exponent, x):
    """Those of 0 and of negative numbers have second derivatives, as by a number of Python."""
    n, x = exponent.item(), torch.tensor(x, dtype=torch.float64)
    with fullgrad.completing():
        found = NESTINGS[nesting](lambda x: x.pow(exponent))(x)
        third = grad(NESTINGS[nesting](lambda x: x.pow(exponent)))(x)
    torch.testing.assert_close(found, n * (n - 1) * x ** (n - 2))
    torch.testing.assert_close(third, n * (n - 1) * (n - 2) * x ** max(n - 3, 0))


def test_powers_by_their_exponents():
    """Slopes by both are those of the exponential."""
    x, y = seeded(3).exp(), seeded(1)
    right = hessian(lambda x, y: (y * x.log()).exp().sum(), (0, 1))(x, y)
    with fullgrad.completing():
        for outer, inner in itertools.product((jacfwd, jacrev), repeat=2):
            found = outer(inner(lambda x, y: x.pow(y).sum(), (0, 1)), (0, 1))(x, y)
            for a, b in zip(found, right, strict=True):
                torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", ["var", "var_mean", "std", "std_mean"])
@pytest.mark.parametrize("keepdim", [True, False])
@pytest.mark.parametrize("correction", [0, 1])
def test_variances_over_no_dimensions(name, keepdim, correction):
    """They are over all of them, and so is the gradient, in eager code, too."""
    x = seeded(2, 3)
    of = lambda x, dim: getattr(torch, name)(x, dim=dim, keepdim=keepdim, correction=correction)  # noqa: E731
    f = lambda x, dim: sum(v.sin().sum() for v in (of(x, dim) if "mean" in name else [of(x, dim)]))  # noqa: E731
    right, second = grad(f)(x, (0, 1)), hessian(f)(x, (0, 1))
    with fullgrad.completing():
        leaf = x.clone().requires_grad_()
        torch.testing.assert_close(torch.autograd.grad(f(leaf, ()), leaf)[0], right)
        torch.testing.assert_close(grad(f)(x, ()), right)
        torch.testing.assert_close(jacfwd(f)(x, ()), right)
        torch.testing.assert_close(hessian(f)(x, ()), second)
        torch.testing.assert_close(vmap(grad(lambda x: f(x, ())))(torch.stack([x, x]))[1], right)


@pytest.mark.parametrize("p", [3, 0.5, -1])
def test_norms_with_nan(p):
    """Next to what is no number a 0 has no slope, as in eager code."""
    x = torch.tensor([[0.0, math.nan], [0.0, 2.0]])
    f = lambda x: torch.linalg.vector_norm(x, p, dim=1).sum()  # noqa: E731
    leaf = x.clone().requires_grad_()
    right = torch.autograd.grad(f(leaf), leaf)[0]
    with fullgrad.completing():
        torch.testing.assert_close(grad(f)(x), right, equal_nan=True)
        torch.testing.assert_close(vmap(grad(f))(x[None])[0], right, equal_nan=True)


LOSSES = {
    "mse": F.mse_loss,
    "huber": F.huber_loss,
    "smooth_l1": F.smooth_l1_loss,
    "l1": F.l1_loss,
    "bce": lambda x, y, **k: F.binary_cross_entropy(x.sigmoid(), y.sigmoid(), **k),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("is_first", [True, False])
def test_losses_in_nested_batches(name, reduction, is_first):
    """One argument has two batches, the other none, or each has one of the two."""
    xs, y = seeded(2, 3, 2, 2), seeded(2, 2).sin()
    g = lambda x, y: LOSSES[name](*((x, y) if is_first else (y, x)), reduction=reduction).sin().sum()  # noqa: E731
    right = torch.stack([torch.stack([grad(g)(x, y) for x in row]) for row in xs])
    crossed = torch.stack([torch.stack([grad(g)(x, y) for x in xs[0]]) for y in xs[1]])
    with fullgrad.completing():
        torch.testing.assert_close(vmap(vmap(lambda x: grad(g)(x, y)))(xs), right)
        torch.testing.assert_close(vmap(vmap(lambda x: jacfwd(g)(x, y)))(xs), right)
        torch.testing.assert_close(vmap(vmap(lambda x: g(x, y)))(xs)[1, 2], g(xs[1, 2], y))
        torch.testing.assert_close(vmap(lambda y: vmap(lambda x: grad(g)(x, y))(xs[0]))(xs[1]), crossed)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("weight", [None, torch.tensor([0.5, 2.0])])
def test_entropies_along_many_directions(reduction, weight):
    """Directions alone are batched, in reverse over forward mode."""
    x, y, ts = seeded(3, 2).sigmoid(), seeded(3, 2).cos().abs(), torch.stack([seeded(3, 2), seeded(3, 2).sin()])
    f = lambda x: F.binary_cross_entropy(x, y, weight, reduction=reduction).sin().sum()  # noqa: E731
    along = lambda t: grad(lambda x: jvp(f, (x,), (t,))[1])(x)  # noqa: E731
    with fullgrad.completing():
        torch.testing.assert_close(vmap(along)(ts), torch.stack([along(t) for t in ts]))


def test_factors_in_nested_batches():
    """What is solved by factors has a gradient, and what is not asked for is empty."""
    a, b = seeded(2, 3, 3, 3) + 3 * torch.eye(3), seeded(3, 2)
    f = lambda a: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b).sin().sum()  # noqa: E731
    right = torch.stack([torch.stack([grad(f)(v) for v in row]) for row in a])
    factors = torch.linalg.lu_factor(a)
    with fullgrad.completing():
        torch.testing.assert_close(vmap(vmap(grad(f)))(a), right)
        for options in ({"unpack_data": False}, {"unpack_pivots": False}):
            own = torch.lu_unpack(*factors, **options)
            found = vmap(vmap(lambda *v: tuple([u for u in torch.lu_unpack(*v, **options) if u.numel()])))(*factors)  # noqa: B023
            for u, v in zip(found, [u for u in own if u.numel()], strict=True):
                torch.testing.assert_close(u, v)


PRODUCTS = {
    "addmm": lambda x, m, **k: torch.addmm(x, m, m, **k),
    "addmv": lambda x, m, **k: torch.addmv(x, m, m[0], **k),
    "addbmm": lambda x, m, **k: torch.addbmm(x, m[None], m[None], **k),
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("beta", [0, 0.5])
def test_products_by_a_factor_of_0(name, beta):
    """They are left out in a batch, as in eager code, also where they are no numbers."""
    x, m = torch.ones(2), torch.tensor([[math.nan, 1.0], [math.inf, 0.0]])
    f = lambda x, m: PRODUCTS[name](x, m, beta=beta, alpha=0)  # noqa: E731
    with fullgrad.completing():
        torch.testing.assert_close(vmap(f)(x[None], m[None])[0], f(x, m))
        torch.testing.assert_close(vmap(grad(lambda x, m: f(x, m).sum()))(x[None], m[None])[0], grad(lambda x: f(x, m).sum())(x))


def test_chains_of_samples():
    a, b = seeded(4, 2, 3), seeded(4, 3, 2)
    with fullgrad.completing():
        torch.testing.assert_close(vmap(torch.chain_matmul)(a, b), a @ b)


LISTS = {
    "add": lambda x, y: torch._foreach_add([x], [y], alpha=2),
    "numbers": lambda x, y: torch._foreach_mul([x, y], [2.0, 3.0]),
    "norm": lambda x, y: torch._foreach_norm([x, y]),
    "norm, 1": lambda x, y: torch._foreach_norm([x, y], 1),
    "maximum": lambda x, y: torch._foreach_maximum([x, y], 0.1),
    "minimum": lambda x, y: torch._foreach_minimum([x, y], [0.1, 0.2]),
    "power of a number": lambda x, y: torch._foreach_pow(2.0, [x, y]),
    "addcmul": lambda x, y: torch._foreach_addcmul([x], [y], [x], value=0.3),
    "addcdiv": lambda x, y: torch._foreach_addcdiv([x, y], [y, x], [x, y], [0.3, 2.0]),
    "lerp": lambda x, y: torch._foreach_lerp([x], [y], 0.3),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_tensors(name):
    """They have tangents and batches, with the numbers of eager code."""
    x, y = seeded(2, 3).exp() / 2
    f = lambda x, y: sum(v.sin().sum() for v in LISTS[name](x, y))  # noqa: E731
    leaves = [v.clone().requires_grad_() for v in (x, y)]
    right = torch.autograd.grad(f(*leaves), leaves)
    with fullgrad.completing():
        values = vmap(lambda x, y: tuple(LISTS[name](x, y)))(x[None], y[None])
        for found in (grad(f, (0, 1))(x, y), jacfwd(f, (0, 1))(x, y), [v[0] for v in vmap(grad(f, (0, 1)))(x[None], y[None])]):
            torch.testing.assert_close(tuple(found), right)
    torch.testing.assert_close(tuple([v[0] for v in values]), tuple(LISTS[name](x, y)))


def test_lists_in_place():
    x, y = seeded(2, 3)

    def f(x, y):
        x = x.clone()
        torch._foreach_mul_([x], [y])
        torch._foreach_maximum_([x], 0.1)
        torch._foreach_addcmul_([x], [y], [y], value=2)
        return x.sin().sum()

    right = grad(lambda x, y: (torch.maximum(x * y, torch.full_like(x, 0.1)) + 2 * y * y).sin().sum(), (0, 1))(x, y)
    with fullgrad.completing():
        torch.testing.assert_close(grad(f, (0, 1))(x, y), right)
        torch.testing.assert_close(jacfwd(f, (0, 1))(x, y), right)


def written(x):
    z = torch.zeros_like(x)
    z[0] = x[1] * x[0]
    z.mul_(x).add_(1)
    return z.sin().sum()


def added(x):
    z = torch.zeros_like(x)
    z.index_add_(0, torch.tensor([0, 0]), x[:2].square())
    return z.exp().sum()


GRAPHS = {
    "padding": lambda x: F.conv2d(F.pad(x[None, None], (1, 1, 1, 1), mode="circular"), x[None, None]).sum(),
    "written": written,
    "added": added,
    "constant": lambda x: (torch.eye(3, dtype=x.dtype).fill_diagonal_(3.0) @ x).sin().sum(),
    "jacobian": lambda x: jacrev(lambda v: (x @ v).sin())(x[0]).square().sum(),
    "distribution": lambda x: torch.distributions.LowRankMultivariateNormal(
        x[0], x[:, :1], torch.ones_like(x[0]), validate_args=False
    ).log_prob(x[1]),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_of_linearize(name):
    """Each call has the tangent of its direction, also where code writes to its temporaries."""
    f, x, ts = GRAPHS[name], seeded(3, 3), [seeded(3, 3).sin(), seeded(3, 3).cos()]
    with fullgrad.completing():
        right = [jvp(f, (x,), (t,))[1] for t in ts]
        tangent = linearize(f, x)[1]
        for i in (0, 1, 0):
            torch.testing.assert_close(tangent(ts[i]), right[i])
        torch.testing.assert_close(vmap(tangent)(torch.stack(ts)), torch.stack(right))


def test_linearize_where_dynamo_is_imported():
    """torch then asks whether Dynamo knows the functions that linearize calls."""
    torch.compile(torch.sin, backend="eager")(seeded(2))
    for context in (contextlib.nullcontext(), fullgrad.completing(), fullgrad.completing()):
        with context:
            torch.testing.assert_close(linearize(torch.sin, seeded(2))[1](seeded(2)), seeded(2).cos() * seeded(2))


@pytest.mark.parametrize("padding", ["border", "reflection"])
@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_eager_gradients_at_grids_that_are_no_numbers(padding, align, value):
    """torch's kernel reads memory that is none of the image there, and crashes. Other places have torch's own gradient."""
    x, place = seeded(1, 2, 4, 4).float(), torch.tensor([0.3, -0.2])
    f = lambda x, g: F.grid_sample(x, g, "bilinear", padding, align).sin().sum()  # noqa: E731
    grid = torch.stack([torch.tensor([value, 0.2]), place])[None, None]
    with fullgrad.completing():
        leaves = [v.clone().requires_grad_() for v in (x, grid)]
        of_image, of_grid = torch.autograd.grad(f(*leaves), leaves)
        under = grad(f, (0, 1))(x, grid)
    torch.testing.assert_close(of_grid[:, :, 1:], grad(f, 1)(x, grid[:, :, 1:]))
    torch.testing.assert_close(of_image, under[0])
    assert of_grid[0, 0, 0, 0] == 0
