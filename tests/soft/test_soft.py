"""The relaxations and their straight-through versions: golden values, modes, exact hard values, accuracy, errors."""

import itertools
import json
import math
from pathlib import Path

import pytest
import torch
from torch.func import grad, hessian, jvp, vmap
from torch.utils._python_dispatch import TorchDispatchMode

import fullgrad
from fullgrad import soft
from fullgrad._suite.cases.soft import RELAXATIONS, _isclose_of
from fullgrad.testing import CHECKS
from fullgrad.testing._subject import close, equal, like
from tests.operators import raises

pytestmark = pytest.mark.short

INF, NAN = math.inf, math.nan
MODES = ("smooth", "c0", "c1", "c2")
GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())["cases"]


def function(name):
    """The operator of a golden case, whose bounds are called a and b."""
    return getattr(fullgrad, name) if name.endswith("_st") else getattr(soft, name)


def applies(case):
    """Whether a golden case applies: not where the original is not translation equivariant, which is fixed here."""
    return not (case["op"].startswith("round") and case["kwargs"].get("softness", 0.1) >= 1)


@pytest.mark.parametrize(
    "case", [c for c in GOLDEN if applies(c)], ids=lambda c: f"{c['op']}-{'-'.join(str(v) for v in c['kwargs'].values())}"
)
def test_golden(case):
    """Values, gradients and Hessian-vector products equal those of an independent implementation in float64."""
    names = {"a": "min_value", "b": "max_value"}
    options = {names.get(k, k): v for k, v in case["kwargs"].items()}
    inputs = {k: torch.tensor(v, dtype=torch.float64) for k, v in case["inputs"].items()}

    def total(values):
        y = function(case["op"])(**{k: values.get(k, inputs[k]) for k in inputs}, **options).flatten()
        return (torch.arange(1, len(y) + 1, dtype=torch.float64) * y).sum()

    out = function(case["op"])(**inputs, **options)
    certain = soft.isclose(**inputs, **options) == 1 if case["op"].startswith("isclose") else None

    def expect(numbers, within):
        """The expected numbers: truth values of the original exceed 1 within the tolerance; ours are 1, with the derivative 0."""
        numbers = torch.tensor(numbers, dtype=torch.float64)
        return numbers if certain is None else torch.where(certain, within, numbers)

    expected = expect(case["out"], out if case["op"].endswith("_st") else 1)
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-9)
    if case.get("kink") or "grad" not in case:
        return
    gradients = grad(total)(inputs)
    for name, expected in case["grad"].items():
        torch.testing.assert_close(gradients[name], expect(expected, 0), rtol=1e-8, atol=1e-8)
    if "hvp" in case:
        direction = {k: torch.tensor(v, dtype=torch.float64) for k, v in case["hvp_v"].items()}
        _, products = jvp(grad(total), (inputs,), (direction,))
        for name, expected in case["hvp"].items():
            # x = 0 of clamp lies on a join, where the difference quotient of the golden case is off by this.
            atol = 1e-5 if case["op"] != "clamp" else 3e-4
            torch.testing.assert_close(products[name], expect(expected, 0), rtol=1e-5, atol=atol)


# --- what each mode guarantees ----------------------------------------------------------------------------------------

ONE = {
    "sigmoidal": soft.sigmoidal,
    "sign": soft.sign,
    "abs": soft.abs,
    "softrelu": soft.softrelu,
    "gated": lambda x, s, mode: soft.softrelu(x, s, mode, gated=True),
    "clamp": lambda x, s, mode: soft.clamp(x, -0.3, 0.4, s, mode),
    "round": soft.round,
    "less": lambda x, s, mode: soft.less(x, 0.1, s, mode),
    "isclose": lambda x, s, mode: soft.isclose(x, 0.1, s, mode=mode),
}
S = 0.1313


@pytest.mark.parametrize(("mode", "order"), [("c0", 0), ("c1", 1), ("c2", 2), ("smooth", 3)])
@pytest.mark.parametrize("name", ONE)
def test_mode_keeps_its_promise_at_every_join(name, mode, order):
    """No derivative up to the order of the mode jumps at a join."""
    f = lambda x: ONE[name](x, S, mode)  # noqa: E731
    # The joins lie where the argument of a sigmoid is one of these, and at the integers for round.
    joins = [
        5 * S,
        -5 * S,
        0.0,
        0.5,
        0.1,
        0.1 + 5 * S,
        0.1 - 5 * S,
        -0.3 + 5 * S,
        -0.3 - 5 * S,
        0.4 + 5 * S,
        0.4 - 5 * S,
        1.0,
        1.5 - 5 * S,
    ]
    at = torch.tensor(joins, dtype=torch.float64)
    h = 1e-9
    for k in range(order + 1):
        left, right = (vmap(f)(at + side * h) for side in (-1, 1))
        # A jump is as large as the derivative's scale, s^-k; what is continuous changes by h times the next.
        assert (left - right).abs().max() < 1e-4 * S ** -(k + 1), f"derivative {k} jumps"
        f = grad(f)


@pytest.mark.parametrize("mode", MODES)
def test_hard_beyond_the_transition(mode):
    """Values beyond the transition are hard to the last bit in the polynomial modes, and nearly so in the smooth one."""
    x = torch.tensor([-3.0, -1.0, 1.0, 3.0], dtype=torch.float64)
    tolerance = 0 if mode != "smooth" else 1e-3
    for actual, expected in (
        (soft.sigmoidal(x, 0.1, mode), (x > 0).double()),
        (soft.abs(x, 0.1, mode), x.abs()),
        (soft.relu(x, 0.1, mode), x.relu()),
        (soft.relu(x, 0.1, mode, gated=True), x.relu()),
        (soft.clamp(x, -2.0, 2.0, 0.1, mode), x.clamp(-2, 2)),
        (soft.eq(x, 3.0, 0.1, mode), (x == 3).double()),
    ):
        torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("softness", [0.02, 0.1, 1.0, 5.0])
def test_round_is_translation_equivariant(mode, softness):
    """round(x + 1) is round(x) + 1, value and derivative, however soft the steps are."""
    x = torch.linspace(-0.99, 0.99, 67, dtype=torch.float64) + 0.00137
    f = lambda x: soft.round(x, softness, mode)  # noqa: E731
    for k in (1.0, -3.0, 1000.0):
        torch.testing.assert_close(f(x + k), f(x) + k, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(vmap(grad(f))(x + k), vmap(grad(f))(x), rtol=1e-7, atol=1e-7)
    assert abs(soft.round(torch.tensor(1000.3, dtype=torch.float64), 1.0).item() - 1000.3) < 1


@pytest.mark.parametrize("mode", MODES)
def test_round_by_a_number_is_round_by_a_tensor(mode):
    """A softness known as a number, for which steps are left out, gives what one does that is a tensor, for which none is; where
    steps begin and end, too.
    """
    x = torch.linspace(-2, 2, 401, dtype=torch.float64) + 0.00137
    x = torch.cat((x, torch.arange(-8, 9).double() / 4))
    for softness in (0.03, 0.1, 0.3):
        for f in (lambda x, s: soft.round(x, s, mode), lambda x, s: vmap(grad(lambda x: soft.round(x, s, mode)))(x)):
            torch.testing.assert_close(f(x, softness), f(x, torch.tensor(softness, dtype=torch.float64)), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("mode", MODES)
def test_truth_values_stay_between_0_and_1(mode):
    """eq, not_equal and isclose stay in the range, at equality and beyond, for softness far below epsilon too."""
    x = torch.tensor([0.0, 1e-12, 0.3, -2.0], dtype=torch.float64)
    for s in (1e-12, 1e-3, 1.0):
        for f in (soft.eq, soft.not_equal, soft.greater, soft.less_equal):
            y = f(x, 0.0, s, mode)
            assert ((y >= 0) & (y <= 1)).all()
        assert soft.eq(x, 0.0, s, mode)[0] == 1
    assert soft.not_equal(x, x, 0.1, mode).tolist() == [0, 0, 0, 0]


PARAMETERS = {
    "clamp": lambda x, s, mode, low, high: soft.clamp(x, low, high, s, mode),
    "gated clamp": lambda x, s, mode, low, high: soft.clamp(x, low, high, s, mode, gated=True),
    "abs": lambda x, s, mode, low, high: soft.abs(x - low, s, mode) * high,
    "gated relu": lambda x, s, mode, low, high: soft.relu(x - low, s, mode, gated=True) * high,
    "relu": lambda x, s, mode, low, high: soft.relu(x - low, s, mode) * high,
    "sign": lambda x, s, mode, low, high: soft.sign(x - low, s, mode) * high,
    "heaviside": lambda x, s, mode, low, high: soft.heaviside(x - low, s, mode) * high,
    "round": lambda x, s, mode, low, high: soft.round(x - low, s, mode) * high,
    "greater": lambda x, s, mode, low, high: soft.greater(x, low, s, mode) * high,
    "eq": lambda x, s, mode, low, high: soft.eq(x, low, s, mode) * high,
    "isclose": lambda x, s, mode, low, high: soft.isclose(x, low, s, mode=mode) * high,
    "isclose by a half": lambda x, s, mode, low, high: soft.isclose(x, low, s, rtol=0.5, mode=mode) * high,
}


@pytest.mark.short(of=3)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PARAMETERS)
def test_derivatives_of_parameters(name, mode):
    """Derivatives by softness and bounds agree with differences, within the transitions and far beyond them."""
    x = torch.linspace(-3, 3, 41, dtype=torch.float64) + 0.0137
    s, low, high = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (0.2, -0.9, 0.8))
    assert torch.autograd.gradcheck(lambda *parameters: PARAMETERS[name](x, parameters[0], mode, *parameters[1:]), (s, low, high))


def second(f):
    return grad(grad(f))


@pytest.mark.parametrize("given", [float, torch.tensor], ids=["by a number", "by a tensor"])
@pytest.mark.parametrize(("s", "epsilon"), [(0.1, 1e-10), (0.1, 0.01), (1e-3, 0.5), (2.0, 0.0)])
@pytest.mark.parametrize(("name", "sign"), [("eq", 1), ("not_equal", -1)])
def test_derivatives_are_0_within_epsilon(name, sign, s, epsilon, given):
    """Beyond epsilon they are those of the formula."""
    distance = lambda d: d * torch.tanh(d / (2 * s))  # noqa: E731
    formula = lambda d: 2 * sign * torch.sigmoid(-torch.relu(distance(d) - epsilon) / s)  # noqa: E731
    operator = lambda d: getattr(soft, name)(d, 0.0, given(s), epsilon=epsilon)  # noqa: E731
    d = torch.linspace(-1, 1, 2000, dtype=torch.float64) * 2 * (epsilon + math.sqrt(2 * s * epsilon) + 1e-3)
    leaf = d.clone().requires_grad_()
    for found, expected, atol in (
        (torch.autograd.grad(operator(leaf).sum(), leaf)[0], vmap(grad(formula))(d), 1e-9 / s),
        (vmap(grad(operator))(d), vmap(grad(formula))(d), 1e-9 / s),
        (vmap(second(operator))(d), vmap(second(formula))(d), 1e-9 / s**2),
    ):
        assert not found[distance(d) < epsilon].any()
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=atol)


def test_all_and_any_of_a_number():
    """A number is its only element, along any dimension that it might have."""
    x = torch.tensor(0.3)
    for f in (soft.all, soft.any):
        for dim in (-1, 0):
            torch.testing.assert_close(f(x, dim), x)


# --- hard values ------------------------------------------------------------------------------------------------------

Y = 0.75
STRAIGHT_THROUGH = {
    "abs_st": (fullgrad.abs_st, torch.abs),
    "sign_st": (fullgrad.sign_st, torch.sign),
    "relu_st": (fullgrad.relu_st, torch.relu),
    "round_st": (fullgrad.round_st, torch.round),
    "heaviside_st": (fullgrad.heaviside_st, lambda x: torch.heaviside(x, torch.tensor(0.5, dtype=x.dtype))),
    "clamp_st": (lambda x, **k: fullgrad.clamp_st(x, -1.5, Y, **k), lambda x: torch.clamp(x, -1.5, Y)),
    "greater_st": (lambda x, **k: fullgrad.greater_st(x, Y, **k), lambda x: torch.greater(x, Y).to(x.dtype)),
    "greater_equal_st": (lambda x, **k: fullgrad.greater_equal_st(x, Y, **k), lambda x: torch.greater_equal(x, Y).to(x.dtype)),
    "less_st": (lambda x, **k: fullgrad.less_st(x, Y, **k), lambda x: torch.less(x, Y).to(x.dtype)),
    "less_equal_st": (lambda x, **k: fullgrad.less_equal_st(x, Y, **k), lambda x: torch.less_equal(x, Y).to(x.dtype)),
    "eq_st": (lambda x, **k: fullgrad.eq_st(x, Y, **k), lambda x: torch.eq(x, Y).to(x.dtype)),
    "not_equal_st": (lambda x, **k: fullgrad.not_equal_st(x, Y, **k), lambda x: torch.not_equal(x, Y).to(x.dtype)),
    "isclose_st": (
        lambda x, **k: fullgrad.isclose_st(x, Y, rtol=0.1, **k),
        lambda x: torch.isclose(x, torch.tensor(Y, dtype=x.dtype), rtol=0.1).to(x.dtype),
    ),
}


def _numbers(dtype):
    """All 65,536 numbers of a dtype of 16 bits; for wider ones all float16 numbers, some between, and the special ones."""
    half = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    if dtype.itemsize == 2:
        return half.view(dtype)
    special = torch.tensor([INF, -INF, NAN, 0.0, -0.0, 1e-45, -1e-45, 3e38, Y], dtype=torch.float64)
    return torch.cat([half.view(torch.float16).to(dtype), 1.001 * half.view(torch.bfloat16).to(dtype), special.to(dtype)])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", STRAIGHT_THROUGH)
def test_hard_value_to_the_last_bit(name, dtype):
    """Values are hard for every number, with and without a gradient, in every mode; the gradient is never infinite."""
    straight_through, hard = STRAIGHT_THROUGH[name]
    x = _numbers(dtype)
    for mode in ("smooth", "c2", "hard"):
        equal(straight_through(x, mode=mode), hard(x))
    leaf = x.clone().requires_grad_()
    y = straight_through(leaf)
    equal(y.detach(), hard(x))
    (gradient,) = torch.autograd.grad(y.sum(), leaf)
    assert not gradient.isinf().any()
    assert not gradient[~x.isnan()].isnan().any()


class Kernels(TorchDispatchMode):
    """The names of the operations of torch that run."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("name", STRAIGHT_THROUGH)
def test_a_straight_through_value_takes_no_exponential(name, recorded):
    """The relaxation is work for the backward alone; the relaxed value itself would take one."""
    straight_through, _ = STRAIGHT_THROUGH[name]
    exponentials = {"exp", "sigmoid", "softplus", "softplus_backward", "tanh"}
    with torch.set_grad_enabled(recorded), Kernels() as value:
        y = straight_through(torch.randn(5, requires_grad=True))
    assert not value.names & exponentials
    if recorded:
        with Kernels() as derivative:
            y.sum().backward()
        assert derivative.names & exponentials


@pytest.mark.parametrize("name", STRAIGHT_THROUGH)
def test_hard_values_of_cotangents_that_autograd_batches(name):
    """`is_grads_batched=True` changes no tensor that a backward may use."""
    straight_through, _ = STRAIGHT_THROUGH[name]

    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return straight_through(g)

    x, rows = torch.zeros(4, requires_grad=True), torch.linspace(-2, 2, 12).view(3, 4)
    (batched,) = torch.autograd.grad(Backward.apply(x), x, rows, is_grads_batched=True)
    equal(batched, straight_through(rows))


# --- numbers ----------------------------------------------------------------------------------------------------------


HOMOGENEOUS = {
    **{n: (getattr(soft, n), 0) for n in ("sigmoidal", "sign", "heaviside")},
    **{n: (getattr(soft, n), 1) for n in ("abs", "relu", "softrelu")},
    "gated": (lambda x, s, mode: soft.softrelu(x, s, mode, gated=True), 1),
    "clamp": (lambda x, s, mode: soft.clamp(x, -0.5 * s, 0.6 * s, s / 3, mode), 1),
    **{
        n: (lambda x, s, mode, n=n: getattr(soft, n)(x, s / 9, s, mode, 1e-9 * s), 0)
        for n in ("less", "greater_equal", "eq", "not_equal")
    },
}


@pytest.mark.parametrize("unit", [1e-30, 1e30])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", HOMOGENEOUS)
def test_the_unit_may_be_any(name, mode, unit):
    """Results scale with the unit where the softness is in the unit of the input."""
    f, power = HOMOGENEOUS[name]
    x = torch.linspace(-0.9, 1.1, 21, dtype=torch.float64)

    def derivatives(unit):
        def g(x):
            return f(x, 0.4 * unit, mode)

        return [vmap(h)(unit * x) for h in (g, grad(g), grad(grad(g)))]

    for order, (scaled, expected) in enumerate(zip(derivatives(unit), derivatives(1.0), strict=True)):
        torch.testing.assert_close(scaled / unit ** (power - order), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ONE)
def test_accuracy_in_low_precision(name, mode):
    """Value and derivative of float32 are right to a few units of the last place of their scale, half precision to one."""
    x64 = torch.linspace(-1.6, 1.6, 1001, dtype=torch.float64)
    for dtype, places in ((torch.float32, 12), (torch.bfloat16, 1.01), (torch.float16, 1.01)):
        x = x64.to(dtype)
        eps = torch.finfo(dtype).eps
        f = lambda x: ONE[name](x, S, mode)  # noqa: E731
        for g in (f, vmap(grad(f))):
            expected = g(x.double())
            error = (g(x).double() - expected).abs()
            # float32 by the scale of the function, half precision (which is computed in float32) by each number.
            scale = expected.abs().amax() if dtype == torch.float32 else expected.abs()
            assert bool((error <= places * eps * scale + 2e-7 / S).all()), (dtype, (error - places * eps * scale).max())


@pytest.mark.parametrize("mode", MODES)
def test_large_numbers_do_not_cancel(mode):
    """Far from the bounds, and for tiny truth values, float32 is right to its last places."""
    x = torch.tensor([-1e6, -3.0, 0.2, 3.0, 1e6])
    for gated in (False, True):
        actual = soft.clamp(x, -1e4, 1e4, 0.1, mode, gated)
        torch.testing.assert_close(actual.double(), soft.clamp(x.double(), -1e4, 1e4, 0.1, mode, gated), rtol=1e-6, atol=1e-7)
    q = torch.tensor([0.3, 0.45, 0.49])
    torch.testing.assert_close(soft.less(q, 0.0, 0.1, mode).double(), soft.less(q.double(), 0.0, 0.1, mode), rtol=1e-4, atol=0)
    # The slope in the tail of a straight-through version.
    f = vmap(grad(lambda x: fullgrad.sign_st(x, 0.1, mode)))
    torch.testing.assert_close(f(10 * q).double(), f(10 * q.double()), rtol=1e-4, atol=0)


@pytest.mark.parametrize("mode", MODES)
def test_infinities_stay_infinite(mode):
    """The values at infinity are those of the hard operators, and the gradients are finite, also with respect to the softness."""
    x = torch.tensor([-INF, INF])
    for f, expected in (
        (soft.abs, [INF, INF]),
        (soft.relu, [0, INF]),
        (lambda x, s, mode: soft.relu(x, s, mode, gated=True), [0, INF]),
        (soft.sign, [-1, 1]),
        (soft.heaviside, [0, 1]),
        (soft.round, [-INF, INF]),
        (lambda x, s, mode: soft.clamp(x, -1.0, 2.0, s, mode), [-1, 2]),
        (lambda x, s, mode: soft.clamp(x, -1.0, 2.0, s, mode, gated=True), [-1, 2]),
        (lambda x, s, mode: soft.greater(x, 0.0, s, mode), [0, 1]),
        (lambda x, s, mode: soft.eq(x, 0.0, s, mode), [0, 0]),
        (lambda x, s, mode: soft.isclose(x, 0.0, s, mode=mode), [0, 0]),
    ):
        torch.testing.assert_close(f(x, 0.1, mode), torch.tensor(expected, dtype=torch.float32), rtol=0, atol=1e-37)
        s = torch.tensor(0.1)
        for gradient in grad(lambda x, s, f=f: torch.nan_to_num(f(x, s, mode), 0.0, 0.0, 0.0).sum(), (0, 1))(x, s):
            assert gradient.isfinite().all()
        for loss in (lambda x: f(x, 0.1, mode).clamp(-9, 9).sum(),):  # noqa: B023
            assert hessian(loss)(x).isfinite().all()


def test_softness_per_sample_and_with_a_gradient():
    """A softness for each row, and for each sample of a vmap, gets the gradient that finite differences find."""
    x, s = like(torch.empty(3, 4, dtype=torch.float64), 0), torch.tensor([[0.1], [0.2], [0.4]], dtype=torch.float64)
    h = 1e-6
    for name, f in ONE.items():
        for mode in ("smooth", "c1", "c2"):
            g = grad(lambda s, f=f, mode=mode: f(x, s, mode).sum())(s)
            difference = (f(x, s + h, mode) - f(x, s - h, mode)).sum(1, keepdim=True) / (2 * h)
            torch.testing.assert_close(g, difference, rtol=1e-5, atol=1e-6, msg=f"{name} {mode}")
            close(vmap(grad(lambda s, x, f=f, mode=mode: f(x, s[0], mode).sum()))(s, x), g)
            close(vmap(lambda x, s, f=f, mode=mode: f(x, s, mode))(x[:, 0], s[:, 0]), f(x[:, 0], s[:, 0], mode))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", PARAMETERS)
def test_a_softness_of_another_dtype(name, dtype):
    """The gradients of the softness and of x are those for a softness of the dtype of x."""
    x = like(torch.empty(6, dtype=torch.float32), 0)
    s = torch.full((6,), 0.25, dtype=dtype)  # the same number in each

    def total(x, s):
        return PARAMETERS[name](x, s, "smooth", -0.9, 0.8).sum()

    def gradients(s):
        return [g.float() for g in grad(total, (0, 1))(x, s)]

    torch.testing.assert_close(gradients(s), gradients(s.float()), rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)
    leaf = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(total(leaf, s), leaf)
    torch.testing.assert_close(found, gradients(s.float())[0])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ONE)
def test_a_softness_of_more_dimensions(name, mode):
    """The value has all dimensions, whether or not it is recorded."""
    x, softness = torch.linspace(-0.9, 0.9, 7), torch.tensor([[0.1], [0.3]])
    expected = torch.stack([ONE[name](x, s.item(), mode) for s in softness])
    torch.testing.assert_close(ONE[name](x, softness, mode), expected)
    torch.testing.assert_close(ONE[name](x.clone().requires_grad_(), softness, mode).detach(), expected)


@pytest.mark.parametrize("case", [c for c in RELAXATIONS if c.name.endswith("widths")], ids=lambda c: c.name)
def test_a_softness_for_each_row(case):
    """The gradient is right, alone and with those of other inputs; the cotangent is not used as a buffer."""
    for check in ("backward", "each_input_alone"):
        CHECKS[check](case)


# --- logic and selection ----------------------------------------------------------------------------------------------


def test_logic_of_certain_truth_values_is_boolean():
    """0 and 1 give what torch's logic gives, with finite gradients everywhere, at several zeros too."""
    a, b = torch.tensor([0.0, 0.0, 1.0, 1.0]), torch.tensor([0.0, 1.0, 0.0, 1.0])
    for name in ("logical_and", "logical_or", "logical_xor"):
        expected = getattr(torch, name)(a, b).float()
        equal(getattr(soft, name)(a, b), expected)
        for mean in (False, True):
            gradients = grad(lambda a, b, name=name, mean=mean: getattr(soft, name)(a, b, mean).sum(), (0, 1))(a, b)
            assert all(g.isfinite().all() for g in gradients)
    x = torch.tensor([[0.0, 0.0, 0.5], [1.0, 0.0, 1.0]])
    assert grad(lambda x: soft.all(x).sum())(x).tolist() == [[0, 0, 0], [0, 1, 0]]
    assert grad(lambda x: soft.any(1 - x).sum())(x).tolist() == [[0, 0, 0], [0, -1, 0]]
    assert soft.all(x, 0).tolist() == [0, 0, 0.5]


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("f", [soft.logical_and, soft.logical_or, soft.logical_xor])
def test_truth_values_of_two_dtypes_are_computed_in_that_of_the_result(f, mean):
    """Values and gradients are right, each gradient in the dtype of its input."""
    for dtypes in itertools.permutations((torch.bfloat16, torch.float32, torch.float64), 2):
        a, b = (torch.tensor([0.001, 0.5, 0.75], dtype=dtype, requires_grad=True) for dtype in dtypes)
        for other in (b, b[2]):  # a number without dimensions takes the dtype of the others
            wider = torch.result_type(a, other)
            found, expected = f(a, other, mean), f(a.to(wider), other.to(wider), mean)
            torch.testing.assert_close(found, expected)
            torch.testing.assert_close(torch.autograd.grad(found.sum(), (a, b)), torch.autograd.grad(expected.sum(), (a, b)))


def test_means_of_small_truth_values_have_finite_derivatives_in_half_precision():
    """1e-10 is 0 in float16; the smallest number replaces it, and products of small numbers do not vanish."""
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.tensor([0.0, 1e-4, 1.0], dtype=dtype)
        assert soft.logical_and(x[1], x[1], True).item() == pytest.approx(1e-4, rel=0.02)
        for f in (lambda x: soft.logical_and(x, x, True).sum(), lambda x: soft.all(x, use_geometric_mean=True)):
            assert grad(f)(x).isfinite().all()


def test_hard_selection_is_indexing():
    """Weights of 0 and 1 give what torch's indexing gives, for any dimension and batch."""
    x = like(torch.empty(2, 5, 3), 0)
    for dim, n in ((0, 2), (1, 5), (-1, 3)):
        index = torch.randint(0, n, (4,), generator=torch.Generator().manual_seed(1))
        weights = torch.nn.functional.one_hot(index, n).float()
        close(soft.take(x, weights, dim), x.index_select(dim, index))
        close(soft.index_select(x, weights[0], dim), x.index_select(dim, index[:1]))
        close(soft.index_select(x, weights[0], dim, keepdim=False), x.select(dim, int(index[0])))
        close(soft.narrow(x, weights[0], n - 1, dim), x.roll(-int(index[0]), dim).narrow(dim, 0, n - 1))
        places = torch.randint(0, n, x.movedim(dim, -1).shape[:-1] + (4,), generator=torch.Generator().manual_seed(2)).movedim(
            -1, dim
        )
        close(soft.take_along_dim(x, torch.nn.functional.one_hot(places, n).float(), dim), x.take_along_dim(places, dim))
    long, places = like(torch.empty(2, 20), 1), torch.tensor([[7, 2, 2], [19, 0, 5]])  # summed in another way
    close(soft.take_along_dim(long, torch.nn.functional.one_hot(places, 20).float(), 1), long.take_along_dim(places, 1))
    close(soft.take(x, torch.eye(30)[[7, 2]]), x.take(torch.tensor([7, 2])))
    condition = torch.tensor([[True], [False]])
    equal(soft.where(condition.float(), x[0, :2], x[1, :2]), torch.where(condition, x[0, :2], x[1, :2]))


# --- arguments --------------------------------------------------------------------------------------------------------

x = torch.zeros(2, 3)
ERRORS = [
    (lambda: soft.abs(x, 0.0), ValueError, "abs: `softness` must be positive and finite, got 0.0"),
    (lambda: soft.round(x, -1), ValueError, "round: `softness` must be positive and finite, got -1"),
    (lambda: soft.abs(x, "1"), TypeError, "abs: `softness` must be a number, got a value of type str"),
    (lambda: soft.abs(x, mode="c3"), ValueError, "`mode` must be one of 'hard', 'smooth', 'c0', 'c1', 'c2', got 'c3'"),
    (
        lambda: soft.sigmoidal(x, mode="hard"),
        ValueError,
        "sigmoidal: `mode` must be one of 'smooth', 'c0', 'c1', 'c2', 'laplace', got 'hard'",
    ),
    (lambda: soft.abs(x, mode="_c1_pnorm"), ValueError, "abs: `mode` must be one of"),
    (lambda: soft.abs(3.0), TypeError, "abs: `x` must be a tensor, got a value of type float"),
    (lambda: fullgrad.abs_st(x.bool()), TypeError, "abs_st: `x` must be a real tensor, got dtype torch.bool"),
    (
        lambda: fullgrad.round_st(x, neighbor_radius=0),
        ValueError,
        "round_st: `neighbor_radius` must be a positive integer, got 0",
    ),
    (lambda: fullgrad.greater_st(x, "y"), TypeError, "greater_st: `y` must be a number or a tensor, got a value of type str"),
    (lambda: fullgrad.clamp_st(x, None, 1.0), TypeError, "clamp_st: `min_value` must be a number or a tensor, got"),
    (lambda: soft.isclose(x, x, rtol=-1.0), ValueError, "isclose: `rtol` must be finite and not negative, got -1.0"),
    (lambda: soft.isclose(x, x, atol=math.inf), ValueError, "isclose: `atol` must be finite and not negative, got inf"),
    (lambda: soft.all(x, 2), IndexError, "all: `dim` must be from -2 to 1 for 2 dimensions, got 2"),
    (lambda: soft.take(x, x, 0), ValueError, r"take: `soft_index` must have 2 weights in its last dimension, got shape \(2, 3\)"),
    (lambda: soft.take(x, torch.ones(3), 1), ValueError, r"take: `soft_index` must have the shape \(k, n\), got shape \(3,\)"),
    (lambda: soft.take_along_dim(x, x, 0), ValueError, r"`soft_index` must have 3 dimensions, got shape \(2, 3\)"),
    (lambda: soft.narrow(x, torch.ones(3), 4, 1), ValueError, "narrow: `length` must be at most 3, got 4"),
    (
        lambda: soft.narrow(x, torch.ones(2), 1, 1),
        ValueError,
        r"narrow: `soft_start` must have the shape \(3,\), got shape \(2,\)",
    ),
]


HARD = {
    "abs_st": torch.abs,
    "relu_st": torch.relu,
    "sign_st": torch.sign,
    "round_st": torch.round,
    "heaviside_st": lambda x: torch.heaviside(x.detach(), torch.tensor(0.5).double()) + 0 * x,
}


@pytest.mark.parametrize("name", HARD)
def test_hard_straight_through_is_torch(name):
    """Value and derivative are torch's."""
    x = torch.tensor([-1.7, -0.5, 0.0, 0.2, 2.5], dtype=torch.float64, requires_grad=True)
    found, expected = getattr(fullgrad, name)(x, mode="hard"), HARD[name](x)
    equal(found.detach(), expected.detach())
    equal(*[torch.autograd.grad((y * torch.arange(5)).sum(), x)[0] for y in (found, expected)])


@pytest.mark.parametrize("rtol", [0.0, 0.5])
def test_closeness_has_gradients_of_each_tensor(rtol):
    """Gradients of both tensors, and of one alone, are right, with the relative tolerance of the second."""
    x, y = torch.randn(2, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).unbind()
    x, y = x.requires_grad_(), y.requires_grad_()
    found = soft.isclose(x, y, 0.3, rtol=rtol, atol=0.2).square().sum()
    expected = _isclose_of(x, y, 0.3, rtol, 0.2, "smooth").square().sum()
    for of in ((x, y), (x,), (y,)):
        close(*[torch.autograd.grad(f, of, retain_graph=True) for f in (found, expected)])
    for of, pair in ((x, (x, y.detach())), (y, (x.detach(), y))):
        found, expected = soft.isclose(*pair, 0.3, rtol=rtol, atol=0.2), _isclose_of(*pair, 0.3, rtol, 0.2, "smooth")
        close(*[torch.autograd.grad(f.sum(), of) for f in (found, expected)])


@pytest.mark.parametrize(("call", "error", "message"), ERRORS)
def test_errors_name_the_argument_the_rule_and_what_was_found(call, error, message):
    """Bad arguments raise before anything is recorded."""
    with raises(error, match=message):
        call()


def test_integers_become_floats():
    """Integers of any kind become the default dtype; y may be a number; aliases are the same functions."""
    whole = torch.tensor([-2, 0, 3])
    equal(soft.abs(whole), soft.abs(whole.float()))
    equal(soft.greater(whole, 1), soft.greater(whole.float(), 1.0))
    equal(soft.isclose(whole, 0, rtol=0, epsilon=0, atol=1), soft.isclose(whole.float(), 0.0, rtol=0.0, epsilon=0.0, atol=1.0))
    assert fullgrad.abs_st(whole).dtype == torch.float32
    assert soft.ge is soft.greater_equal
    assert soft.equal is soft.eq
    assert fullgrad.equal_st is fullgrad.eq_st


# --- half precision, in pieces ----------------------------------------------------------------------------------------


@pytest.mark.short(of=3)
@pytest.mark.parametrize("case", RELAXATIONS, ids=lambda c: c.name)
def test_gradients_of_every_variant_in_half_precision(case):
    """Half precision, which has its own kernels, is right in every mode, with and without the hard value."""
    CHECKS["gradients_in_every_dtype"](case)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_slopes_of_half_precision_are_accurate_where_the_value_has_lost_them(dtype):
    """The derivative of sigmoid, relu and comparison is right far on the right, where 1 - value is 0."""
    x = torch.linspace(-0.9, 0.9, 181).to(dtype)
    exact = x.double()
    for f in (soft.sigmoidal, soft.softrelu, lambda v: soft.greater(v, 0.0), lambda v: soft.less(v, 0.0), soft.relu):
        expected = grad(lambda v, f=f: f(v).sum())(exact)
        leaf = x.clone().requires_grad_()
        (found,) = torch.autograd.grad(f(leaf).sum(), leaf)
        _, tangent = jvp(f, (x,), (torch.ones_like(x),))
        for slope in (found, tangent):
            torch.testing.assert_close(slope.double(), expected, rtol=4 * torch.finfo(dtype).eps, atol=1e-6)
        assert (f(x).double() - f(exact)).abs().max() <= 2 * torch.finfo(dtype).eps * max(1.0, float(f(exact).max()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_smooth_rectifiers_and_steps_of_infinity_are_the_hard_ones(dtype):
    """Values are right in every precision, by every kernel: no infinity is multiplied by 0."""
    x = torch.tensor([-math.inf, math.inf], dtype=dtype).requires_grad_()
    for f, hard in (
        (soft.relu, torch.relu),
        (lambda v: soft.relu(v, gated=True), torch.relu),
        (soft.sigmoidal, lambda v: (v > 0).to(dtype)),
    ):
        y = f(x)
        assert torch.equal(y, hard(x))
        assert torch.autograd.grad(y.sum(), x)[0].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor", "all", "any"])
def test_logic_in_half_precision_is_rounded_once(name, mean, dtype):
    """Values of half precision, also near 1e-10, 0 and 1, are those of float64, rounded."""
    numbers = torch.tensor([0.0, 6e-8, 1e-7, 1e-4, 0.003, 0.3, 0.5, 0.999, 1.0], dtype=dtype)
    x, y = torch.meshgrid(numbers, numbers, indexing="ij")

    def f(x, y):
        if name in ("all", "any"):
            return getattr(soft, name)(torch.stack([x, y]), 0, use_geometric_mean=mean)
        return getattr(soft, name)(x, y, mean)

    expected = f(x.double(), y.double())
    found = f(x, y).double()
    limits = torch.finfo(dtype)
    smallest = max(limits.tiny * limits.eps, 2e-7)  # and steps near 1 are rounded in float32
    assert ((found - expected).abs() <= 0.51 * limits.eps * expected.abs() + smallest).all()
