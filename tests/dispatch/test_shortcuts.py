"""Shortcuts of calls without a derivative: what each must still see, and that its value is that of the full call."""

import contextlib
import functools
import math
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import grad, jvp, vmap
from torch.testing import assert_close
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import fullgrad
from fullgrad._core.function import Function, pure
from fullgrad._dispatch import can_skip_autograd
from fullgrad._suite.cases import CASES
from tests.operators import ThroughRound

pytestmark = pytest.mark.short

X = torch.tensor([-math.inf, -2.5, -1.0, -0.0, 0.0, 0.4, 1.0, 3.0, math.inf, math.nan])


def _operators(base=Function):
    """Every operator of fullgrad itself, without those that tests define."""
    for operator in base.__subclasses__():
        if operator.__module__.startswith("fullgrad."):
            yield operator
            yield from _operators(operator)


PURE = {operator.__name__: operator for operator in _operators() if hasattr(getattr(operator, "forward", None), "is_pure")}


@functools.cache
def _calls():
    """The arguments with which the cases call each pure operator."""
    calls = {operator: [] for operator in PURE.values()}
    with contextlib.ExitStack() as patches:
        for operator in PURE.values():

            def apply(*args, operator=operator, own=operator.apply):
                calls[operator].append(args)
                return own(*args)

            patches.enter_context(mock.patch.object(operator, "apply", staticmethod(apply)))
        for case in CASES:
            if not case.exhaustive:
                case.op(*case.tensors)
    return calls


class ArithmeticOfArguments(TorchDispatchMode):
    """Lets through what is elementwise, draws nothing, and reads the given tensors and what was computed of them alone."""

    def __init__(self, args):
        super().__init__()
        self.given, self.computed = [a for a in args if isinstance(a, Tensor)], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        mutates = any(a.alias_info is not None for a in (*func._schema.arguments, *func._schema.returns))
        copies = func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default, torch.ops.aten._to_copy.default)
        assert copies or (torch.Tag.pointwise in func.tags and not mutates), f"{func} is not elementwise"
        assert torch.Tag.nondeterministic_seeded not in func.tags, f"{func} draws"
        for t in pytree.tree_leaves((args, kwargs)):
            known = not isinstance(t, Tensor) or any(t is k for k in (*self.given, *self.computed))
            assert known, f"{func} reads a tensor that is no argument"
        y = func(*args, **(kwargs or {}))
        self.computed.append(y)
        return y


def check_pure(forward, *args):
    """Check that the value is new, computed by elementwise operations on the arguments, and the same in both grad modes."""
    values = []
    for recorded in (True, False):
        with torch.set_grad_enabled(recorded), ArithmeticOfArguments(args) as mode:
            values.append(forward(*args))
        assert any(values[-1] is t for t in mode.computed), "the value is not computed"
    assert_close(*values, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("operator", PURE.values(), ids=PURE)
def test_a_pure_forward_computes_with_its_arguments_alone(operator):
    """The shortcut calls it in either grad mode, and nothing cuts its value off from what else it might read."""
    assert _calls()[operator]
    for args in _calls()[operator]:
        check_pure(operator.forward, *args)


TABLE = torch.ones(())
IMPURE = {
    "reads another tensor": lambda x: x + TABLE,
    "returns its argument": lambda x: x,
    "returns a view": lambda x: x.view_as(x),
    "returns a part": lambda x: x[:1],
    "sums": lambda x: x.sum(),
    "draws": lambda x: torch.bernoulli(x),
    "writes in place": lambda x: x.trunc_(),
    "asks for the grad mode": lambda x: x * 2 if torch.is_grad_enabled() else x * 3,
}


@pytest.mark.parametrize("forward", IMPURE.values(), ids=IMPURE)
def test_a_forward_that_is_not_pure_is_seen(forward):
    with pytest.raises(AssertionError):
        check_pure(forward, torch.full((3,), 0.5))


@pytest.mark.parametrize("operator", PURE.values(), ids=PURE)
def test_a_forward_that_replaces_a_pure_one_is_called(operator):
    """A replaced forward is called, as that of the kit's surrogates."""
    x, *rest = _calls()[operator][0]
    with mock.patch.object(operator, "forward", staticmethod(lambda x, *_: x * 7)):
        assert torch.equal(operator.apply(x, *rest), x * 7)
    assert not torch.equal(operator.apply(x, *rest), x * 7)


class Recorder(Tensor):
    """A subclass that records its operations."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        seen.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


seen: list[str] = []


def test_a_subclass_is_not_taken_for_a_tensor():
    """A subclass keeps its type, and sees the operation."""
    x = torch.randn(3).as_subclass(Recorder)
    seen.clear()
    y = fullgrad.round(x)
    assert type(y) is Recorder
    assert "round" in seen
    assert not can_skip_autograd(x)


def _of_other_arguments():
    """Calls whose first argument needs no gradient and another one does, with their derivative in it."""
    x, y = torch.tensor([-2.0, 0.1, 2.0]), torch.tensor([-1.9, 0.0, 1.9])
    step = lambda d: torch.sigmoid(d / 0.1) * torch.sigmoid(-d / 0.1) / 0.1  # noqa: E731
    yield "clamp", lambda low: fullgrad.clamp(x, low, 1.0), torch.tensor(-1.0), torch.tensor([1.0, 0.0, 0.0])
    yield "replace_grad", lambda u: fullgrad.replace_grad(x, u), y, torch.ones(3)
    yield "scale_fwd", lambda f: fullgrad.scale_fwd(x, f), torch.tensor(2.0), x
    yield "greater_st", lambda y: fullgrad.greater_st(x, y), y, -step(x - y)
    yield "less_st", lambda y: fullgrad.less_st(x, y), y, step(y - x)
    yield "abs_st", lambda s: fullgrad.abs_st(x, s), torch.tensor(0.1), -2 * x * x / 0.1 * step(x)
    yield "clamp_st", lambda h: fullgrad.clamp_st(x, -1.0, h), torch.tensor(1.0), torch.sigmoid((x - 1) / 0.1)


OTHERS = list(_of_other_arguments())


@pytest.mark.parametrize(("f", "at", "derivative"), [other[1:] for other in OTHERS], ids=[other[0] for other in OTHERS])
def test_there_is_no_shortcut_past_the_derivative_of_another_argument(f, at, derivative):
    """Another argument may be a leaf, a dual tensor, or inside transforms, where the first one is a plain tensor from outside."""
    d = derivative.expand(3)
    weights = torch.tensor([1.0, 2.0, 3.0])
    leaf = at.clone().requires_grad_()
    expected = (weights * d).sum_to_size(at.shape)
    assert_close(torch.autograd.grad((weights * f(leaf)).sum(), leaf)[0], expected)
    assert_close(grad(lambda v: (weights * f(v)).sum())(at), expected)
    assert_close(jvp(f, (at,), (torch.ones_like(at),))[1], d)
    assert_close(vmap(lambda t: jvp(f, (at,), (t,))[1])(torch.ones(2, *at.shape)), d.expand(2, 3))
    with forward_ad.dual_level():
        assert_close(forward_ad.unpack_dual(f(forward_ad.make_dual(at, torch.ones_like(at)))).tangent, d)
    parameter = nn.Parameter(at.clone())
    assert_close(torch.autograd.grad((weights * f(parameter)).sum(), parameter)[0], expected)
    with torch.no_grad():
        assert not f(parameter).requires_grad


STRAIGHT_THROUGH = {
    "abs_st": (fullgrad.abs_st, torch.abs),
    "sign_st": (fullgrad.sign_st, torch.sign),
    "relu_st": (fullgrad.relu_st, torch.relu),
    "round_st": (fullgrad.round_st, torch.round),
    "clamp_st": (lambda x: fullgrad.clamp_st(x, -1.0, 1.0), lambda x: torch.clamp(x, -1.0, 1.0)),
    "greater_st": (lambda x: fullgrad.greater_st(x, 0.4), lambda x: (x > 0.4).to(x.dtype)),
    "greater_equal_st": (lambda x: fullgrad.greater_equal_st(x, x.flip(0)), lambda x: (x >= x.flip(0)).to(x.dtype)),
    "less_st": (lambda x: fullgrad.less_st(x, x[:, None]), lambda x: (x < x[:, None]).to(x.dtype)),
    "less_equal_st": (lambda x: fullgrad.less_equal_st(x, x[5]), lambda x: (x <= x[5]).to(x.dtype)),
    "eq_st": (lambda x: fullgrad.eq_st(x, 1), lambda x: (x == 1).to(x.dtype)),
    "not_equal_st": (lambda x: fullgrad.not_equal_st(x, x.double()), lambda x: (x != x.double()).double()),
    "isclose_st": (lambda x: fullgrad.isclose_st(x, x.flip(0)), lambda x: torch.isclose(x, x.flip(0)).to(x.dtype)),
}


@pytest.mark.parametrize(("operator", "plain"), STRAIGHT_THROUGH.values(), ids=STRAIGHT_THROUGH)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_a_straight_through_value_is_the_same_under_every_transform(operator, plain, dtype):
    """A value is the same to the last bit with and without a gradient, in no_grad, inference mode and transforms."""
    x = X.to(dtype)
    expected = plain(x)
    for y in (
        operator(x),
        operator(x.clone().requires_grad_()),
        torch.func.grad_and_value(lambda x: (operator(x).sum(), operator(x)), has_aux=True)(x)[1][1],
    ):
        y = y.detach()
        assert y.dtype == expected.dtype
        assert torch.equal(y.nan_to_num(7.0), expected.nan_to_num(7.0))
        assert torch.equal(y.signbit() & ~y.isnan(), expected.signbit() & ~expected.isnan())
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            y = operator(x)
            assert not y.requires_grad
            assert torch.equal(y.nan_to_num(7.0), expected.nan_to_num(7.0))


def test_a_softness_with_a_shape_gives_the_hard_value_its_shape():
    """A number has no shape; a tensor takes the full call."""
    assert fullgrad.abs_st(torch.ones(3), torch.full((2, 1), 0.1)).shape == (2, 3)


def test_a_closure_is_not_recorded():
    """An unmarked forward runs without grad mode, which is then restored, after an error too."""
    weight = torch.ones(3, requires_grad=True)

    class Closes(ThroughRound):
        @staticmethod
        def forward(x):
            assert not torch.is_grad_enabled()
            return x * weight

    assert not Closes.apply(torch.ones(3)).requires_grad
    assert torch.is_grad_enabled()
    with torch.no_grad():
        assert not Closes.apply(torch.ones(3)).requires_grad
        assert not torch.is_grad_enabled()
    with pytest.raises(ZeroDivisionError), mock.patch.object(Closes, "forward", staticmethod(lambda x: 1 / 0)):
        Closes.apply(torch.ones(3))
    assert torch.is_grad_enabled()


def test_a_pure_forward_meets_every_kind_of_argument():
    """Names that are those of the written-out code, keywords, defaults, tuples; a variadic forward has no shortcut."""

    class Pure(Function):
        @staticmethod
        @pure
        def forward(x, shift=0.5, sizes=(1, 2)):
            return x + shift

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def vjp(ctx, g):
            return g, None, None

        @staticmethod
        def jvp(ctx, t, *_):
            return t

        @staticmethod
        def vmap(info, in_dims, x, shift, sizes):
            return Pure.apply(x, shift, sizes), in_dims[0]

    x = torch.zeros(2)
    assert torch.equal(Pure.apply(x), x + 0.5)
    assert torch.equal(Pure.apply(shift=2, x=x), x + 2)
    assert torch.equal(Pure.apply(x, sizes=(3,)), x + 0.5)
    with pytest.raises(TypeError, match="holds a tensor"):
        Pure.apply(x, sizes=(x,))
    with pytest.raises(TypeError, match="missing"):
        Pure.apply()

    class Variadic(Pure):
        @staticmethod
        @pure
        def forward(*xs):
            return xs[0] + xs[1]

    assert torch.equal(Variadic.apply(x, x + 1), x + 1)
