"""The projection onto the permutahedron, compared with the sequential algorithm and its definition."""

import math
import time

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

from fullgrad.soft.order.kernels.isotonic import isotonic, solve
from fullgrad.soft.order.projections.permutahedron import Isotonic, project, project_sorted
from fullgrad.testing import check_operator

MODES = ("c0", "smooth", "c1", "c2")
ALPHA = {"c0": 1, "c1": 2, "c2": 3}
D = torch.float64


# --- The sequential algorithm -------------------------------------------------------------------------------------------


def block_value(u, w, mode):
    if mode == "smooth":
        return log_sum(u) - log_sum(w)
    if mode == "c0":
        return math.fsum(u) / len(u) - math.fsum(w) / len(w)
    alpha = ALPHA[mode]
    alone = [a - math.copysign(abs(b) ** (1 / alpha), b) for a, b in zip(u, w, strict=True)]
    low, high = min(alone), max(alone)
    target = math.fsum(w)
    while low < (middle := (low + high) / 2) < high:
        excess = math.fsum(math.copysign(abs(a - middle) ** alpha, a - middle) for a in u) - target
        low, high = (middle, high) if excess > 0 else (low, middle)
    return low


def log_sum(x):
    return max(x) + math.log(math.fsum(math.exp(a - max(x)) for a in x))


def pool_adjacent_violators(u, w, mode):
    """The projection of one pair of nonincreasing rows, and the first element of the block of each element."""
    u, w, blocks = u.tolist(), w.tolist(), []
    for i in range(len(u)):
        blocks.append((i, i + 1, block_value(u[i : i + 1], w[i : i + 1], mode)))
        while len(blocks) > 1 and blocks[-1][2] > blocks[-2][2]:
            (_, end, _), (start, _, _) = blocks.pop(), blocks.pop()
            blocks.append((start, end, block_value(u[start:end], w[start:end], mode)))
    y, first = [], []
    for start, end, value in blocks:
        for i in range(start, end):
            t = u[i] - value
            power = t if mode in ("c0", "smooth") else math.copysign(abs(t) ** ALPHA[mode], t)
            y.append(w[i] if end == start + 1 else power)
            first.append(start)
    return torch.tensor(y, dtype=D), torch.tensor(first)


def down(x):
    return x.sort(-1, descending=True).values


def rows(n, generator):
    """Pairs of nonincreasing rows, random and adversarial."""

    def normal():
        return torch.randn(n, dtype=D, generator=generator)

    def even():
        return 1200 * torch.rand(n, dtype=D, generator=generator)

    places = torch.linspace(1, 0, n, dtype=D)
    steps = torch.arange(n, dtype=D)
    yield "normal", down(normal()), down(normal())
    for softness in (1.0, 0.1, 0.01):
        yield f"sort {softness}", places / softness, down(normal())
        yield f"rank {softness}", down(normal()) / softness, places
    yield "ties", down((3 * normal()).round()), down((3 * normal()).round())
    yield "zeros", torch.zeros(n, dtype=D), torch.zeros(n, dtype=D)
    yield "equal u", torch.ones(n, dtype=D), down(normal())
    yield "equal w", down(normal()), torch.ones(n, dtype=D)
    w = -2 * n**2 * (steps + 1)
    yield "cascade", down(torch.cat([-steps[1:], torch.tensor([n**2], dtype=D)]) + w), w
    yield "geometric", 0.5**steps, down(normal() * 0.5**steps)
    yield "wide", down(3000 * normal()), down(3000 * normal())
    far = 900 * normal().round()
    yield "clusters", down(far + normal()), down(far + normal())
    yield "far from 0", down(normal()) + 1e4, down(normal()) - 1e4
    yield "as wide as exponentials are summed", down(even()), down(even())
    yield "uneven", down(1000 * normal().exp()), down(1000 * normal().exp())


@pytest.mark.short(of=3)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", [1, 2, 3, 7, 40, 120])
def test_equals_the_sequential_algorithm(mode, n):
    generator = torch.Generator().manual_seed(n)
    for name, u, w in rows(n, generator):
        expected, _ = pool_adjacent_violators(u, w, mode)
        assert_close(project_sorted(u, w, mode), expected, rtol=1e-9, atol=1e-9, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
def test_blocks_equal_those_of_the_sequential_algorithm(mode):
    generator = torch.Generator().manual_seed(0)
    u, w = [down(torch.randn(64, dtype=D, generator=generator)) for _ in range(2)]
    assert_close(isotonic(u, w, mode)[1], pool_adjacent_violators(u, w, mode)[1])


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
def test_rows_are_on_their_own(mode):
    torch.manual_seed(0)
    u, w = torch.randn(3, 5, 30, dtype=D), torch.randn(5, 30, dtype=D)
    y = project(u, w, mode)
    for i in range(3):
        for j in range(5):
            assert_close(y[i, j], project(u[i, j], w[j], mode))
    u[1, 2] *= 1e6
    assert_close(project(u, w, mode)[0], y[0], rtol=1e-9, atol=1e-12)


# --- What defines it ----------------------------------------------------------------------------------------------------


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_lies_in_the_permutahedron(mode, scale):
    torch.manual_seed(0)
    u, w = scale * torch.randn(50, 20, dtype=D), torch.randn(50, 20, dtype=D)
    y = project(u, w, mode)
    if mode == "smooth":  # the exponentials do
        y, w = y.exp(), w.exp()
    assert_close(y.sum(-1), w.sum(-1))
    assert (down(y).cumsum(-1) <= down(w).cumsum(-1) + 1e-9).all()


@pytest.mark.parametrize("mode", ["c0", "c1", "c2"])
def test_is_the_best_point(mode):
    torch.manual_seed(0)
    u, w = 2 * torch.randn(10, dtype=D), torch.randn(10, dtype=D)
    p = 1 + 1 / ALPHA[mode]

    def objective(y):
        return (u * y).sum(-1) - (y.abs() ** p / p).sum(-1)

    y = project(u, w, mode)
    vertices = w[torch.stack([torch.randperm(10) for _ in range(500)])]
    for step in (1e-3, 0.1, 1.0):
        assert (objective(y + step * (vertices - y)) <= objective(y) + 1e-12).all()


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
def test_hard_where_nothing_pools(mode):
    torch.manual_seed(0)
    u, w = torch.randn(4, 9), torch.randn(4, 9)
    expected = torch.zeros_like(w).scatter(-1, u.argsort(-1, descending=True), down(w))
    assert project(1e8 * u, w, mode).equal(expected)
    # Blocks of one next to others.
    u, w = torch.tensor([5e3, 1.0, 0.9, -5e3]), torch.tensor([0.7, 0.3, 0.1, -0.6])
    y = project(u, w, mode)
    assert y[0] == w[0]
    assert y[3] == w[3]


def test_golden():
    z = torch.tensor([0.3, -0.8, 1.2, 0.5, -0.1], dtype=D)
    integers = torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0], dtype=D)
    fractions = torch.tensor([0.9, 0.1, 0.4, 0.35, 0.7], dtype=D)
    g = torch.arange(1.0, 6.0, dtype=D)
    cases = [
        ("c0", 1.0, integers, [3.08, 1.98, 3.98, 3.28, 2.68], [-2.0, -1.0, 0.0, 1.0, 2.0], [3.0] * 5),
        ("c2", 0.1, fractions, [0.4, 0.1, 0.9, 0.7, 0.35], [0.0] * 5, [3.0, 2.0, 1.0, 5.0, 4.0]),
        ("smooth", 0.1, integers, [3.0, 1.0, 5.0, 4.0, 2.0], [0.0] * 5, [3.0, 4.0, 1.0, 5.0, 2.0]),
        (
            "smooth",
            1.0,
            fractions,
            [0.4562163750869, 0.1, 0.9, 0.6562163750869, 0.35],
            [-1.250830013438, 0.0, 0.0, 1.250830013438, 0.0],
            [3.0, 2.0, 2.127787415942, 5.0, 2.872212584058],
        ),
    ]
    for mode, softness, w, value, by_z, by_w in cases:
        z, w = z.detach().requires_grad_(), w.detach().requires_grad_()
        y = project(z / softness, w, mode)
        assert_close(y, torch.tensor(value, dtype=D), rtol=0, atol=1e-10)
        gradients = torch.autograd.grad(y, (z, w), g)
        assert_close(gradients, tuple(torch.tensor(v, dtype=D) for v in (by_z, by_w)), rtol=0, atol=1e-8)


def test_golden_hessian_vector_product():
    z = torch.tensor([0.3, -0.8, 1.2, 0.5, -0.1], dtype=D)
    w = torch.tensor([0.9, 0.1, 0.4, 0.35, 0.7], dtype=D)
    v = torch.tensor([0.5403023058681, -0.4161468365471, -0.9899924966004, -0.6536436208636, 0.2836621854632], dtype=D)
    g = torch.arange(1.0, 6.0, dtype=D)
    gradient = torch.func.grad(lambda z, w: (g * project(z, w, "smooth")).sum(), argnums=(0, 1))
    _, found = torch.func.jvp(gradient, (z, w), (v, v))
    by_z = torch.tensor([-1.47760701894, 0.0, 0.0, 1.47760701894, 0.0], dtype=D)
    by_w = torch.tensor([0.0, 0.0, -1.556777366269, 0.0, 1.556777366264], dtype=D)
    assert_close(found, (by_z, by_w), rtol=0, atol=1e-8)


def test_golden_ranks():
    z = torch.tensor([0.3, -0.8, 1.2, 0.5, -0.1], dtype=D)
    w = torch.arange(1.0, 6.0, dtype=D) / 4
    for mode, value, gradient in [
        ("c0", [3.1, 1.0, 5.0, 3.9, 2.0], [-6.0, 0.0, 0.0, 6.0, 0.0]),
        ("c1", [3.0, 1.0, 5.0, 4.0, 2.0], [0.0] * 5),
        ("c2", [3.0, 1.0, 5.0, 4.0, 2.0], [0.0] * 5),
        ("smooth", [3.111202201989, 1.0, 5.0, 3.911202201989, 2.0], [-5.00332005375, 0.0, 0.0, 5.00332005375, 0.0]),
    ]:
        z = z.detach().requires_grad_()
        y = 4 * project(z, w, mode)
        assert_close(y, torch.tensor(value, dtype=D), rtol=0, atol=1e-10)
        (found,) = torch.autograd.grad(y, z, torch.arange(1.0, 6.0, dtype=D))
        assert_close(found, torch.tensor(gradient, dtype=D), rtol=0, atol=1e-8)


# --- Derivatives --------------------------------------------------------------------------------------------------------


def pair():
    torch.manual_seed(0)
    return torch.randn(2, 6, dtype=D), 0.7 * torch.randn(2, 6, dtype=D)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("mode", MODES)
def test_derivatives_against_differences(mode):
    inputs = tuple(v.requires_grad_() for v in pair())
    gradcheck(project, (*inputs, mode), check_forward_ad=True, check_batched_grad=True)
    gradgradcheck(project, (*inputs, mode), check_fwd_over_rev=True, check_rev_over_rev=True)


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
def test_operator_against_differences(mode):
    u, w = (down(v).requires_grad_() for v in pair())
    gradcheck(lambda u, w: Isotonic.apply(u, w, mode)[0], (u, w), check_forward_ad=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", MODES)
def test_under_every_transform(mode):
    u, w = pair()
    check_operator(lambda u, w: project(u, w, mode), u, w, smooth_forwards={})
    check_operator(lambda u, w: project(u, w, mode), u, w[0], smooth_forwards={})


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
def test_hessian_equals_double_backward(mode):
    u, w = (v[0] for v in pair())
    g = torch.randn(6, dtype=D)

    def f(u):
        return (g * project(u, w, mode).sin()).sum()

    x = u.clone().requires_grad_()
    (first,) = torch.autograd.grad(f(x), x, create_graph=True)
    by_rows = torch.stack([torch.autograd.grad(v, x, retain_graph=True)[0] for v in first])
    assert_close(torch.func.hessian(f)(u), by_rows)
    assert_close(torch.func.jacrev(torch.func.jacrev(f))(u), by_rows)


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
def test_vmap_of_grad_equals_a_loop(mode):
    torch.manual_seed(0)
    u, w = torch.randn(5, 8, dtype=D), torch.randn(5, 8, dtype=D)

    def f(u, w):
        return (project(u, w, mode) ** 3).sum()

    gradient = torch.func.grad(f, argnums=(0, 1))
    expected = [torch.stack(v) for v in zip(*[gradient(a, b) for a, b in zip(u, w, strict=True)], strict=True)]
    assert_close(torch.func.vmap(gradient)(u, w), tuple(expected))
    expected = torch.stack([gradient(u[0], b)[0] for b in w])
    assert_close(torch.func.vmap(gradient, in_dims=(None, 0))(u[0], w)[0], expected)
    assert_close(torch.func.vmap(gradient, in_dims=(1, None))(u.mT, w[0])[0], torch.stack([gradient(a, w[0])[0] for a in u]))


@pytest.mark.long(but=1)
@pytest.mark.parametrize("mode", MODES)
def test_compiled_and_traced(mode):
    u, w = pair()

    def gradient(u, w):
        return torch.func.grad(lambda u: (project(u, w, mode) ** 2).sum())(u)

    assert_close(torch.compile(project, fullgraph=True, backend="aot_eager")(u, w, mode), project(u, w, mode))
    assert_close(torch.compile(gradient, fullgraph=True, backend="aot_eager")(u, w), gradient(u, w))
    traced = make_fx(gradient)(u, w)
    other = torch.randn_like(u)
    assert_close(traced(other, w), gradient(other, w))


def test_gradient_where_the_weights_vanish():
    """Equal elements that pool at 0 are right: the slope of y = t^2 and t^3 is 0, and nothing is NaN."""
    for mode in ("c1", "c2"):
        u = torch.tensor([1.0, 1.0, 1.0], dtype=D, requires_grad=True)
        w = torch.tensor([0.5, 0.0, -0.5], dtype=D, requires_grad=True)
        y = project(u, w, mode)
        assert_close(y, torch.zeros_like(y))
        for gradient in torch.autograd.grad(y.sum(), (u, w)):
            assert gradient.equal(torch.zeros_like(gradient))
        # A zero of w alone, where the slope of its root is not bounded.
        u = torch.tensor([9.0, 0.0, -9.0], dtype=D, requires_grad=True)
        by_w = torch.autograd.grad(project(u, w, mode).sum(), w)[0]
        assert by_w.equal(torch.ones_like(by_w))


# --- Corners ------------------------------------------------------------------------------------------------------------


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 4), (1,), (4, 1)])
def test_empty_and_single(mode, shape):
    u, w = torch.randn(shape, requires_grad=True), torch.randn(shape, requires_grad=True)
    y = project(u, w, mode)
    assert y.equal(w)
    g_u, g_w = torch.autograd.grad(y.sum(), (u, w))
    assert_close((g_u, g_w), (torch.zeros(shape), torch.ones(shape)))


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_is_nan(mode, wrong):
    torch.manual_seed(0)
    u, w = torch.randn(3, 6), torch.randn(3, 6)
    expected = project(u, w, mode)
    bad = u.clone()
    bad[1, 2] = wrong
    for y in (project(bad, w, mode), project(w, bad, mode)[[0, 1, 2]]):
        assert y[1].isnan().all()
    assert_close(project(bad, w, mode)[[0, 2]], expected[[0, 2]])
    assert project(bad[:, 2:3], w[:, 2:3], mode)[1].isnan().all()


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
def test_ties_pool_to_one_value(mode):
    u = torch.tensor([2.0, 2.0, -1.0, -1.0, -1.0], dtype=D)
    w = torch.tensor([0.3, -0.4, 0.9, 1.5, -2.0], dtype=D)
    y = project(u, w, mode)
    assert_close(y[:2], y[:1].expand(2))
    assert_close(y[2:], y[2:3].expand(3))


def test_equal_values_do_not_pool():
    """Only a greater value after a smaller one pools; with u = w each element is a block of one."""
    u = torch.arange(6.0).flip(0)
    assert isotonic(u, u, "c0")[1].equal(torch.arange(6))


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
def test_float32_is_as_good_as_its_inputs(mode):
    torch.manual_seed(0)
    for scale in (0.3, 3.0, 30.0):
        u, w = scale * torch.randn(20, 200), torch.randn(20, 200)
        y = project(u, w, mode)
        assert y.dtype is torch.float32
        assert_close(y, project(u.double(), w.double(), mode).float(), rtol=1e-6, atol=1e-6)


def test_dtypes_are_promoted():
    y = project(torch.randn(4), torch.randn(4, dtype=D), "c1")
    assert y.dtype is D


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
def test_without_data(mode):
    y = project(torch.empty(3, 5, device="meta"), torch.empty(5, device="meta"), mode)
    assert y.shape == (3, 5)


# --- How long it takes --------------------------------------------------------------------------------------------------


def adversaries(n):
    """Values u - w that are slow to pool, one way or another."""
    i, generator = torch.arange(n, dtype=D), torch.Generator().manual_seed(0)
    noise = torch.randn(n, dtype=D, generator=generator)
    bits = [((torch.arange(n) >> k) & 1).to(D) for k in range(n.bit_length())]
    yield "cascade", torch.cat([-i[1:], torch.tensor([n**2], dtype=D)])
    yield "cascade from the left", torch.cat([torch.tensor([-(n**2)], dtype=D), -i[1:]])
    yield "geometric", 0.99**i
    yield "geometric, alternating", 0.99**i * (1 + 0.5 * (i % 2))
    yield "constant", 0 * i
    yield "up", i
    yield "down", -i
    yield "noise", noise
    yield "noise down", noise - i
    yield "walk", noise.cumsum(0)
    yield "waves", torch.sin(40 * i / n) - i / n
    yield "bit reversal", torch.stack([b * 0.5**k for k, b in enumerate(bits)]).sum(0)
    yield "ternary", -torch.stack([b * 3.0**k for k, b in enumerate(bits)]).sum(0)
    yield "rare", -i + (i % 12 == 11) * 1000 * noise.abs()


@pytest.mark.long(but=1)
@pytest.mark.parametrize("mode", ["c0", "smooth"])
@pytest.mark.parametrize("n", [1000, 100_000])
def test_few_rounds(mode, n):
    for name, v in adversaries(n):
        if mode == "smooth":
            v = v * (300 / max(1.0, float(v.abs().max())))
        w = -torch.arange(n, dtype=D) * (1 + float(v.diff().clamp(min=0).max()))
        rounds = solve((v + w)[None], w[None], mode).rounds
        assert rounds <= 4 * math.log2(n), name


def test_rounds_are_counted():
    """The bound above bounds something: one merges a row that ascends, none is needed for one that descends."""
    row = torch.arange(5, dtype=D)
    assert [solve(u[None], -row[None] / 9, "smooth").rounds for u in (row, -row)] == [1, 0]


@pytest.mark.long(but=1)
@pytest.mark.parametrize("mode", MODES)
def test_large_batches_are_fast(mode):
    torch.manual_seed(0)
    u, w = torch.linspace(1, 0, 1024).expand(256, -1), torch.randn(256, 1024)
    start = time.process_time()
    y = project(u, w, mode)
    assert time.process_time() - start < 5  # a loop over rows and elements takes a minute
    if mode != "smooth":
        assert_close(y.double().sum(-1), w.double().sum(-1), rtol=0, atol=1e-3)
