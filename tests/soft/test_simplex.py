"""Sparse softmaxes, soft subsets and their losses."""

import itertools
import math

import mpmath
import pytest
import torch
from torch.func import grad, jacfwd, jacrev, vmap
from torch.nn.functional import cross_entropy, logsigmoid

from fullgrad import soft, topk_mask_st
from fullgrad.soft.simplex._entmax import _phi
from fullgrad.soft.simplex._entmax_loss import _log, _psi
from tests import golden
from tests.operators import subset_probabilities

pytestmark = pytest.mark.short

INF, NAN = math.inf, math.nan

CASES = [c for c in golden.ALL["cases"] if not c["op"].startswith("sampling.")]


@pytest.mark.parametrize("case", CASES, ids=golden.ident)
def test_golden(case):
    """The value, the gradient by all inputs, and its derivative along a direction are equal."""
    golden.check(case)


X = torch.tensor([[0.3, -0.4, 1.1, 0.2, 0.9], [2.0, 2.0, -1.0, 0.5, 2.0]], dtype=torch.float64)
ALPHAS = (1.0, 1 + 1e-9, 1.1, 4 / 3, 1.5, 1.9, 2.0, 2.5, 4.0)
MODES = ("smooth", "c0", "c1", "c2", "laplace")


@pytest.mark.parametrize("alpha", ALPHAS)
def test_entmax_by_a_number_and_by_a_tensor(alpha):
    """Weights are the same, sum to 1, are 0 at minus infinity, and do not change with a shift by a million."""
    for a in (alpha, torch.tensor(alpha, dtype=torch.float64)):
        p = soft.entmax(X, a)
        torch.testing.assert_close(p.sum(-1), torch.ones(2).double(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(p, soft.entmax(X, alpha), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(soft.entmax(X + 1e6, a), p, rtol=1e-7, atol=1e-7)
        masked = torch.cat((X, torch.full((2, 1), -INF).double()), -1).requires_grad_()
        q = soft.entmax(masked, a)
        torch.testing.assert_close(q[:, :-1], p, rtol=1e-10, atol=1e-12)
        assert (q[:, -1] == 0).all()
        assert (torch.autograd.grad((q * torch.arange(6)).sum(), masked)[0][:, -1] == 0).all()
    assert p[1, 0] == p[1, 1]


@pytest.mark.parametrize("mode", ["smooth", "c0", "c1", "c2"])
def test_the_projection_is_entmax(mode):
    """The projection is entmax with the factor of the mode."""
    a = {"smooth": 0.0, "c0": 1.0, "c1": 1 / 2, "c2": 1 / 3}[mode]
    x = X / 0.3 / (a or 1)
    torch.testing.assert_close(soft.proj_simplex(X, softness=0.3, mode=mode), soft.entmax(x, torch.tensor(1 + a).double()))


def test_the_exponent_is_smooth_at_1():
    """The derivative at 1 has a closed form, and next to it is close."""
    p = torch.softmax(X, -1)
    log_p = p.log()
    expected = 0.5 * p * ((p * log_p**2).sum(-1, keepdim=True) - log_p**2)
    for alpha in (1.0, 1 + 1e-9, 1 + 1e-6):
        found = torch.func.jacfwd(lambda a: soft.entmax(X, a))(torch.tensor(alpha, dtype=torch.float64))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("n", [1, 7, 5000])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_long_rows_and_every_dtype(n, dtype):
    """Weights sum to 1 up to rounding, for normal, geometric and nearly equal rows, in few steps."""
    geometric = 0.99 ** torch.arange(n, dtype=torch.float64)
    rows = torch.stack((torch.linspace(-2, 2, n).double().sin() * 3, geometric, 1e-3 * geometric)).to(dtype)
    eps = torch.finfo(dtype).eps
    functions = [(lambda x, a=a: soft.entmax(x, a), max(1, 1 / (a - 1))) for a in (1.2, 1.5, 2.0, 2.5)]
    for f, power in (*functions, (soft.normmax, 1), (lambda x: soft.normmax(x, 1.5), 1)):
        p = f(rows)
        assert p.dtype == dtype
        assert (p >= 0).all()
        # A sum and then a threshold are rounded, and with it as many weights as there are; a power multiplies the error of each.
        bound = 4 * power * eps + 2 * n * torch.finfo(torch.promote_types(dtype, torch.float32)).eps
        assert ((p.double().sum(-1) - 1).abs() < bound).all()
    k = max(n // 3, 1)
    for mode in MODES:
        p = soft.proj_capped_simplex(rows, k, mode=mode).double()
        assert ((p.sum(-1) - k).abs() < 8 * eps * k).all()
        assert ((p >= 0) & (p <= 1 + 32 * eps)).all()  # the polynomial of c2 rounds its coefficients' sum


MODAL = ("topk_mask_st", "proj_capped_simplex")
WITH_K = [
    ("topk_mask_st", lambda x, k, mode: topk_mask_st(x, k, mode=mode)),
    ("proj_capped_simplex", lambda x, k, mode: soft.proj_capped_simplex(x, k, mode=mode)),
    ("subset_marginals", lambda x, k, _: soft.subset_marginals(x, k)),
    ("entmax", lambda x, k, _: soft.entmax(x, 1 + k / 2)),
    ("sparsemax", lambda x, k, _: soft.sparsemax(x)),
    ("normmax", lambda x, k, _: soft.normmax(x, 1 + k / 2)),
]


@pytest.mark.parametrize(
    ("f", "mode"), [pytest.param(f, m, id=f"{name} {m}") for name, f in WITH_K for m in (MODES if name in MODAL else MODES[:1])]
)
def test_both_modes_agree_where_numbers_are_not_finite(f, mode):
    """For every row of a number, infinities and NaN, and every k, the Jacobians of forward and reverse mode are the same."""
    rows = torch.tensor([*itertools.product((0.3, 0.4, INF, -INF, NAN), repeat=3)], dtype=torch.float64)
    for k in (1, 2, 3):
        found = [vmap(transform(lambda x, k=k: f(x, k, mode)))(rows) for transform in (jacfwd, jacrev)]
        torch.testing.assert_close(*found, equal_nan=True, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_an_infinite_element_is_in_the_mask(mode):
    """The derivative of a mask is that of the others, which share the rest; more infinities than places leave no derivative."""
    x = torch.tensor([0.3, INF, 0.25, -0.2, INF], dtype=torch.float64)
    others, places = torch.tensor([0.3, 0.25, -0.2], dtype=torch.float64), [0, 2, 3]
    assert topk_mask_st(x, 3, mode=mode).tolist() == [1, 1, 0, 0, 1]
    for transform in (jacrev, jacfwd):
        expected = torch.zeros(5, 5, dtype=torch.float64)
        expected[torch.tensor(places).unsqueeze(-1), torch.tensor(places)] = transform(lambda x: topk_mask_st(x, 1, mode=mode))(
            others
        )
        torch.testing.assert_close(transform(lambda x: topk_mask_st(x, 3, mode=mode))(x), expected, rtol=1e-12, atol=1e-12)
        assert not transform(lambda x: topk_mask_st(x, 1, mode=mode))(x).any()


def test_rows_without_an_answer_are_nan():
    """Rows with NaN, plus infinity, or only minus infinity are NaN; the others are right."""
    rows = torch.tensor([[0.1, NAN, 0.2], [0.1, INF, 0.2], [-INF, -INF, -INF], [0.1, 0.2, 0.3]])
    functions = [soft.sparsemax, soft.normmax, *[lambda x, a=a: soft.entmax(x, a) for a in (1.0, 1.3, 1.5, 2.5)]]
    functions += [lambda x, m=m: soft.proj_capped_simplex(x, 1, mode=m) for m in MODES] + [lambda x: soft.subset_marginals(x, 2)]
    for f in functions:
        assert f(rows)[:3].isnan().all()
        assert not f(rows)[3].isnan().any()
    for k in (0, 3):
        p = soft.subset_marginals(rows[[0, 3]], k)
        assert p[0].isnan().all()
        assert (p[1] == float(k > 0)).all()


@pytest.mark.parametrize(("n", "k"), [(n, k) for n in (1, 2, 5, 8, 9) for k in range(n + 1)])
def test_subset_marginals_are_those_of_all_subsets(n, k):
    """Value and gradient are those by enumeration of subsets; for k = 1 those of the softmax."""
    x, weights = torch.linspace(-1, 2, n, dtype=torch.float64).sin().requires_grad_(), torch.arange(1.0, n + 1).double()
    subsets, probabilities = subset_probabilities(x, k)
    expected = probabilities @ subsets
    found = soft.subset_marginals(x, k)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    (gradient,) = torch.autograd.grad(found @ weights, x)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected @ weights, x)[0], rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("mode", MODES)
def test_none_and_all_of_the_capped_simplex(mode):
    """k = 0 and k = n give zeros and ones without a derivative; a gap wider than the curve is exact, without a derivative."""
    rows = [(X, k, torch.full_like(X, float(k > 0))) for k in (0, 5, torch.tensor(0.0), torch.tensor(5.0))]
    if mode in ("c0", "c1", "c2"):
        rows.append((torch.tensor([100.0, -50.0, 100.0, 0.0]), 2, torch.tensor([1.0, 0.0, 1.0, 0.0])))
    for x, k, expected in rows:
        f = lambda x, k=k: soft.proj_capped_simplex(x, k, mode=mode)  # noqa: E731
        p, gradient = torch.func.vjp(f, x)
        assert torch.equal(p, expected)
        assert (gradient(x)[0] == 0).all()
        assert (torch.func.jvp(f, (x,), (x,))[1] == 0).all()
    masked = torch.tensor([0.3, -INF, 0.5, 0.1], requires_grad=True)
    p = soft.proj_capped_simplex(masked, 1.5, mode=mode)
    assert p[1] == 0
    assert torch.autograd.grad((p * torch.arange(4)).sum(), masked)[0][1] == 0


def rows_of_all_kinds(n):
    """Rows that are small, large, tied, clustered, from far apart to close, and half masked, in a batch of two dimensions."""
    x = torch.randn(3, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    cluster = torch.where(torch.arange(n) % 3 == 0, 1e3, -1e3)
    far = 2.0 ** torch.arange(n // 2, n // 2 - n, -1, dtype=torch.float64).clamp(-15, 15)
    masked = x.masked_fill(torch.arange(n) >= n // 2, -INF)
    return torch.stack([1e-3 * x, x, 50 * x, x.round(), x + cluster, x * far, 10 * masked])


@pytest.mark.short(of=3)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", [2, 7, 40])
def test_the_capped_simplex_is_that_of_bisection(n, mode):
    """Weights are right for sums from 0 to n, whole or not, up to the last element that is not masked."""
    v = rows_of_all_kinds(n)
    for k in (0.01, 0.5, 1, n / 2 - 0.3, n // 2, n / 2 + 0.3, n - 1, n - 0.01):
        rows = v if k <= n // 2 else v[:-1]
        low, high = rows.clamp(min=-1e6).amin(-1, keepdim=True) - 1e3, rows.amax(-1, keepdim=True) + 1e3
        for _ in range(100):
            middle = (low + high) / 2
            above = soft.sigmoidal(rows - middle, 1.0, mode).sum(-1, keepdim=True) > k
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        expected = soft.sigmoidal(rows - high, 1.0, mode)
        for sum_ in (k, torch.full((3, 1), float(k), dtype=torch.float64)):
            found = soft.proj_capped_simplex(rows, sum_, mode=mode, softness=1.0)
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_the_capped_simplex_keeps_its_digits_for_every_k(mode):
    """In float32, values and derivatives are those in float64 where k is near n, or as many elements are far above the
    threshold as below it: next to the sum of the row, the sum of the few that decide it is small.
    """
    n, generator = 30_001, torch.Generator().manual_seed(0)
    x, g = torch.randn(2, n, generator=generator)
    two_sides = torch.where(torch.arange(n) < n // 2, 5.0, -5.0)
    two_sides[-1] = 0
    masked = torch.where(torch.arange(n) < 3, -INF, x)
    cases = [(x, n - 1), (x, n - 0.5), (x, n - 0.01), (two_sides, n // 2 + 0.5), (masked, n - 4), (masked, n - 3)]
    for row, k in cases:
        results = []
        for dtype in (torch.float32, torch.float64):
            leaf, count = [torch.as_tensor(v).to(dtype).requires_grad_() for v in (row, k)]
            learned = [count] * (float(count.detach()) == k)  # a rounded k has another sum
            p = soft.proj_capped_simplex(leaf, *(learned or [k]), mode=mode)
            results.append(
                [p, soft.proj_capped_simplex(leaf, k, mode=mode), *torch.autograd.grad(p, [leaf, *learned], g.to(dtype))]
            )
        assert abs(results[0][0].double().sum().item() - k) < 1e-4
        for found, expected in zip(*results, strict=False):
            torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


# Rows with a count: gaps behind the k-th element of all widths, ties, k near 0 and n, and not whole.
WITH_COUNTS = [
    ([5.3, 5.0, 0.0, -0.05], 2.0),
    ([53.0, 50.0, 50.25, -30.05, -30.0, -29.8, -30.0], 3.0),
    ([100.0, 50.0, 50.25, -70.05, -70.0, -69.9], 3.0),
    ([2.0, 2.0, 2.0, -5.0, -5.0, -5.0, -5.0], 3.0),
    ([2.0, 2.0, 2.0, -5.0, -5.0, -5.0, -5.0], 2.0),
    ([3.0, 1.0, 2.5, 0.1], 0.001),
    ([3.0, 1.0, 2.5, 0.1], 3.999),
    ([3.0, 1.0, 2.5, 0.1, 0.0, 0.0], 4.5),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mode", ["smooth", "laplace"])
@pytest.mark.parametrize(("row", "k"), WITH_COUNTS)
def test_the_derivative_by_k_has_the_digits_of_the_formula(row, k, mode, dtype):
    """Across gaps, too, where all slopes are small, or underflow; forward and reverse mode agree."""
    softness, eps = 0.5, torch.finfo(dtype).eps
    x, k = torch.tensor(row, dtype=dtype), torch.tensor(k, dtype=dtype)
    with mpmath.workdps(250):
        v = [mpmath.mpf(float(a)) / softness for a in x]

        def step(z):
            if mode == "smooth":
                return 1 / (1 + mpmath.exp(-z))
            return mpmath.exp(z) / 2 if z < 0 else 1 - mpmath.exp(-z) / 2

        low, high = min(v) - 20, max(v) + 20
        for _ in range(800):
            middle = (low + high) / 2
            low, high = (middle, high) if sum(step(a - middle) for a in v) > float(k) else (low, middle)
        slopes = [mpmath.diff(step, a - low, h=mpmath.mpf(10) ** -120) for a in v]
        expected = [[float(a / b) for a in m] for m, b in (([step(a - low) for a in v], 1), (slopes, sum(slopes)))]
    p, by_k = [torch.tensor(e, dtype=torch.float64) for e in expected]
    f = lambda k: soft.proj_capped_simplex(x, k, softness=softness, mode=mode)  # noqa: E731
    unit = max(x.abs().amax().item() / softness, 1.0)
    torch.testing.assert_close(f(k).double(), p, rtol=0, atol=8 * unit * eps)
    for transform in (jacrev, jacfwd):
        torch.testing.assert_close(transform(f)(k).double(), by_k, rtol=8 * unit * eps, atol=8 * eps)


@pytest.mark.parametrize("mode", ["smooth", "laplace"])
def test_the_derivative_by_k_at_0_and_n_is_that_of_one_side(mode):
    """It sums to 1, as the weights sum to k: a softmax, of the numbers or of minus them; also of the elements that are not
    masked.
    """
    x = torch.tensor([[0.3, -0.4, 1.1, 0.2, -INF]], dtype=torch.float64)
    for k, sign in ((0.0, 1), (4.0, -1)):
        for row in (x, x[:, :4]):
            for transform in (jacrev, jacfwd):
                found = transform(lambda k, row=row: soft.proj_capped_simplex(row, k, mode=mode)[0])(torch.tensor(k))
                expected = torch.softmax(torch.where(row[0] == -INF, -INF, sign * row[0] / 0.1), -1)
                torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-12)


def bisected(f, low, high):
    """The root where a decreasing function crosses 1, for each row."""
    for _ in range(100):
        middle = (low + high) / 2
        above = f(middle) > 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return high


@pytest.mark.parametrize("alpha", [1.02, 1.3, 1.5, 1.9, 2.0, 2.5, 4.0])
@pytest.mark.parametrize("n", [2, 7, 40])
def test_sparse_softmaxes_are_those_of_bisection(n, alpha):
    """Weights are right with the exponent as a number, as a tensor, and for each row."""
    rows = rows_of_all_kinds(n)
    rows = rows - rows.amax(-1, keepdim=True)
    top, a = rows[..., :1] * 0, torch.full((3, 1), alpha, dtype=torch.float64)

    def entmax(theta):
        return (1 + (alpha - 1) * (rows - theta)).clamp(min=0) ** (1 / (alpha - 1))

    def normmax(theta):
        return (rows - theta).clamp(min=0) ** (1 / (alpha - 1))

    p = entmax(bisected(lambda theta: entmax(theta).sum(-1, keepdim=True), top - 1, top + 60))
    q = normmax(bisected(lambda theta: (normmax(theta) ** alpha).sum(-1, keepdim=True), top - 1.01, top))
    atol = 1e-10 + 4 * torch.finfo(a.dtype).eps ** (1 / (alpha - 1))  # what rounding a threshold does to a small weight
    for given in (alpha, torch.tensor(alpha, dtype=torch.float64), a):
        torch.testing.assert_close(soft.entmax(rows, given), p, rtol=1e-9, atol=atol)
        torch.testing.assert_close(soft.normmax(rows, given), q / q.sum(-1, keepdim=True), rtol=1e-9, atol=atol)


@pytest.mark.parametrize("k", [1, 7, 20, 39])
def test_subset_marginals_of_long_rows_are_those_of_their_recurrence(k):
    """Marginals are the derivative of the log of the elementary symmetric polynomial; their derivative is right, too."""
    x = rows_of_all_kinds(40)[:4].requires_grad_()
    of_size = [torch.zeros_like(x[..., 0])] + [torch.full_like(x[..., 0], -1e6)] * k
    for v in x.unbind(-1):
        of_size = [of_size[0]] + [a - logsigmoid(a - b - v) for b, a in itertools.pairwise(of_size)]
    (expected,) = torch.autograd.grad(of_size[k].sum(), x, create_graph=True)
    found, weights = soft.subset_marginals(x, k), torch.linspace(0, 1, 40, dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    gradients = [torch.autograd.grad((p * weights).sum(), x, retain_graph=True)[0] for p in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("f", "formula"), [(_phi, lambda y: (1 - mpmath.exp(-y) - y) / y**2)], ids=["phi"])
def test_series_have_the_digits_of_the_formula(f, formula):
    """Series and formula agree on both sides of where the series takes over."""
    y = torch.tensor([s * v for s in (-1, 1) for v in (1e-6, 1e-3, 0.00999, 0.01001, 0.03, 1.0)], dtype=torch.float64)
    with mpmath.workdps(40):
        expected = torch.tensor([float(formula(mpmath.mpf(v))) for v in y.tolist()], dtype=torch.float64)
    torch.testing.assert_close(f(y), expected, rtol=2e-13, atol=0)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_the_loss_at_1_is_the_cross_entropy(reduction):
    """The loss is right for classes, ignored ones among them, and distributions, also along another dimension."""
    x, y = torch.randn(6, 5, dtype=torch.float64), torch.tensor([0, 4, -100, 2, 2, -100])
    for a in (1.0, torch.tensor(1.0).double()):
        expected = cross_entropy(x, y, reduction=reduction)
        torch.testing.assert_close(soft.entmax_loss(x, y, a, reduction=reduction), expected)
        torch.testing.assert_close(soft.entmax_loss(x.mT, y, a, dim=0, reduction=reduction), expected)
        q = torch.softmax(torch.randn(6, 5), -1).double()
        q = q / q.sum(-1, keepdim=True)
        entropy = (q * q.log()).sum(-1)
        entropy = entropy if reduction == "none" else entropy.mean() if reduction == "mean" else entropy.sum()
        torch.testing.assert_close(
            soft.entmax_loss(x, q, a, reduction=reduction), cross_entropy(x, q, reduction=reduction) + entropy
        )


@pytest.mark.parametrize("alpha", [1 + 1e-9, 1.01, 1.05, 1.2, 1.9])
def test_losses_near_1_have_the_digits_of_the_formula(alpha):
    """The series near 1, for exponents that are tensors, has derivatives that agree with differences."""
    x, y, a = torch.randn(6, 5, dtype=torch.float64), torch.tensor([0, 4, 1, 2, 2, 3]), torch.tensor(alpha, dtype=torch.float64)
    q = torch.softmax(torch.randn(6, 5, dtype=torch.float64), -1)
    for target in (y, q):
        f = lambda a, target=target: soft.entmax_loss(x, target, a)  # noqa: E731
        torch.testing.assert_close(f(a), f(alpha), rtol=1e-12, atol=1e-14)
        if alpha > 1.001:
            assert torch.autograd.gradcheck(f, a.clone().requires_grad_(), rtol=1e-6, atol=1e-8)
            assert torch.autograd.gradgradcheck(f, a.clone().requires_grad_(), rtol=1e-5, atol=1e-6)


def test_a_sure_row_has_no_loss():
    """The loss is exactly 0, whatever the scores of the row, masked ones included."""
    x = torch.tensor([[1e6 + 3, 1e6, -INF], [5.0, 1.0, 2.0]])
    for loss in (soft.entmax_loss, soft.normmax_loss):
        assert loss(x, torch.tensor([0, 0]), 2.0, reduction="none").tolist() == [0.0, 0.0]
        assert loss(x[1], torch.tensor(1), 2.0) == 4.0  # sure of another class: the difference of the scores


def test_the_series_near_1_have_the_coefficients_of_the_formulas():
    """Derivatives at 0 are exact: those of (p^a - 1) / a are log(p)^(n + 1) / (n + 1), those of psi 1 / (n + 2)."""
    log_p, zero = torch.tensor(-1.7, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64)
    for f, expected in (
        (lambda a: _log(log_p, a), lambda n: (-1.7) ** (n + 1) / (n + 1)),
        (_psi, lambda n: 1 / (n + 2)),
    ):
        for n in range(7):
            torch.testing.assert_close(f(zero), torch.tensor(expected(n), dtype=torch.float64), rtol=1e-14, atol=0)
            f = grad(f)


def test_wrong_arguments_are_refused():
    """Errors give the name, the rule and what was found."""
    for alpha in (0.9, NAN, INF):
        with pytest.raises(ValueError, match="entmax: `alpha` must be at least 1"):
            soft.entmax(X, alpha)
    with pytest.raises(ValueError, match="normmax: `alpha` must be above 1"):
        soft.normmax(X, 1.0)
    with pytest.raises(ValueError, match="normmax_loss: `alpha` must be above 1"):
        soft.normmax_loss(X, torch.zeros(2).long(), 1.0)
    with pytest.raises(ValueError, match="must have the size 1 along `dim`"):
        soft.entmax(X, torch.full((5,), 1.5))
    with pytest.raises(ValueError, match="`k` must be from 0 to 5"):
        soft.proj_capped_simplex(X, 6)
    with pytest.raises(ValueError, match="`k` must be from 0 to 1"):
        topk_mask_st(torch.tensor(0.5), 2)
    with pytest.raises(ValueError, match="`target` must have the shape"):
        soft.entmax_loss(X, torch.zeros(3).long())
    with pytest.raises(ValueError, match="`reduction` must be one of"):
        soft.entmax_loss(X, torch.zeros(2).long(), reduction="max")
    with pytest.raises(ValueError, match="`mode` must be 'laplace' for the method 'lapsum'"):
        soft.sort(X, method="lapsum")
    with pytest.raises(ValueError, match="`method` must be one of 'sigmoid', 'lapsum'"):
        soft.rank(X, mode="laplace")


def test_sums_of_laplace_steps_with_ties():
    """Ranks, their derivatives, and sorted values are those of the n by n formula, with ties too."""
    x = torch.tensor([0.5, -1.0, 0.5, 2.0, 0.5, -1.0], dtype=torch.float64)
    step = lambda z: torch.where(z < 0, z.exp() / 2, 1 - (-z).exp() / 2)  # noqa: E731
    dense = lambda x: 0.5 + step(x.unsqueeze(-2) - x.unsqueeze(-1)).sum(-1)  # noqa: E731
    ranks = lambda x: soft.rank(x, softness=1.0, mode="laplace", method="sigmoid", standardize=False)  # noqa: E731
    torch.testing.assert_close(ranks(x), dense(x))
    torch.testing.assert_close(torch.func.jacrev(ranks)(x), torch.func.jacrev(dense)(x))
    y = soft.sort(x, softness=1.0, mode="laplace", method="lapsum", standardize=False).values
    torch.testing.assert_close(step(y.unsqueeze(-1) - x).sum(-1), torch.arange(6).double() + 0.5)


PROJECTIONS = {
    "entmax": lambda x, dim: soft.entmax(x, dim=dim),
    "normmax": lambda x, dim: soft.normmax(x, dim=dim),
    "sparsemax": lambda x, dim: soft.sparsemax(x, dim=dim),
    "proj_simplex": lambda x, dim: soft.proj_simplex(x, dim),
    "proj_simplex c0": lambda x, dim: soft.proj_simplex(x, dim, mode="c0"),
    "proj_capped_simplex": lambda x, dim: soft.proj_capped_simplex(x, 1.5, dim),
    "subset_marginals": lambda x, dim: soft.subset_marginals(x, 2, dim),
}


@pytest.mark.parametrize("name", PROJECTIONS)
def test_any_dimension(name):
    """The value is that of each row by itself, the gradient that of the transpose."""
    x, f = torch.randn(3, 4, 5, dtype=torch.float64), PROJECTIONS[name]
    total = lambda x, dim: f(x, dim).square().sum()  # noqa: E731
    for dim in range(-3, 3):
        rows = x.movedim(dim, -1)
        expected = torch.stack([f(row, -1) for row in rows.reshape(-1, rows.shape[-1])]).reshape(rows.shape)
        torch.testing.assert_close(f(x, dim), expected.movedim(-1, dim))
        torch.testing.assert_close(grad(total)(x, dim), grad(total)(rows, -1).movedim(-1, dim))


@pytest.mark.parametrize("name", [name for name in PROJECTIONS if name not in ("proj_capped_simplex", "subset_marginals")])
def test_a_number_has_all_the_weight(name):
    """The weight of a tensor without dimensions is 1, as that of a row of one element."""
    for dtype in (torch.float32, torch.float16):
        one = PROJECTIONS[name](torch.tensor(0.3, dtype=dtype), -1)
        assert (one.shape, one.dtype, one.item()) == ((), dtype, 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_number_has_the_whole_budget(dtype):
    """The weight of a tensor without dimensions is ``k``."""
    x = torch.tensor(0.3, dtype=dtype)
    found = [soft.proj_capped_simplex(x, k) for k in (0.0, 0.5, 1.0)] + [soft.subset_marginals(x, k) for k in (0, 1)]
    assert all((p.shape, p.dtype) == ((), dtype) for p in found)
    torch.testing.assert_close(torch.stack(found), torch.tensor([0, 0.5, 1, 0, 1], dtype=dtype))


def test_rows_of_no_elements():
    """Empty rows give empty weights."""
    x = torch.zeros(2, 0)
    assert topk_mask_st(x, 0).shape == soft.proj_capped_simplex(x, 0).shape == soft.subset_marginals(x, 0).shape == (2, 0)


@pytest.mark.parametrize("far", [-1e6, 1e6])
def test_subset_marginals_far_from_0_are_those_at_0(far):
    """A common offset of the logits changes none of the digits of their differences."""
    x = torch.tensor([0.5, -1.0, 2.0, 0.0, 1.5])
    torch.testing.assert_close(soft.subset_marginals(x + far, 2), soft.subset_marginals(x, 2))


@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_masked_logits_are_in_no_subset(k):
    """The other logits share the subsets, with their derivatives; a row with fewer than k of them is NaN."""
    x = torch.tensor([0.1, 0.2, -INF, -INF, 0.7], dtype=torch.float64)
    left, weights, zeros = x > -INF, torch.arange(1.0, 6.0).double(), torch.zeros_like(x)
    slopes = grad(lambda x, weights: soft.subset_marginals(x, k) @ weights)
    torch.testing.assert_close(soft.subset_marginals(x, k), zeros.masked_scatter(left, soft.subset_marginals(x[left], k)))
    torch.testing.assert_close(slopes(x, weights), zeros.masked_scatter(left, slopes(x[left], weights[left])))
    assert soft.subset_marginals(x, 4).isnan().all()
    assert soft.subset_marginals(x, 5).isnan().all()


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_losses_of_batches_of_any_shape(reduction):
    """Losses are those of the rows."""
    x, classes = torch.randn(2, 3, 5), torch.randint(5, (2, 3))
    for loss in (soft.entmax_loss, soft.normmax_loss):
        for target, rows in ((classes, classes.flatten()), (x.softmax(-1), x.softmax(-1).flatten(0, 1))):
            expected = loss(x.flatten(0, 1), rows, reduction=reduction)
            found = loss(x, target, reduction=reduction)
            torch.testing.assert_close(found, expected.reshape(2, 3) if reduction == "none" else expected)


@pytest.mark.parametrize("k", [0, 1, 2, 5])
def test_masks_have_ones_at_the_largest(k):
    """A mask has k ones, along any dimension; with none and all of them it has no derivative."""
    x = torch.randn(3, 5, dtype=torch.float64)
    expected = torch.zeros_like(x).scatter(-1, x.topk(k, -1).indices, 1.0)
    assert torch.equal(topk_mask_st(x, k), expected)
    assert torch.equal(topk_mask_st(x.mT, k, dim=0).mT, expected)
    assert bool(grad(lambda x: (topk_mask_st(x, k) * torch.arange(5)).sum())(x).any()) == (0 < k < 5)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_classes_are_integers_of_any_dtype(dtype):
    """The loss is that of int64; a mask does not name classes."""
    x = torch.randn(3, 4, dtype=torch.float64)
    classes = torch.tensor([0, 1, 3])
    expected = soft.entmax_loss(x, classes, ignore_index=1)
    assert soft.entmax_loss(x, classes.to(dtype), ignore_index=1) == expected
    with pytest.raises(TypeError, match=r"entmax_loss: `target` must be a real tensor, got dtype torch\.bool"):
        soft.entmax_loss(x, classes > 0)


@pytest.mark.parametrize("alpha", [4.0, 6.0, 10.0, 20.0])
def test_weights_of_a_large_alpha_sum_to_1(alpha):
    """The last digits of the threshold are large ones of the weight at the edge; it is what the others leave."""
    torch.manual_seed(0)
    x = torch.randn(500, 12)
    p, exact = soft.entmax(x, alpha), soft.entmax(x.double(), alpha)
    torch.testing.assert_close(p.sum(-1), torch.ones(500), rtol=0, atol=1e-6)
    torch.testing.assert_close(exact.sum(-1), torch.ones(500, dtype=torch.float64), rtol=0, atol=1e-14)
    torch.testing.assert_close(p.double(), exact, rtol=0, atol=1e-4)


@pytest.mark.parametrize("gap", [17.6, 18.0, 19.0, 20.5, 20.7])
def test_gradients_where_slopes_underflow(gap):
    """The sum of slopes that has no reciprocal counts as 0."""
    x = torch.tensor([gap, 0.0, -1.0, -2.0], requires_grad=True)
    (g,) = torch.autograd.grad(topk_mask_st(x, 1, mode="laplace"), x, torch.arange(4.0))
    torch.testing.assert_close(g, torch.zeros(4), rtol=0, atol=1e-30)


@pytest.mark.parametrize("mode", ["smooth", "laplace", "c0", "c1", "c2"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_capped_weights_have_the_sum_next_to_an_element_of_any_size(dtype, mode):
    """The bracket of the threshold is that of the elements near it: one as wide as the row takes too many halvings."""
    rows = torch.randn(301, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 1e-3
    x = torch.stack([torch.cat((torch.tensor([10.0**e, -(10.0**e)]).double(), rows)) for e in (0, 4, 15, 27, 30, 37)]).to(dtype)
    for k in (1.5, 2, 3, 2.6, 40, 301.5):
        p = soft.proj_capped_simplex(x, k, mode=mode)
        torch.testing.assert_close(
            p.double().sum(-1),
            torch.full((6,), float(k), dtype=torch.float64),
            rtol=1e-9 if dtype == torch.float64 else 3e-4,
            atol=0,
        )


@pytest.mark.parametrize("mode", ["smooth", "laplace"])
def test_small_sums_are_right_relative_to_themselves(mode):
    """Weights with tails are accurate however small."""
    x = torch.randn(4, 301, generator=torch.Generator().manual_seed(0))
    for k in (1e-1, 1e-3, 1e-6, 1e-20):
        p = soft.proj_capped_simplex(x, k, mode=mode)
        torch.testing.assert_close(p.sum(-1), torch.full((4,), k), rtol=1e-5, atol=0)


@pytest.mark.parametrize("mode", ["smooth", "laplace", "c0", "c1", "c2"])
def test_a_capped_row_is_the_same_among_others(mode):
    """Whether a row is taken less its k-th element depends on the row alone: to the last bit, and on joins."""
    halves = (torch.randn(40, 6, generator=torch.Generator().manual_seed(0)) * 4).round() / 2
    far = torch.full((1, 6), 1e6)
    for x in (halves, halves.double(), halves * 0.1):
        for k in (2, 2.5, 3):
            alone = x.clone().requires_grad_()
            (a,) = torch.autograd.grad(soft.proj_capped_simplex(alone, k, mode=mode).square().sum(), alone)
            among = torch.cat((x, far.to(x.dtype))).requires_grad_()
            (b,) = torch.autograd.grad(soft.proj_capped_simplex(among, k, mode=mode).square().sum(), among)
            batched = torch.func.vmap(lambda x, k=k: soft.proj_capped_simplex(x, k, mode=mode))(x)
            assert torch.equal(a, b[:-1])
            assert torch.equal(batched, soft.proj_capped_simplex(x, k, mode=mode))
