"""Kernels, by Triton's interpreter, are the formulas: values and first derivatives, below every transform."""

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
import triton
import triton.language as tl

import fullgrad
from fullgrad import losses, soft
from fullgrad._fast.gpu import LONGEST_OF_PAIRS, LONGEST_OF_SQUARES, isotonic, pairs, rows, sorted_rows, thresholds
from fullgrad.soft.order.kernels.isotonic import isotonic as isotonic_regression
from tests.gpu.comparison import (
    DTYPES,
    FUNCTIONS,
    PROJECTIONS,
    TOLERANCE,
    WAITS,
    careful_rows,
    compare,
    error,
    formulas,
    launches,
    results,
)

pytestmark = pytest.mark.short
# One function of each way through a kernel, and of each way to reach one.
KINDS = (
    "sparsemax", "entmax 1.75", "normmax 2.0", "proj_capped_simplex smooth", "topk_mask_st c1", "sort neuralsort smooth",
    "sort softsort c1", "argsort neuralsort", "sort softsort and weights", "topk neuralsort", "median neuralsort",
    "quantile softsort", "max softsort smooth", "max_st softsort", "rank neuralsort smooth", "rank softsort smooth",
    "rank sigmoid smooth", "sort softsort smooth",
)  # fmt: skip


REACHED = (
    "sparsemax", "entmax 1.75", "proj_capped_simplex smooth", "topk_mask_st c1", "sort softsort smooth", "argsort neuralsort",
    "sort softsort and weights", "quantile softsort", "max softsort smooth", "rank sigmoid smooth",
)  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_first_derivatives(name):
    """For rows with ties, infinities and NaN, constant ones, far from 0 and large ones."""
    compare(name, FUNCTIONS[name], careful_rows(9), -1, torch.float32)
    compare(name, FUNCTIONS[name], careful_rows(3 if name in KINDS else 4), -1, torch.float64)


@pytest.mark.parametrize("name", KINDS)
def test_other_sizes_and_dtypes(name):
    """Rows of one, and of more than a thread has; half precision is computed in float32."""
    x = torch.randn(3, 70 if name in PROJECTIONS else 21, dtype=torch.float64).float()
    compare(name, FUNCTIONS[name], x, -1, torch.float32, ("value", "vjp"))
    if "sigmoid" not in name:  # a single rank is a constant
        compare(name, FUNCTIONS[name], careful_rows(1), -1, torch.float32)
    for dtype, n in ((torch.float16, 5), (torch.bfloat16, 4)):
        compare(name, FUNCTIONS[name], careful_rows(n), -1, dtype)


@pytest.mark.parametrize("name", ["sort softsort smooth", "rank softsort smooth", "sort_st softsort"])
def test_rows_that_are_sorted_in_registers(name):
    """The longest rows that are sorted in registers, and shorter ones with large numbers and NaN; longer ones have no kernel."""
    whats = ("vjp",) if "_st" in name else ("value", "vjp")
    rows = torch.randn(2, 150)  # without ties, whose order is not that of the formula
    compare(name, FUNCTIONS[name], torch.stack([rows[0], rows[1] * 1e30, rows[1] / 0 * 0]), -1, torch.float32, whats)
    compare(name, FUNCTIONS[name], torch.randn(2, LONGEST_OF_PAIRS - 1), -1, torch.float32, whats)
    with launches() as kernels:
        FUNCTIONS[name](torch.randn(1, LONGEST_OF_PAIRS + 1), -1)
    assert not kernels


@pytest.mark.parametrize(
    ("name", "count"),
    [("sort neuralsort smooth", 6), ("quantile neuralsort", 6), ("sort softsort c1", 3), ("rank neuralsort smooth", 8),
     ("rank softsort c1", 5), ("rank sigmoid smooth", 4)],
)  # fmt: skip
def test_few_long_rows(name, count, monkeypatch):
    """Rows that are fewer than multiprocessors are shared by several programs, whose sums are added in the next launch."""
    monkeypatch.setattr(pairs, "multiprocessors", lambda x: 3)
    monkeypatch.setattr(pairs, "SHARES", 3)
    monkeypatch.setattr(pairs, "LONG", 2)
    x = torch.randn(2, 14)
    x[1] = (x[1] * 4).round() / 4
    with launches() as kernels:
        compare(name, FUNCTIONS[name], x, -1, torch.float32, ("value", "vjp"))
    assert len(kernels) == count


def falling_rows(n, scale):
    """Rows that fall, with ties, constant ones, far from 0, with an infinity; and levels."""
    u = (torch.randn(6, n, dtype=torch.float64) * scale).sort(-1, descending=True).values
    u[1] = (u[1] * 2).round() / 2
    u[2], u[3] = 0, u[3] + 1000
    w = torch.linspace(1, 0, n, dtype=torch.float64).expand(6, n).clone()
    w[4] = torch.randn(n, dtype=torch.float64).sort(descending=True).values
    u[5, 0] = torch.inf
    return u, w


@pytest.mark.parametrize("mode", ["c0", "smooth"])
@pytest.mark.parametrize("n", [1, 2, 5, 33, LONGEST_OF_SQUARES])
def test_isotonic_regression(n, mode):
    """The solution and its blocks are those of the formula, with ties and infinities."""
    for scale in (0.3, 100.0):
        for dtype in DTYPES[:2]:
            u, w = (v.to(dtype) for v in falling_rows(n, scale))
            with launches() as kernels:
                t, first = isotonic_regression(u, w, mode)
            with formulas():
                expected, blocks = isotonic_regression(u, w, mode)
            assert len(kernels) == 1
            assert torch.equal(first, blocks)
            assert error(t, expected, 6) < TOLERANCE[dtype] / 10


@pytest.mark.parametrize("mode", ["c0", "smooth"])
def test_what_isotonic_regression_computes(mode):
    """Ranks, sorted values and losses by fast_soft_sort look at no number, and have the derivatives of the formulas."""
    x, y = torch.randn(3, 9, dtype=torch.float64), torch.randn(3, 9, dtype=torch.float64)
    options = {"method": "fast_soft_sort", "mode": mode}

    def computed(x):
        leaf = x.clone().requires_grad_()
        values = soft.rank(leaf, -1, **options), soft.sort(leaf, -1, return_indices=False, **options).values
        values = *values, fullgrad.rank_st(leaf, -1, **options), losses.spearman(leaf, y, **options)
        return *values, *[torch.autograd.grad(v.square().sum(), leaf)[0] for v in values]

    with launches() as kernels, torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        found = computed(x)
    assert kernels
    assert not WAITS & {event.name for event in profile.events()}
    with formulas():
        assert all(map(close, found, computed(x)))


def test_ranks_of_ties_in_longer_rows():
    """There is no slope between equal elements, as in a sum over all pairs."""
    x = (torch.randn(2, 150) * 4).round() / 4
    g = torch.randn(2, 150)
    exact = x.double().requires_grad_()
    h = (exact - exact.mean(-1, keepdim=True)) / (exact.var(-1, correction=0, keepdim=True) + 1e-6).sqrt()
    z = h.sigmoid()
    weights = ((z[:, :, None] - z[:, None]).abs() / -0.1).softmax(-1)
    places = torch.argsort(torch.argsort(exact, stable=True)) + 1.0
    y = (weights @ places[..., None].double())[..., 0]
    with launches() as kernels:
        found, pull = torch.func.vjp(lambda x: soft.rank(x, -1, method="softsort", descending=False), x)
        (gradient,) = pull(g)
    assert len(kernels) == 2
    assert error(found, y.detach(), 2) < 1e-5
    assert error(gradient, torch.autograd.grad(y, exact, g.double())[0], 2) < 1e-4


def layouts():
    """Tensors in memory in other ways than rows one after the other, and dims."""
    x = torch.randn(4, 5, 6, dtype=torch.float64)
    yield "first dim", x[:, :, 0], -2
    yield "middle dim", x, -2
    yield "transposed", x[0].mT, -1
    yield "strided", x[::2, :, ::2], -1
    yield "one row", x[0, 0], -1


@pytest.mark.parametrize("name", REACHED)
def test_every_dim_and_stride(name):
    """Any dim, and tensors that are not contiguous; an expanded one, whose gradient is summed."""
    for place, x, dim in layouts():
        compare(name, FUNCTIONS[name], x, dim, torch.float32, ("value", "vjp", "jvp") if place == "middle dim" else ("vjp",))
    compare(name, FUNCTIONS[name], torch.randn(1, 5).expand(3, 5), -1, torch.float32, ("value", "vjp"))


@pytest.mark.parametrize("name", KINDS)
def test_no_rows(name):
    """A batch of 0 rows has a value and a gradient of its shape."""
    x = torch.randn(0, 5)
    with formulas():
        expected = results(FUNCTIONS[name], x, -1, ("value", "vjp"))
    found = results(FUNCTIONS[name], x, -1, ("value", "vjp"))
    assert {k: (v.shape, v.dtype) for k, v in found.items()} == {k: (v.shape, v.dtype) for k, v in expected.items()}


def close(found, expected):
    """Whether results agree to the tolerance of float64."""
    return error(found, expected, expected.shape[0] if expected.ndim else 1) < 1e-7


@pytest.mark.parametrize("name", REACHED)
def test_below_transforms(name):
    """Per-sample gradients and batched tangents run kernels; second derivatives are those of the formula."""
    f, x = FUNCTIONS[name], torch.randn(2, 2, 5, dtype=torch.float64)
    v = torch.linspace(-1, 2, f(x[0], -1).numel(), dtype=torch.float64)

    def scalar(x):
        return (f(x, -1).flatten() ** 2 * v).sum()

    def tangents(x):
        return torch.func.jvp(lambda x: f(x, -1), (x,), (x.cos(),))[1]

    for transformed in (torch.vmap(torch.func.grad(scalar)), torch.vmap(tangents), torch.vmap(lambda x: f(x, -1))):
        with launches() as kernels:
            found = transformed(x)
        assert kernels or "_st" in name, "a hard value is torch's"
        with formulas():
            expected = transformed(x)
        assert close(found, expected)
    leaf = x[0].clone().requires_grad_()

    def second():
        (g,) = torch.autograd.grad(scalar(leaf), leaf, create_graph=True)
        return torch.autograd.grad((g * x[1]).sum(), leaf)[0], torch.func.hessian(scalar)(x[0]).flatten(1)

    found = second()
    with formulas():
        assert all(map(close, found, second()))


@pytest.mark.parametrize("name", ["entmax", "normmax", "proj_capped_simplex"])
def test_a_number_that_learns(name):
    """The exponent, or the sum, of each row or of all has its own gradient, by a kernel, and a tangent."""
    f, low = getattr(soft, name), 1.4 if name != "proj_capped_simplex" else 0.8
    x, g = torch.randn(4, 7, dtype=torch.float64), torch.randn(4, 7, dtype=torch.float64)
    for shape in ((), (1,), (4, 1)):
        number = low + torch.rand(shape, dtype=torch.float64)

        def gradients(number=number):
            y, pull = torch.func.vjp(f, x, number)
            tangent = torch.func.jvp(f, (x, number), (g, torch.ones_like(number)))[1]
            samples = torch.vmap(torch.func.grad(lambda x, a: (f(x, a) * g[0]).sum(), (0, 1)), (0, None))(x, number.flatten()[:1])
            second = torch.func.jacfwd(torch.func.grad(lambda a: (f(x[:1], a) * g[:1]).sum()))(number.flatten()[0])
            return *pull(g), tangent, y, *samples, second

        with launches() as kernels:
            found = gradients()
        assert len(kernels) >= 6
        with formulas():
            assert all(map(close, found, gradients()))


@pytest.mark.parametrize("mode", ["smooth", "laplace", "c1"])
def test_the_derivative_by_k_in_a_gap(mode):
    """It is the formula's, also where slopes underflow, and at k = 0 and k = n."""
    x = torch.tensor([[5.3, 5, 0, -0.05, -0.1], [30, 30.05, -30, -29.9, -40], [3, 1, 2, 1.5, -torch.inf]])
    g = torch.tensor([1.0, -2, 3, -4, 5])
    for k in (torch.full((3, 1), 2.0), torch.tensor([[0.0], [5.0], [4.0]]), torch.tensor([[4.5], [1e-3], [3.99]])):
        for dtype in DTYPES[:2]:
            rows, number = x.to(dtype), k.to(dtype)
            with launches() as kernels:
                found = torch.func.vjp(lambda x, k: soft.proj_capped_simplex(x, k, mode=mode), rows, number)
                found = found[0], *found[1](g.expand_as(x).to(dtype))
            assert len(kernels) == 2
            with formulas():
                expected = torch.func.vjp(lambda x, k: soft.proj_capped_simplex(x, k, mode=mode), rows.double(), number.double())
                expected = expected[0], *expected[1](g.expand_as(x).double())
            for a, b in zip(found, expected, strict=True):
                assert error(a, b, 3) < TOLERANCE[dtype]


NUMBERS = st.one_of(
    st.floats(-4, 4, width=16), st.sampled_from([0.0, 1.0, -1.0, 1e4, -1e4]), st.sampled_from([torch.inf, -torch.inf, torch.nan])
)


@hypothesis.settings(max_examples=24)
@hypothesis.given(name=st.sampled_from(KINDS), data=st.data(), dtype=st.sampled_from(DTYPES[:2]))
def test_drawn_rows(name, data, dtype):
    """Rows of any numbers; those with infinities have at least three finite numbers that differ."""
    n = data.draw(st.integers(2, 7))
    drawn = data.draw(st.lists(st.lists(NUMBERS, min_size=n, max_size=n), min_size=1, max_size=3))
    x = torch.tensor(drawn, dtype=torch.float64)
    x = x[torch.tensor([bool(row.isinf().sum() == 0 or row[row.isfinite()].unique().numel() > 2) for row in x])]
    hypothesis.assume(len(x))
    compare(name, FUNCTIONS[name], x, -1, dtype)


# Functions of kernels, by module and name, what is wrong with one, and a function that runs it.
@triton.jit
def _linked(t, MODE: tl.constexpr):
    p = rows.positive(t)
    return p, p


@triton.jit
def _unstandardized(v, finite, h, stats):
    return tl.where(finite, v, 0.0)


@triton.jit
def _curved(d, MODE: tl.constexpr):
    e = tl.exp(-tl.abs(d))
    return tl.where(d >= 0, 1 / (1 + e), e / (1 + e)), e


@triton.jit
def _without_slope(d, MODE: tl.constexpr):
    v, _ = rows.curve(d, MODE)
    return 2 * v - 1, 2 * v - 1


@triton.jit
def _unsummed(x):
    return rows.row_max(x)


@triton.jit
def _unsharpened(p, z, a):
    return p * 0.999


@triton.jit
def _first(x, ok, count, n, INT: tl.constexpr):
    return rows.row_max(x) + 900, rows.row_max(x) * 0, rows.row_max(x) != rows.row_max(x)


@triton.jit
def _symmetric(z, ok, half, MODE: tl.constexpr):
    t = tl.where(ok, tl.exp(half - tl.abs(z)), 0.0)
    return rows.row_sum(tl.where(z > 0, -t, t)) * 0, rows.row_sum(t), rows.row_sum(t)


@triton.jit
def _weightless(score, MODE: tl.constexpr):
    p = tl.exp(score)
    return p / rows.row_sum(p), p


@triton.jit
def _nan_is_lost(x):
    return rows.row_max(x) > 1e38


@triton.jit
def _unshifted(z, h, q, m, q_apart, m_apart, next_z, next_h, next_q, next_m, next_q_apart, next_m_apart):
    d = tl.exp(-tl.abs(z - next_z))
    return next_z, next_h, next_q + d * q, next_m + d * m, next_q_apart + d * q, next_m_apart + d * m


@triton.jit
def _with_ties(z, h, q, m, q_apart, m_apart, next_z, next_h, next_q, next_m, next_q_apart, next_m_apart):
    d = tl.exp(-tl.abs(z - next_z))
    q, m = d * q, d * (m + q * (h - next_h))
    return next_z, next_h, next_q + q, next_m + m, next_q_apart + q, next_m_apart + m


@triton.jit
def _of_the_first(v, parts, ok, size, SLOT: tl.constexpr, PHASE: tl.constexpr, END: tl.constexpr, SHARES: tl.constexpr):
    if PHASE == END:
        tl.store(parts + (SLOT * SHARES + tl.program_id(1)) * size, v, mask=ok)
    elif PHASE > END:
        v = tl.load(parts + SLOT * SHARES * size, mask=ok, other=0.0)
    return v


@triton.jit
def _smaller(a, b):
    return tl.minimum(a, b)


BROKEN = (
    (rows, "link", _linked, "proj_simplex c2", "vjp"),
    (rows, "standardized", _unstandardized, "sort neuralsort smooth", "vjp"),
    (rows, "curve", _curved, "proj_capped_simplex c1", "vjp"),
    (thresholds, "tails", _symmetric, "proj_capped_simplex smooth", "value"),
    (thresholds, "sharpened", _unsharpened, "entmax 1.75", "value"),
    (rows, "row_sum", _unsummed, "normmax 2.0", "value"),
    (thresholds, "between", _first, "proj_capped_simplex c1", "value"),
    (rows, "has_nan", _nan_is_lost, "sparsemax", "value"),
    (pairs, "absolute_slope", _without_slope, "sort neuralsort smooth", "vjp"),
    (pairs, "weights", _weightless, "max softsort smooth", "vjp"),
    (rows, "curve", _curved, "rank sigmoid smooth", "jvp"),
    (sorted_rows, "combine", _unshifted, "sort softsort smooth", "value"),
    (sorted_rows, "combine", _with_ties, "rank softsort smooth", "vjp"),
)


def test_a_broken_share_is_seen(monkeypatch):
    """A program that reads the part of one program alone."""
    monkeypatch.setattr(pairs, "added", _of_the_first)
    with pytest.raises(AssertionError, match="off by"):
        test_few_long_rows("rank sigmoid smooth", 4, monkeypatch)


def test_a_broken_solution_is_seen(monkeypatch):
    """Stretches whose smallest value is taken."""
    monkeypatch.setattr(isotonic, "larger", _smaller)
    with pytest.raises(AssertionError):
        test_isotonic_regression(5, "c0")


@pytest.mark.parametrize(("module", "function", "wrong", "name", "what"), BROKEN, ids=lambda v: getattr(v, "__name__", str(v)))
def test_a_broken_kernel_is_seen(module, function, wrong, name, what, monkeypatch):
    """The comparison itself: a wrong slope, sum, threshold or NaN of a kernel fails it."""
    monkeypatch.setattr(module, function, wrong)
    with pytest.raises(AssertionError, match="off by"):
        compare(name, FUNCTIONS[name], careful_rows(9), -1, torch.float32, (what,))


def test_every_kind_is_a_function():
    """The lists above name what exists."""
    assert set(REACHED) <= set(KINDS) <= set(FUNCTIONS)
    assert len(PROJECTIONS) > 20
