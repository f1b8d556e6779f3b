"""The largest and smallest numbers: finite derivatives, truth values in their range, a softness without a reciprocal."""

import math

import pytest
import torch
from torch.func import grad, jacrev, jvp, vmap

import fullgrad
from fullgrad import soft
from fullgrad.soft.order.methods import WEIGHTED_SUM_METHODS

pytestmark = pytest.mark.short

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
MODES = ("smooth", "c0", "c1", "c2")
INF = math.inf


def first(y):
    """The values: a tensor, or the first of a pair."""
    return y if isinstance(y, torch.Tensor) else y[0]


STATISTICS = {
    "sort": soft.sort,
    "sort_st": fullgrad.sort_st,
    "topk": lambda x, **options: soft.topk(x, 2, **options),
    "max": lambda x, **options: soft.max(x, -1, **options),
    "min_st": lambda x, **options: fullgrad.min_st(x, -1, **options),
    "median": lambda x, **options: soft.median(x, -1, **options),
    "quantile": lambda x, **options: soft.quantile(x, [0.3, 0.8], -1, **options).movedim(0, -1),
}


def rows(dtype, n):
    """Rows with one largest number among others, at either end; with one at each; of large numbers; of ordinary ones."""
    x = torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64).clamp(-2, 2)
    large, at = 0.9 * torch.finfo(dtype).max, torch.arange(n)
    highest, lowest = torch.where(at == 2, large, x), torch.where(at == 0, -large, x)
    return torch.stack([highest, lowest, torch.where(at == 1, large, lowest), large / 2 * x, x]).to(dtype)


@pytest.mark.short(of=3)
@pytest.mark.parametrize("method", WEIGHTED_SUM_METHODS)
@pytest.mark.parametrize("name", STATISTICS)
def test_derivatives_of_the_largest_numbers(name, method):
    """Derivatives, by autograd, transforms and forward mode, are those of the same numbers in a unit in which they are small."""
    for dtype in (torch.float32, torch.float64) if method != "ot" else (torch.float32,):
        x = rows(dtype, 6 if method == "ot" else 24)
        unit = torch.where(x.abs().amax(-1, keepdim=True) > 1e6, 2.0 ** (torch.finfo(dtype).bits * 1.25), 1.0).to(dtype)
        for mode in ("smooth", "c1"):
            f = lambda x, m=mode: first(STATISTICS[name](x, method=method, mode=m))  # noqa: E731
            y = f(x)
            weights = torch.linspace(0.5, 1.5, y.numel(), dtype=dtype).view(y.shape)
            total = lambda x, w, f=f: (f(x) * w).sum()  # noqa: E731
            expected = vmap(grad(total))((x / unit).double(), weights.double())
            leaf = x.clone().requires_grad_()
            (found,) = torch.autograd.grad(f(leaf), leaf, weights)
            tangent = torch.linspace(-1, 1, x.numel(), dtype=dtype).view(x.shape)
            moved = jvp(f, (x,), (tangent,))[1]
            for gradient in (found, vmap(grad(total))(x, weights)):
                torch.testing.assert_close(gradient.double(), expected, rtol=1e-3, atol=1e-4)
            pushed = jvp(f, ((x / unit).double(),), (tangent.double(),))[1]
            torch.testing.assert_close(moved.double(), pushed, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mode", ["smooth", "c1"])
@pytest.mark.parametrize("n", [4, 700])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_that_differ_are_no_tie(dtype, n, mode):
    """The slope of a distance is 1, and not 0, also where the numbers are equal over the softness."""
    softness = 1.3
    near = 1.9 + torch.arange(100, dtype=dtype) * torch.finfo(dtype).eps
    at = int((near[1:] / softness == near[:-1] / softness).nonzero()[0])
    x = torch.cat([near[at : at + 2], torch.linspace(2.2, 9.0, n - 2, dtype=dtype)])
    # As one tie would be: further apart by less than any rounding that counts.
    apart = torch.cat([x[:1] - 1e-6, x[1:]])
    g = torch.linspace(0.5, 1.5, n, dtype=dtype).flip(0)
    for f in (soft.sort, soft.rank):
        total = lambda x, f=f: (first(f(x, softness=softness, mode=mode, method="softsort", standardize=False)) * g).sum()  # noqa: E731
        torch.testing.assert_close(grad(total)(x), grad(total)(apart), rtol=1e-3, atol=1e-4)


TRUTH = {
    "eq": lambda x, y, s, mode: soft.eq(x, y, s, mode),
    "not_equal": lambda x, y, s, mode: soft.not_equal(x, y, s, mode),
    "isclose": lambda x, y, s, mode: soft.isclose(x, y, s, 0.1, 0.2, mode),
    "isclose, absolute": lambda x, y, s, mode: soft.isclose(x, y, s, 0.0, 0.2, mode),
    "greater": lambda x, y, s, mode: soft.greater(x, y, s, mode),
    "less_equal": lambda x, y, s, mode: soft.less_equal(x, y, s, mode),
    "sigmoidal": lambda x, y, s, mode: soft.sigmoidal(x, s, mode),
    "sign": lambda x, y, s, mode: (soft.sign(x, s, mode) + 1) / 2,
}


@pytest.mark.short(of=3)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", TRUTH)
def test_truth_values_are_in_their_range(name, dtype):
    """Truth values of all numbers, infinities included, are in their range, with a gradient and without."""
    numbers = torch.finfo(dtype)
    special = torch.tensor(
        [0.0, -0.0, INF, -INF, numbers.max, -numbers.max, numbers.tiny, numbers.tiny * numbers.eps, 1.0], dtype=dtype
    )
    x = torch.cat([special, torch.linspace(-3, 3, 1000, dtype=torch.float64).to(dtype)])
    x, y = torch.meshgrid(x, torch.cat([special, x[100::300]]), indexing="ij")
    known = ~((x == y) & x.isinf())
    for mode in MODES:
        for s in (1e-45, 1e-3, 0.1, 0.3, 1.0, 1e30, torch.tensor(0.3, dtype=dtype)):
            for argument in (x, x.clone().requires_grad_()):
                c = TRUTH[name](argument, y, s, mode).detach()[known]
                assert ((c >= 0) & (c <= 1)).all(), (mode, s)


def test_logic_of_truth_values_is_one():
    """Logic gives truth values near 0 and 1, too, in every dtype."""
    for dtype in DTYPES:
        t = torch.rand(3000, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        eps = torch.finfo(dtype).eps
        t = torch.cat([t, 1 - t * eps, t * eps]).to(dtype)
        for mean in (False, True):
            for c in (
                *[f(t[:, 0], t[:, 1], mean) for f in (soft.logical_and, soft.logical_or, soft.logical_xor)],
                soft.all(t, use_geometric_mean=mean),
                soft.any(t, use_geometric_mean=mean),
                soft.logical_not(t),
            ):
                assert ((c >= 0) & (c <= 1)).all()


@pytest.mark.parametrize("mode", MODES)
def test_closeness_is_1_within_the_tolerance(mode):
    """The derivative is 0 within the tolerance; beyond it that of equality less the tolerance, of every order and argument."""
    x = torch.linspace(-1, 1, 41, dtype=torch.float64) + 0.0137
    s = torch.tensor(0.1, dtype=torch.float64)
    f = lambda x, s: soft.isclose(x, 0.0, s, rtol=0.0, atol=0.3, mode=mode, epsilon=0.0)  # noqa: E731
    formula = lambda x, s: 2 * soft.sigmoidal(-torch.relu(soft.abs(x, s, mode) - 0.3), s, mode)  # noqa: E731
    assert (f(x, s)[x.abs() < 0.25] == 1).all()
    for way in (lambda f: f, grad, lambda f: grad(grad(f)), lambda f: grad(f, argnums=1)):
        for g in (f, lambda x, _: f(x, 0.1)):
            if way(f) is f or g is f:
                torch.testing.assert_close(
                    vmap(way(g), (0, None))(x, s), vmap(way(formula), (0, None))(x, s), rtol=1e-6, atol=1e-7
                )
    leaf = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(f(leaf, 0.1).sum(), leaf)
    torch.testing.assert_close(found, vmap(grad(formula), (0, None))(x, s), rtol=1e-6, atol=1e-7)


SOFTENED = {
    **{name: getattr(soft, name) for name in ("abs", "sign", "relu", "softrelu", "sigmoidal", "heaviside", "round")},
    "gated relu": lambda x, s, mode: soft.relu(x, s, mode, gated=True),
    "clamp": lambda x, s, mode: soft.clamp(x, -1.0, 1.0, s, mode),
    "gated clamp": lambda x, s, mode: soft.clamp(x, -1.0, 1.0, s, mode, gated=True),
    **{n: lambda x, s, mode, n=n: getattr(soft, n)(x, 0.4, s, mode) for n in ("greater", "less_equal", "eq", "not_equal")},
    "isclose": lambda x, s, mode: soft.isclose(x, 0.4, s, mode=mode),
    "sort": lambda x, s, mode: soft.sort(x, softness=s, mode=mode)[0],
    "rank": lambda x, s, mode: soft.rank(x, softness=s, mode=mode, method="softsort"),
    "argmax": lambda x, s, mode: soft.argmax(x, -1, softness=s, mode=mode),
    "proj_simplex": lambda x, s, mode: soft.proj_simplex(x, -1, s, mode),
    "proj_capped_simplex": lambda x, s, mode: soft.proj_capped_simplex(x, 2, -1, s, mode),
    "proj_permutahedron": lambda x, s, mode: soft.proj_permutahedron(x, torch.arange(6).to(x.dtype), s, mode),
}


@pytest.mark.short(of=3)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SOFTENED)
def test_the_smallest_softness_gives_the_limit(name, dtype):
    """A subnormal softness, or one that is 0 in the dtype, gives the hard value, and a gradient without NaN."""
    x = torch.tensor([-2.0, -0.25, 0.125, 0.75, 1.5, 3.0], dtype=dtype)
    for mode in MODES:
        expected = SOFTENED[name](x, 1e-6, mode)
        for softness in (5e-324, 1e-310, 1e-45, 1e-39, 1e-37):
            for f in (
                lambda x, s=softness, m=mode: SOFTENED[name](x, s, m),
                lambda x, s=softness, m=mode: vmap(lambda r: SOFTENED[name](r, s, m))(x[None])[0],
            ):
                leaf = x.clone().requires_grad_()
                y = f(leaf)
                torch.testing.assert_close(y.detach(), expected, rtol=1e-3, atol=1e-3)
                assert not torch.autograd.grad(y.sum(), leaf)[0].isnan().any()


@pytest.mark.parametrize("mode", [*MODES, "laplace"])
def test_weights_of_the_capped_simplex_sum_to_k_anywhere(mode):
    """Weights are right for a thousand numbers around 1e6 and one at 0; for k whole, fractional, or a tensor."""
    x = torch.randperm(4096, generator=torch.Generator().manual_seed(0))[:1000] / 64.0 - 32
    for row in (x + 2.0**20, torch.where(torch.arange(1000) == 7, 0.0, x + 2.0**20), x - 2.0**20):
        for k in (7, 7.5, torch.tensor(500.0), 999.5):
            for p in (
                soft.proj_capped_simplex(row, k, mode=mode),
                vmap(lambda r, k=k: soft.proj_capped_simplex(r, k, mode=mode))(row[None])[0],
            ):
                assert abs(float(p.double().sum() - k)) < 1e-6 * max(1.0, float(k))
                close = soft.proj_capped_simplex(row.double(), k, mode=mode)
                torch.testing.assert_close(p.double(), close, rtol=0, atol=1e-3)


def test_hessians_far_from_0_are_those_at_0():
    """The offset that is subtracted from a row is a constant of every derivative."""
    x = torch.tensor([0.5, -1.25, 1.75, 0.0], dtype=torch.float64)
    for f in (soft.argsort, soft.rank, soft.proj_simplex, lambda x: soft.proj_capped_simplex(x, 2.5)):
        hessians = [jacrev(grad(lambda x, f=f: f(x).square().sum()))(x + b) for b in (0.0, 2.0**20)]
        torch.testing.assert_close(*hessians, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["abs", "relu", "clamp", "eq", "isclose"])
@pytest.mark.parametrize("unit", [1e-25, 1.0, 1e20, 1e30])
def test_derivatives_by_the_softness_in_any_unit(kind, unit):
    """The slope by the softness scales with the unit of the numbers, without squares that overflow."""
    function = {
        "abs": soft.abs,
        "relu": lambda x, s: soft.relu(x, s, gated=True),
        "clamp": lambda x, s: soft.clamp(x, 0 * s, s, s, gated=True),
        "eq": lambda x, s: soft.eq(x, 0.5 * x, s, epsilon=0.0),
        "isclose": lambda x, s: soft.isclose(x, 0.5 * x, s, rtol=0.1, atol=0.0, epsilon=0.0),
    }[kind]
    truth = kind in ("eq", "isclose")
    x, s = torch.tensor([1.3, -0.4, 0.7]), torch.tensor(1.0)
    slopes = lambda u: jvp(lambda s: function(x * u, s), (s * u,), (torch.ones(()),))[1] * (u if truth else 1)  # noqa: E731
    torch.testing.assert_close(slopes(unit), slopes(1.0), rtol=1e-5, atol=1e-6)
    gradient = grad(lambda s: function(x * unit, s).sum())(s * unit) * (unit if truth else 1)
    torch.testing.assert_close(gradient, slopes(1.0).sum(), rtol=1e-4, atol=1e-6)


@pytest.mark.short(of=3)
@pytest.mark.parametrize("method", sorted(WEIGHTED_SUM_METHODS))
@pytest.mark.parametrize("unit", [1.0, 1e20, 1e30])
def test_tangents_as_large_as_the_row(method, unit):
    """Tangents in the unit of the row agree with the Jacobian."""
    x, t = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([1.0, 1.0, -1.0])
    for name, statistic in STATISTICS.items():
        f = lambda x, s=statistic: first(s(x, method=method))  # noqa: E731
        pushed, jacobian = jvp(f, (x * unit,), (t * unit,))[1], jacrev(f)(x * unit)
        torch.testing.assert_close(pushed / unit, jacobian @ t, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("other", [torch.float16, torch.bfloat16, torch.float32, torch.int64])
@pytest.mark.parametrize("function", [soft.isclose, fullgrad.isclose_st, soft.eq, soft.greater])
def test_comparisons_of_two_dtypes(function, other):
    """A number of a narrower dtype compares with one of a wider dtype."""
    x, y = torch.tensor([1.0, 2.0], dtype=torch.float64), torch.tensor([1.0, 3.0]).to(other)
    torch.testing.assert_close(function(x, y), function(x, y.double()))


@pytest.mark.parametrize("function", [soft.rank, fullgrad.rank_st, soft.sort])
@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0,)])
def test_jacobians_of_nothing(function, shape):
    """Jacobians of all elements together work where there are none."""
    f = lambda x: first(function(x.flatten()) if function is soft.sort else function(x))  # noqa: E731
    assert torch.func.jacfwd(f)(torch.zeros(shape)).numel() == 0
