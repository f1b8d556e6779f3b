"""`soft.histogram`: counts between soft edges."""

import math

import mpmath
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, jacfwd, jacrev, jvp, vmap

from fullgrad import soft

MODES = ("smooth", "c0", "c1", "c2", "laplace")
BINS, LOW, HIGH = 7, -1.3, 2.1
X = torch.randn(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def steps(z, mode):
    """A softened step in units of the softness, written anew."""
    if mode == "smooth":
        return 1 / (1 + torch.exp(-z))
    if mode == "laplace":
        return torch.where(z < 0, torch.exp(-z.abs()) / 2, 1 - torch.exp(-z.abs()) / 2)
    t = (z / 10 + 0.5).clamp(0, 1)
    return {"c0": t, "c1": t**2 * (3 - 2 * t), "c2": t**3 * (10 - 15 * t + 6 * t**2)}[mode]


def counted(x, mode, softness, weight=1.0):
    """Differences of steps at the edges, in float64."""
    edges = torch.linspace(LOW, HIGH, BINS + 1, dtype=torch.float64)
    at_edges = steps((x.double()[..., None] - edges) / softness, mode) * torch.as_tensor(weight)[..., None]
    return -at_edges.sum(-2).diff(dim=-1)


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
def test_it_counts_differences_of_steps_at_the_edges(mode):
    """Values, weights, and the sum of all bins, which is the difference of the steps at the two ends."""
    weight = torch.rand(200, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(soft.histogram(X, BINS, LOW, HIGH, softness=0.07, mode=mode), counted(X, mode, 0.07))
    found = soft.histogram(X, BINS, LOW, HIGH, softness=0.07, mode=mode, weight=weight)
    torch.testing.assert_close(found, counted(X, mode, 0.07, weight))
    total = (weight * (steps((X - LOW) / 0.07, mode) - steps((X - HIGH) / 0.07, mode))).sum()
    torch.testing.assert_close(found.sum(), total)


@pytest.mark.short
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_the_hard_mode_is_histc(dtype):
    """Elements at an edge, outside, infinite and NaN included; a small softness comes as close as it can."""
    special = torch.tensor([LOW, HIGH, 0.0, 5.0, -5.0, math.inf, -math.inf, math.nan, 1.25])
    for x, bins, low, high in ((X.to(dtype), 9, -0.5, 1.5), (special.to(dtype), 4, -1.0, 1.25), (X.to(dtype) * 0, 3, 0, 1)):
        assert torch.equal(soft.histogram(x, bins, low, high, mode="hard"), torch.histc(x, bins, low, high))
    inside = X[(X > LOW) & (X < HIGH)]
    hard = torch.histc(inside, BINS, LOW, HIGH)
    for mode in MODES:
        near = soft.histogram(inside, BINS, LOW, HIGH, softness=1e-9, mode=mode)
        torch.testing.assert_close(near, hard, rtol=0, atol=1e-6)
    assert soft.histogram(inside, BINS, LOW, HIGH, softness=1e-9, mode="c2").sum() == len(inside)


def test_the_hard_mode_has_the_derivative_0_and_the_derivative_of_its_weights():
    x, weight = X.clone().requires_grad_(), torch.ones(200, dtype=torch.float64, requires_grad=True)
    counts = soft.histogram(x, BINS, LOW, HIGH, mode="hard", weight=weight)
    to_x, to_weight = torch.autograd.grad(counts.sum(), (x, weight))
    assert not to_x.any()
    assert torch.equal(to_weight, ((x >= LOW) & (x <= HIGH)).double())


@pytest.mark.short
def test_far_counts_are_accurate_in_float32():
    """Next to bins that count nothing else they are no rounding error of a difference of numbers near 1."""
    x = torch.tensor([0.0])
    found = soft.histogram(x, 40, -2.0, 2.0)
    expected = soft.histogram(x.double(), 40, -2.0, 2.0)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=0)
    assert expected.min() < 1e-7
    torch.testing.assert_close(found, found.flip(0), rtol=1e-5, atol=0)


@pytest.mark.short
@pytest.mark.parametrize("mode", ["smooth", "c2"])
def test_dim_counts_rows(mode):
    """Along a dimension it equals the loop, and so does vmap; without one it counts all elements."""
    x, s = X.view(4, 10, 5), torch.rand(4, 1, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) + 0.05
    found = soft.histogram(x, BINS, LOW, HIGH, 1, s, mode)
    assert found.shape == (4, BINS, 5)
    for i in range(4):
        for j in range(5):
            torch.testing.assert_close(found[i, :, j], counted(x[i, :, j], mode, s[i, 0, j]))
    rows = vmap(lambda x: soft.histogram(x, BINS, LOW, HIGH, softness=0.1, mode=mode))(x)
    torch.testing.assert_close(rows, soft.histogram(x.flatten(1), BINS, LOW, HIGH, -1, 0.1, mode))
    torch.testing.assert_close(soft.histogram(x, BINS, LOW, HIGH, None, 0.1, mode), rows.sum(0))
    assert soft.histogram(x[0, 0, 0], 3, -1.0, 1.0).shape == (3,)
    assert torch.equal(soft.histogram(x[:0], 3, -1.0, 1.0), torch.zeros(3, dtype=x.dtype))


@pytest.mark.short
def test_pieces_are_the_whole():
    """Long rows are computed piece by piece, forward, backward and in forward mode, with one softness and with one for each."""
    x = torch.randn(2, 3000, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    weight = torch.rand(2, 3000, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    for softness in (torch.tensor(0.1, dtype=torch.float64), weight + 0.1):
        leaves = [v.clone().requires_grad_() for v in (x, softness, weight)]

        def f(x, s, w):
            return soft.histogram(x, 200, LOW, HIGH, -1, s, "smooth", w)

        def plain(x, s, w):
            edges = torch.linspace(LOW, HIGH, 201, dtype=torch.float64)
            at = torch.sigmoid((x[..., None] - edges) / (s[..., None] if s.ndim else s)) * w[..., None]
            return -at.sum(-2).diff(dim=-1)

        g = torch.linspace(-1, 1, 400, dtype=torch.float64).view(2, 200)
        found, expected = (torch.autograd.grad(h(*leaves), leaves, g) for h in (f, plain))
        torch.testing.assert_close(found, expected)
        inputs = [v.detach() for v in leaves]
        tangents = [v.cos() for v in inputs]
        for a, b in zip(*(torch.func.jvp(h, tuple(inputs), tuple(tangents)) for h in (f, plain)), strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.short
def test_memory_does_not_grow_with_elements_times_bins():
    """The largest temporary of the value and the gradient is a small part of a matrix of all elements and bins."""
    x = torch.linspace(-1, 1, 40_000, requires_grad=True)
    with torch.profiler.profile(profile_memory=True, acc_events=True) as found:
        soft.histogram(x, 100, -1.0, 1.0).square().sum().backward()
    assert max(e.cpu_memory_usage for e in found.events()) < 40_000 * 100


def test_elements_on_centers_and_edges_have_their_derivatives():
    """The count is computed on either side of a center, and c1 has a kink of its slope 5 softnesses from an edge."""
    x = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0], dtype=torch.float64, requires_grad=True)
    s = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    for mode in ("smooth", "c2"):
        f = lambda x, s, mode=mode: soft.histogram(x, 2, 0.0, 2.0, softness=s, mode=mode)  # noqa: E731
        assert gradcheck(f, (x, s), check_forward_ad=True)
        assert gradgradcheck(f, (x, s))


def test_infinities_count_nowhere_and_nan_everywhere():
    x = torch.tensor([math.inf, -math.inf, 0.5], requires_grad=True)
    s = torch.tensor(0.1, requires_grad=True)
    for mode in MODES:
        counts = soft.histogram(x, 4, 0.0, 1.0, softness=s, mode=mode)
        torch.testing.assert_close(counts, soft.histogram(torch.tensor([0.5]), 4, 0.0, 1.0, mode=mode))
        assert all(g.isfinite().all() for g in torch.autograd.grad(counts.square().sum(), (x, s)))
    assert soft.histogram(torch.tensor([0.5, math.nan]), 4, 0.0, 1.0).isnan().all()


def test_half_precision_is_rounded_once():
    for dtype in (torch.float16, torch.bfloat16):
        x = X.to(dtype)
        found = soft.histogram(x, BINS, LOW, HIGH)
        assert torch.equal(found, soft.histogram(x.float(), BINS, LOW, HIGH).to(dtype))
    assert soft.histogram(torch.arange(5), 5, -0.5, 4.5).dtype == torch.float32


def test_jagged_tensors_count_behind_the_ragged_dimension():
    jagged = torch.nested.nested_tensor_from_jagged(X[:20].view(5, 4), torch.tensor([0, 2, 5]))
    found = soft.histogram(jagged, 5, LOW, HIGH, -1)
    torch.testing.assert_close(found.values(), soft.histogram(X[:20].view(5, 4), 5, LOW, HIGH, -1))
    with pytest.raises(ValueError, match="`dim` must be given for a jagged tensor"):
        soft.histogram(jagged, 5, LOW, HIGH)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"bins": 0}, ValueError, "`bins` must be a positive integer, got 0"),
        ({"bins": 2.5}, TypeError, "`bins` must be a positive integer"),
        ({"low": 2.0, "high": 2.0}, ValueError, "`low` must be less than `high`, and both finite, got 2.0 and 2.0"),
        ({"high": math.inf}, ValueError, "both finite"),
        ({"high": math.nan}, ValueError, "both finite"),
        ({"low": X}, TypeError, "`low` must be a number"),
        ({"weight": torch.ones(3)}, ValueError, r"`weight` must broadcast to the shape \(200,\) of `x`, got shape \(3,\)"),
        ({"weight": torch.ones(200, dtype=torch.bool)}, TypeError, "`weight` must be a real tensor"),
        ({"softness": torch.ones(3)}, ValueError, "`softness` must broadcast"),
        ({"softness": 0.0}, ValueError, "`softness` must be positive"),
        ({"mode": "gauss"}, ValueError, "`mode` must be one of"),
        ({"dim": 1}, IndexError, "`dim`"),
    ],
)
def test_errors_name_the_argument(arguments, error, message):
    with pytest.raises(error, match=f"histogram: .*{message}" if not message.startswith("both") else message):
        soft.histogram(X, **({"bins": 3, "low": 0.0, "high": 1.0} | arguments))


@pytest.mark.long
def test_it_is_compiled_whole():
    x = X.float()
    f = lambda x: soft.histogram(x, BINS, LOW, HIGH, softness=0.1)  # noqa: E731
    torch.testing.assert_close(torch.compile(f, fullgraph=True, backend="aot_eager")(x), f(x))
    g = vmap(grad(lambda x: f(x).square().sum()))
    torch.testing.assert_close(torch.compile(g, fullgraph=True, backend="aot_eager")(x.view(4, 50)), g(x.view(4, 50)))


def test_counts_of_many_elements():
    """Hard counts are exact beyond 2^24, and numbers on edges are in the bins of histc."""
    x = torch.zeros(2**24 + 2)
    assert soft.histogram(x, 1, -1.0, 1.0, mode="hard").item() == 2**24 + 2
    edges = torch.tensor([-1 + b * 3 / 30 for b in range(31)], dtype=torch.float64)
    assert torch.equal(soft.histogram(edges, 30, -1.0, 2.0, mode="hard"), torch.histc(edges, 30, -1.0, 2.0))
    weight = torch.tensor([1.0, torch.nan])
    assert soft.histogram(torch.tensor([0.5, 5.0]), 1, 0.0, 1.0, mode="hard", weight=weight).item() == 1


def test_hard_counts_are_those_of_histc():
    """At an edge of two bins, too, where the result hangs on how numbers are rounded."""
    for low, high, bins in [(0.4, 0.7, 12), (0.1, 0.9, 8), (-0.3, 0.3, 6), (0.0, 0.7, 7)]:
        x = torch.linspace(low, high, 2 * bins + 1)
        assert torch.equal(soft.histogram(x, bins, low, high, mode="hard"), torch.histc(x, bins, low, high))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("softness", [0.05, 1.0, 30.0, 1e4, 1e6])
def test_counts_have_all_digits_at_every_softness(mode, softness):
    """Counts, and all their first derivatives in both modes, are those of differences of steps in high precision, also where the
    softness is a million times a bin.
    """
    x, low, high, bins = [0.1, 0.23, 0.9, 1.4, 0.74], 0.0, 1.5, 4
    x = torch.tensor(x) * max(softness / 10, 1)
    s = torch.tensor(softness)

    with mpmath.workdps(40):
        step = {
            "smooth": lambda t: 1 / (1 + mpmath.exp(-t)),
            "c0": lambda t: ramp(t),
            "c1": lambda t: ramp(t) ** 2 * (3 - 2 * ramp(t)),
            "c2": lambda t: ramp(t) ** 3 * (10 - 15 * ramp(t) + 6 * ramp(t) ** 2),
            "laplace": lambda t: mpmath.exp(t) / 2 if t < 0 else 1 - mpmath.exp(-t) / 2,
        }[mode]
        ramp = lambda t: min(max((t + 5) / 10, mpmath.mpf(0)), mpmath.mpf(1))  # noqa: E731

        def count(b, x, s):
            edges = [low + (b + i) * mpmath.mpf(high - low) / bins for i in (0, 1)]
            return step((x - edges[0]) / s) - step((x - edges[1]) / s)

        def slope(f, v):
            h = mpmath.mpf(10) ** -12 * s.item()
            return (f(v + h) - f(v - h)) / (2 * h)

        points, width = [mpmath.mpf(v) for v in x.tolist()], mpmath.mpf(s.item())
        value = [sum(count(b, v, width) for v in points) for b in range(bins)]
        by_x = [[slope(lambda v, b=b: count(b, v, width), v) for v in points] for b in range(bins)]
        by_s = [sum(slope(lambda s, b=b, v=v: count(b, v, s), width) for v in points) for b in range(bins)]
    expected = [torch.tensor([[float(v) for v in row] for row in rows]) for rows in ([value], by_x, [by_s])]

    f = lambda x, s: soft.histogram(x, bins, low, high, softness=s, mode=mode)  # noqa: E731
    for transform in (jacrev, jacfwd):
        found = [f(x, s)[None], transform(f)(x, s), transform(f, 1)(x, s)[None]]
        for a, b in zip(found, expected, strict=True):
            assert (a - b).abs().max() <= 1e-5 * b.abs().max() + 1e-25


@pytest.mark.parametrize("mode", ["smooth", "c0", "c1", "c2", "laplace"])
def test_an_infinite_weight_multiplies_the_sum_of_the_tangents(mode):
    """The tangents of the sample and of its softness are summed before: as infinite products they could cancel to NaN."""
    x, s = torch.tensor([0.4]), torch.tensor([0.25])
    for tangent in (0.1, 1.0, 10.0, -1.0):
        f = lambda w: lambda x, s: soft.histogram(x, 3, -0.2, 1.0, softness=s, mode=mode, weight=torch.tensor([w]))  # noqa: E731
        of_one, of_infinity = [jvp(f(w), (x, s), (torch.tensor([tangent]), torch.ones(1)))[1] for w in (1.0, math.inf)]
        assert torch.equal(of_infinity[of_one != 0], (of_one * math.inf)[of_one != 0])
