"""Every operator compared with its surrogate in plain torch: all partial derivatives of first and second order, ties, shapes."""

import functools
import inspect
import itertools

import pytest
import torch
from torch.func import grad, vmap

import fullgrad
from fullgrad import spikes
from fullgrad._core.windows import where_between, where_inside
from fullgrad._suite.cases.spikes import CASES, STEPS, V
from fullgrad.spikes import _formulas
from fullgrad.testing._subject import scalar

pytestmark = pytest.mark.short

STEP_NAMES = [*STEPS, "sso"]
HALVES = (torch.float16, torch.bfloat16)


def every_pattern(dtype):
    """All 65,536 numbers of a dtype of 16 bits, NaN included."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)


def noise_for(name):
    return {"noise": torch.tensor(0.3)} if name == "sso" else {}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_derivatives_are_those_of_the_surrogate(case):
    """The gradient with respect to v and every parameter, and all of its derivatives."""

    def first_and_second(function):
        leaves = case.leaves()
        first = torch.autograd.grad(scalar(function)(*leaves), leaves, create_graph=True)
        total = sum((g * torch.linspace(1, 2, g.numel(), dtype=g.dtype).reshape(g.shape)).sum() for g in first)
        return first, torch.autograd.grad(total, leaves, materialize_grads=True)

    torch.testing.assert_close(first_and_second(case.op), first_and_second(case.reference), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", STEP_NAMES)
def test_mixed_derivatives_agree(name):
    """The derivative of the slope by a parameter is the derivative by v of the one by the parameter, for every pair."""
    case = next(c for c in CASES if c.name == f"spikes.{name} learned")
    of_one = [t.flatten()[0] for t in case.tensors]

    def value(*inputs):
        return case.op(*inputs).sum()

    for i, j in itertools.combinations(range(len(of_one)), 2):
        one = grad(lambda *a, i=i: grad(value, i)(*a), j)(*of_one)
        other = grad(lambda *a, j=j: grad(value, j)(*a), i)(*of_one)
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("name", STEP_NAMES)
def test_parameters_per_sample(name):
    """``vmap`` over v alone, over the parameters alone, and over both, of values and of gradients, equals a loop."""
    case = next(c for c in CASES if c.name == f"spikes.{name} learned")
    v, *rest = case.tensors
    parameters = tuple(range(1, 1 + len(rest)))

    def gradients(v, *rest):
        return grad(lambda *a: case.op(*a).square().sum(), (0, *parameters))(v, *rest)

    batches = [torch.stack([t, 1.5 * t]) for t in (v, *rest)]
    for which in ([True] + [False] * len(rest), [False] + [True] * len(rest), [True] * (1 + len(rest))):
        dims = tuple(0 if w else None for w in which)
        given = [b if w else t for b, t, w in zip(batches, case.tensors, which, strict=True)]
        loop = [[b[k] if w else t for b, t, w in zip(batches, case.tensors, which, strict=True)] for k in range(2)]
        for function in (lambda *a: (case.op(*a),), gradients):
            expected = [torch.stack(parts) for parts in zip(*[function(*a) for a in loop], strict=True)]
            for batched, single in zip(vmap(function, dims)(*given), expected, strict=True):
                torch.testing.assert_close(batched.expand(single.shape), single)


# --- Values -----------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive(but=3)
@pytest.mark.parametrize("tie", [1.0, 0.0, 0.5])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("compiled", [False, True])
def test_ties_are_exact_on_every_number(dtype, tie, compiled):
    """The value is 0, the tie or 1 as the number, rounded as torch rounds it, or the tensor compares; NaN gives 0."""
    v = every_pattern(dtype)
    step = torch.compile(spikes.atan, backend="inductor", fullgraph=True) if compiled else spikes.atan
    for threshold in (0.7,) if compiled else (0.0, 0.7, -1.1, 1e-8, 300.3, 7):
        number = torch.tensor(threshold, dtype=dtype)
        expected = (v.double() > number.double()).double() + tie * (v.double() == number.double())
        # inductor compares a number of float32 in a tensor as it is: it leaves the rounding to half precision out.
        for given in (threshold, number, number.reshape(1), *[torch.tensor(threshold)] * (not compiled)):
            y = step(v, threshold=given, tie=tie)
            assert y.dtype == dtype
            assert torch.equal(y.double(), expected)


@pytest.mark.parametrize("name", STEP_NAMES)
def test_every_step_has_the_same_value(name):
    """All surrogates have one value, at special numbers too."""
    inf = float("inf")
    v = torch.tensor([-inf, -1.0, -1e-45, -0.0, 0.0, 1e-45, 1.0, inf, float("nan")])
    for tie in (1.0, 0.0, 0.5):
        expected = torch.tensor([0, 0, 0, tie, tie, 1, 1, 1, 0])
        assert torch.equal(getattr(spikes, name)(v, tie=tie, **noise_for(name)), expected)


@pytest.mark.parametrize("name", ["ste_sign", "approx_sign", "swish_sign"])
@pytest.mark.parametrize("tie", [1.0, -1.0, 0.0])
@pytest.mark.parametrize("dtype", HALVES)
def test_signs_are_exact_on_every_number(name, tie, dtype):
    """Signs are 1 and -1, the tie at both zeros, -1 at NaN."""
    x = every_pattern(dtype)
    expected = torch.where(x == 0, tie, torch.where(x > 0, 1.0, -1.0)).to(dtype)
    assert torch.equal(getattr(spikes, name)(x, tie=tie), expected)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("tie", [1.0, 0.0, 0.5])
def test_ternary_signs_are_exact_on_every_number(tie, dtype):
    """Ternary signs are 0 between the thresholds, the tie on them, 0 at NaN."""
    x, t = every_pattern(dtype), torch.tensor(0.7, dtype=dtype)
    expected = (torch.sign(x) * ((x.abs() > t) + tie * (x.abs() == t))).nan_to_num(0.0)
    assert torch.equal(spikes.ternary_sign(x, 0.7, tie=tie), expected.to(dtype))
    assert torch.equal(spikes.ternary_sign(x, 0.0, tie=tie), torch.sign(x).nan_to_num(0.0))


def test_counts_of_special_numbers():
    """Counts have no minus zero, and no NaN for minus infinity."""
    inf = float("inf")
    v = torch.tensor([-inf, -0.5, -0.0, 0.0, 0.5, 1.0, 2.5, inf])
    for name in ("multi_spike", "periodic_exponential"):
        y = getattr(spikes, name)(v)
        assert torch.equal(y, torch.tensor([0, 0, 0, 0, 0, 1, 2, inf]))
        assert not y.signbit().any()
        assert getattr(spikes, name)(v, max_spikes=2).tolist() == [0, 0, 0, 0, 0, 1, 2, 2]
        assert getattr(spikes, name)(v, max_spikes=1).tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert spikes.multi_spike(torch.tensor(float("nan"))).isnan()


@pytest.mark.parametrize("name", ["s2nn", "leaky_k_relu"])
def test_a_slope_that_jumps_at_the_threshold_takes_the_side_of_the_value(name):
    """The slope is that from the right for a value of 1, from the left for 0, the mean for 1/2."""
    parameters = {"s2nn": {"alpha": 3.0, "beta": 0.5}, "leaky_k_relu": {"leak": 0.75, "k": 0.5}}[name]
    for zero in (torch.tensor(0.0), torch.tensor(-0.0)):
        slopes = [grad(lambda v, tie=tie: getattr(spikes, name)(v, tie=tie, **parameters))(zero) for tie in (0.0, 0.5, 1.0)]
        assert [s.item() for s in slopes] == [0.75, 0.625, 0.5]


def test_corners_of_windows():
    """The slope at an end is that outside for `rect`, that inside for the straight-through windows."""
    slope = lambda f: grad(f)(torch.tensor(0.5)).item()  # noqa: E731
    assert slope(spikes.rect) == 0
    assert slope(lambda v: spikes.rect(v, torch.tensor(1.0))) == 0
    assert slope(lambda v: spikes.piecewise_leaky_relu(v, 0.5, 0.25)) == 0.25
    assert slope(lambda v: spikes.ste_heaviside(v, 0.5)) == 1
    assert slope(lambda v: spikes.ste_sign(v, torch.tensor(0.5))) == 1
    assert slope(lambda v: spikes.sparse_fast_sigmoid(v, high=0.5)) == 0
    assert slope(lambda v: spikes.dspike(v)) > 0
    assert slope(lambda v: spikes.spike_count(v, window=(0.5, 1.0))) == 1


@pytest.mark.parametrize("beyond", [0.0, 0.25, 1.0, -1.0])
def test_slopes_beyond_that_are_simple_numbers(beyond):
    """Slopes 0 and 1, which save operations, are right like other numbers."""
    v = torch.tensor([-1.0, -0.2, 0.3, 2.0], dtype=torch.float64)
    pieces = vmap(grad(lambda v: spikes.piecewise_leaky_relu(v, 0.5, beyond)))(v)
    assert pieces.tolist() == [beyond, 1.0, 1.0, beyond]
    for k in (1.0, 0.75):
        assert vmap(grad(lambda v: spikes.leaky_k_relu(v, beyond, k)))(v).tolist() == [beyond, beyond, k, k]  # noqa: B023


def test_sigmoid_is_the_comparison_of_the_soft_family():
    """Both operators are equal."""
    v = V.clone().requires_grad_()
    ours, other = spikes.sigmoid(v, 4.0, 0.3), fullgrad.greater_equal_st(v, 0.3, 0.25, epsilon=0.0)
    assert torch.equal(ours, other)
    torch.testing.assert_close(*(torch.autograd.grad(y.sum(), v) for y in (ours, other)))


# --- Arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STEP_NAMES)
def test_arguments_are_checked(name):
    """Other ties, parameters that are not positive, and what is not a number are refused."""
    operator = getattr(spikes, name)
    with pytest.raises(ValueError, match=f"{name}: `tie` must be one of"):
        operator(V, tie=2.0)
    with pytest.raises(TypeError, match=f"{name}: `threshold` must be a number or a tensor"):
        operator(V, threshold="1")
    with pytest.raises(TypeError, match=f"{name}: `grad_scale` must be"):
        operator(V, grad_scale=None)
    if "alpha" in inspect.signature(operator).parameters and name != "log_tailed_relu":
        for bad in (0.0, -1.0, float("inf"), float("nan"), *([1.0] if name == "q_pseudo_spike" else [])):
            with pytest.raises(ValueError, match=f"{name}: `alpha` must be (positive|greater than 1)"):
                operator(V, alpha=bad)


@pytest.mark.parametrize("name", STEP_NAMES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_a_scale_of_another_shape_or_dtype(name, dtype):
    """The gradient is the sum of those by each scale; the value has the shape of both."""
    v, scales = torch.linspace(-1, 1, 5, dtype=dtype, requires_grad=True), torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    given = {"terms": 4} if name == "squarewave_fourier_series" else noise_for(name)
    operator = functools.partial(getattr(spikes, name), **given)
    y = operator(v, grad_scale=scales)
    assert y.shape == (2, 5)
    (found,) = torch.autograd.grad((y * torch.tensor([[1], [2]])).sum(), v)
    (one,) = torch.autograd.grad(operator(v).sum(), v)
    assert found.dtype == dtype
    torch.testing.assert_close(found, 7 * one)


def test_what_is_at_the_clip_value_is_not_clipped():
    """The gradient passes there, and a clip value that learns has none from there."""
    x, clip = torch.tensor([-2.0, -1.0, 0.5, 1.0, 2.0], requires_grad=True), torch.tensor(1.0, requires_grad=True)
    for operator in (spikes.ste_sign, spikes.ste_heaviside, spikes.ternary_sign):
        by_x, by_clip = torch.autograd.grad((operator(x, clip_value=clip) * torch.arange(5)).sum(), (x, clip))
        assert by_x.tolist() == [0.0, 1.0, 2.0, 3.0, 0.0]
        assert by_clip == 4.0


@pytest.mark.parametrize("alpha", [1.01, 1.5, 50.0])
@pytest.mark.parametrize("u", [1e38, float("inf")])
def test_derivatives_of_q_pseudo_spike_are_finite_far_away(alpha, u):
    """Derivatives are finite, those of alpha too, near 1, where the slope falls slowly."""
    for v in (u, -u):
        v, a = torch.tensor(v, requires_grad=True), torch.tensor(alpha, requires_grad=True)
        first = torch.autograd.grad(spikes.q_pseudo_spike(v, a), (v, a), create_graph=True)
        assert all(d.isfinite() for d in (*first, *torch.autograd.grad(first[0], (v, a))))


def test_windows_are_ordered():
    """An empty window is a mistake."""
    with pytest.raises(ValueError, match=r"`low` must be less than `high`, got 1\.0 and 1\.0"):
        spikes.sparse_fast_sigmoid(V, low=1.0)
    with pytest.raises(ValueError, match="`low` must be less than `high`"):
        spikes.spike_count(V, window=(2.0, 1.0))


def test_clip_values_are_positive():
    """A clip value of 0 is refused; None clips nothing."""
    for operator in (spikes.ste_sign, spikes.ste_heaviside, spikes.ternary_sign):
        with pytest.raises(ValueError, match="`clip_value` must be positive"):
            operator(V, clip_value=0.0)
        assert torch.equal(grad(lambda v, operator=operator: operator(v, clip_value=None).sum())(9 * V), torch.ones_like(V))


@pytest.mark.parametrize("name", STEP_NAMES)
def test_the_input_alone_is_saved(name):
    """With numbers as parameters no other tensor is kept, and none where no gradient is needed."""
    for v in (torch.randn(64, requires_grad=True), torch.randn(64)):
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, kept=kept: kept.append(t) or t, lambda t: t):
            getattr(spikes, name)(v, **noise_for(name))
        assert {t.data_ptr() for t in kept if t.numel() > 1} == ({v.data_ptr()} if v.requires_grad else set())


# --- Randomness -------------------------------------------------------------------------------------------------------


def test_noise_is_that_of_the_call():
    """First and second derivatives see one noise, equal seeds give equal numbers, and ``vmap`` has torch's rule."""
    v = torch.linspace(-2, 2, 50)

    def slope(v):
        return grad(lambda v: spikes.sso(v).sum())(v)

    torch.manual_seed(1)
    first = slope(v)
    torch.manual_seed(1)
    assert torch.equal(slope(v), first)
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(slope)(v)
    assert vmap(slope, randomness="different")(torch.full((20,), -1.0)).unique().numel() == 20
    assert vmap(slope, randomness="same")(torch.full((20,), -1.0)).unique().numel() == 1


def test_rare_spikes_of_bfloat16_are_rare():
    """A probability of 0.001 is that, although bfloat16 has 256 steps between 0 and 1."""
    torch.manual_seed(0)
    p = torch.full((400_000,), 1e-3, dtype=torch.bfloat16)
    rate = spikes.bernoulli(p).double().mean().item()
    assert abs(rate - p[0].item()) < 2e-4
    assert spikes.bernoulli(p).dtype == torch.bfloat16


# --- What is made of surrogates ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("within", [False, True])
def test_from_slope_warns_of_a_width_that_would_not_learn(within):
    """Its first derivatives are 0, as nothing tells the integral; the way out has them."""
    width, v = torch.tensor(0.7, requires_grad=True), torch.randn(5, generator=torch.Generator().manual_seed(0))
    make = lambda w: spikes.from_slope(lambda u: torch.sigmoid(u / w) * torch.sigmoid(-u / w) / w)  # noqa: E731
    with pytest.warns(UserWarning, match="^from_slope: `slope` closes over .* write straight_through"):
        _ = grad(lambda w: make(w)(v).sum())(width.detach()) if within else make(width)
    make(width.detach())
    spike = fullgrad.straight_through(lambda v: (v >= 0).to(v.dtype), lambda v: torch.sigmoid(v / width))
    expected = torch.autograd.grad(torch.sigmoid(v / width).sum(), width)
    torch.testing.assert_close(torch.autograd.grad(spike(v).sum(), width), expected)


def test_from_slope_has_the_derivatives_of_the_slope():
    """Derivatives of every order, by v and by the threshold, are right."""
    spike = spikes.from_slope(lambda u: torch.exp(-u * u))
    v, t = torch.randn(6, dtype=torch.float64, requires_grad=True), torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    expected = torch.exp(-((v - t) ** 2))
    first = torch.autograd.grad(spike(v, t).sum(), (v, t), create_graph=True)
    torch.testing.assert_close(first, (expected, -expected.sum()))
    torch.testing.assert_close(torch.autograd.grad(first[0].sum(), v), torch.autograd.grad(expected.sum(), v))
    assert torch.equal(spike(torch.tensor([0.2]), 0.2, tie=0.0), torch.zeros(1))
    with pytest.raises(TypeError, match="`slope` must be a function"):
        spikes.from_slope(3.0)


def test_a_step_for_sinabs_learns_its_threshold_on_demand():
    """The threshold of a layer of sinabs may be a parameter; both ways have the derivative of the operator."""
    v, threshold = torch.linspace(-1, 3, 9, dtype=torch.float64), torch.tensor(0.9, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(
        scalar(lambda v, threshold: spikes.multi_spike(v, threshold=threshold))(v, threshold), threshold
    )
    assert expected != 0
    (learned,) = torch.autograd.grad(
        scalar(spikes.for_sinabs(spikes.multi_spike, learn_threshold=True).apply)(v, threshold), threshold
    )
    assert learned == expected
    fixed = spikes.for_sinabs(spikes.multi_spike)
    assert repr(fixed) == "for_sinabs(multi_spike)"
    assert repr(spikes.for_sinabs(spikes.atan, learn_threshold=True)) == "for_sinabs(atan, learn_threshold=True)"
    assert not fixed.apply(v, threshold).requires_grad
    assert fixed.apply(v, 0.9).equal(spikes.multi_spike(v, threshold=0.9))
    with pytest.raises(TypeError, match="for_sinabs: `surrogate` must be a function, got a value of type int"):
        spikes.for_sinabs(3)


@pytest.mark.long
def test_compiled_slopes_are_those_of_eager_code():
    """Forms that are written for compilers are equal: corners of a window, and the tails of a bell."""
    v = torch.tensor([-90.0, -3.0, -0.0, 0.0, 0.5, 2.0, 2.5, 30.0], requires_grad=True)

    def total(v):
        return spikes.spike_count(v, 2).sum() + 3 * spikes.sigmoid(v, alpha=1.5).sum()

    expected, found = (
        torch.autograd.grad(f(v), v)[0] for f in (total, torch.compile(total, backend="aot_eager", fullgraph=True))
    )
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


# The corners of windows, the numbers beside them, infinities and NaN.
CORNERS = torch.tensor([-1.0, -0.5, -0.0, 0.5, 1.0], dtype=torch.float64)
BESIDE = [torch.nextafter(CORNERS, torch.full_like(CORNERS, to)) for to in (-torch.inf, torch.inf)]
EDGES = torch.cat((CORNERS, *BESIDE, torch.tensor([-torch.inf, -40.0, 40.0, torch.inf, torch.nan], dtype=torch.float64)))
HALF = torch.tensor(0.5, dtype=torch.float64)

# A choice of a gradient by where u lies, and the same with torch.where.
SIDES_AND_WINDOWS = {
    **{
        f"right, tie={tie}": (
            lambda g, u, tie=tie: _formulas.where_right(g, u, tie),
            lambda g, u, tie=tie: torch.where(u > 0, g, torch.where(u == 0, tie * g, 0.0)),
        )
        for tie in (0.0, 0.5, 1.0)
    },
    **{
        f"left, tie={tie}": (
            lambda g, u, tie=tie: _formulas.where_left(g, u, tie),
            lambda g, u, tie=tie: g - torch.where(u > 0, g, torch.where(u == 0, tie * g, 0.0)),
        )
        for tie in (0.0, 0.5, 1.0)
    },
    **{
        f"{name}, width {kind}": (
            lambda g, u, f=f, w=w: f(g, u, -w, w),
            lambda g, u, inside=inside: torch.where(inside(u), g, 0.0),
        )
        for kind, w in (("a number", 0.5), ("a tensor", HALF))
        for name, f, inside in (
            ("closed", where_between, lambda u: u.abs() <= 0.5),
            ("open", where_inside, lambda u: u.abs() < 0.5),
        )
    },
    "open, not symmetric": (
        lambda g, u: where_inside(g, u, -0.5, 1.0),
        lambda g, u: torch.where((u > -0.5) & (u < 1), g, 0.0),
    ),
}
BELLS = {
    "bell": lambda g, u: _formulas.bell(u),
    "bell of a multiple": lambda g, u: _formulas.bell(u, 1.5),
    "sech2 of a multiple": lambda g, u: _formulas.sech2(u, 1.5),
}


@pytest.mark.short
@pytest.mark.parametrize(("choice", "plain"), SIDES_AND_WINDOWS.values(), ids=SIDES_AND_WINDOWS)
def test_sides_and_windows_are_those_of_torch_where(choice, plain):
    """Compiled and eager code choose the same to the last bit on corners, beside them, at infinity and for NaN."""
    g = torch.linspace(1, 2, len(EDGES), dtype=EDGES.dtype)
    compiled = torch.compile(lambda g, u: choice(g, u), fullgraph=True, backend="eager")
    for found in (compiled(g, EDGES), choice(g, EDGES)):
        torch.testing.assert_close(found, plain(g, EDGES), rtol=0, atol=0)


@pytest.mark.short
@pytest.mark.parametrize("bell", BELLS.values(), ids=BELLS)
def test_bells_are_the_same_in_compiled_code(bell):
    """The compiled formula and the faster version of eager code agree far into the tails."""
    g = torch.ones_like(EDGES)
    found = torch.compile(lambda g, u: bell(g, u), fullgraph=True, backend="eager")(g, EDGES)
    torch.testing.assert_close(found, bell(g, EDGES), rtol=1e-14, atol=1e-300, equal_nan=True)


def test_counts_are_whole_numbers_of_the_widest_dtype():
    """Counts up to 2^53 are exact."""
    v = torch.full((), 2.0**60, dtype=torch.float64)
    assert spikes.spike_count(v, 2**53) == 2.0**53
    with pytest.raises(ValueError, match="spike_count: `max_spikes`"):
        spikes.spike_count(v, 2**53 + 1)
