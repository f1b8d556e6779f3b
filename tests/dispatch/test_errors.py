"""The state after a failing rule, the error of a wrong one, and what a call keeps alive."""

import gc
import weakref

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, jacfwd, jacrev, jvp, vjp, vmap
from torch.testing import assert_close

from fullgrad import Function
from tests.operators import Cube, MatMul, SinCos, ThroughRound, sample

pytestmark = pytest.mark.short


class Failure(Exception):
    """Raised by a rule."""


class Failing(Cube):
    """`Cube`, one of whose rules fails."""

    rule = None

    @staticmethod
    def forward(x):
        return _unless("forward") or x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        return _unless("setup_context") or Cube.setup_context(ctx, inputs, output)

    @staticmethod
    def vjp(ctx, g):
        return _unless("vjp") or Cube.vjp(ctx, g)

    @staticmethod
    def jvp(ctx, t):
        return _unless("jvp") or Cube.jvp(ctx, t)

    @staticmethod
    def vmap(info, in_dims, x):
        return _unless("vmap") or (Failing.apply(x), in_dims[0])


def _unless(rule):
    if Failing.rule == rule:
        raise Failure(rule)


def _state():
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch._C._is_fwd_grad_enabled(),
        forward_ad._current_level,
        torch._C._functorch.peek_interpreter_stack() is None,
        torch._C._functorch.get_single_level_autograd_function_allowed(),
    )


FAILURES = {
    "eager": ("forward", lambda f, x: f(x)),
    "requires_grad": ("forward", lambda f, x: f(x.requires_grad_())),
    "setup_context": ("setup_context", lambda f, x: f(x.requires_grad_())),
    "backward": ("vjp", lambda f, x: f(x.requires_grad_()).sum().backward()),
    "grad": ("forward", lambda f, x: grad(lambda x: f(x).sum())(x)),
    "grad_setup": ("setup_context", lambda f, x: jacrev(jacrev(f))(x)),
    "grad_vjp": ("vjp", lambda f, x: jacfwd(jacrev(f))(x)),
    "jvp": ("jvp", lambda f, x: jvp(f, (x,), (x,))),
    "nested": ("forward", lambda f, x: jacrev(jacfwd(jacrev(f)))(x)),
    "nested_jvp": ("jvp", lambda f, x: jacfwd(jacfwd(f))(x)),
    "nested_no_grad": ("forward", lambda f, x: jacrev(jacfwd(torch.no_grad()(f)))(x)),
    "vmap": ("vmap", lambda f, x: vmap(vmap(grad(f)))(x[None])),
    "vmap_forward": ("forward", lambda f, x: vmap(jacfwd(f))(x[None])),
}


@pytest.mark.parametrize("name", FAILURES)
def test_state_after_a_rule_that_fails(name, monkeypatch):
    """The author's exception comes through, and every mode and the stack of transforms are as before."""
    rule, call = FAILURES[name]
    before = _state()
    with monkeypatch.context() as patch:
        patch.setattr(Failing, "rule", rule)
        with pytest.raises(Failure, match=rule):
            call(Failing.apply, sample())
    assert _state() == before
    x = sample()
    assert_close(jacfwd(jacrev(lambda x: Failing.apply(x).sum()))(x), torch.diag(6 * x))


class WrongShape(Cube):
    @staticmethod
    def vjp(ctx, g):
        return torch.ones(7, dtype=g.dtype)

    @staticmethod
    def jvp(ctx, t):
        return torch.ones(7, dtype=t.dtype)


def test_gradient_of_another_shape_is_refused():
    """torch refuses such a gradient in each mode."""
    x = sample()
    with pytest.raises(RuntimeError, match="invalid gradient"):
        WrongShape.apply(x.clone().requires_grad_()).sum().backward()
    with pytest.raises(RuntimeError, match="invalid gradient"):
        grad(lambda x: WrongShape.apply(x).sum())(x)
    with pytest.raises(RuntimeError):
        jvp(WrongShape.apply, (x,), (x,))


SCALE = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)


class Capturing(ThroughRound):
    """Multiplies by a tensor from outside, which is not an input."""

    @staticmethod
    def forward(x):
        return x * SCALE


def test_captured_tensor_has_no_gradient():
    """Tensors that forward captures are constants, whether an input requires a gradient or not, as in torch's own Function."""
    assert not Capturing.apply(sample()).requires_grad
    y = Capturing.apply(sample().requires_grad_())
    assert torch.autograd.grad(y.sum(), SCALE, allow_unused=True) == (None,)


class Mutating(Function):
    """Works in place on its own temporary."""

    @staticmethod
    def forward(x):
        return x.clone().mul_(2).add_(1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vjp(ctx, g):
        return g.clone().mul_(2)

    @staticmethod
    def jvp(ctx, t):
        return t.clone().mul_(2)

    @staticmethod
    def vmap(info, in_dims, x):
        return Mutating.apply(x), in_dims[0]


def test_gradients_are_checked_until_they_are_right_once():
    """A rule that was right once runs unchecked, and torch has the error: a check costs as much as a small operation."""

    class Changing(Cube):
        gradient = None

        @staticmethod
        def forward(x):
            return x**3

        @staticmethod
        def vjp(ctx, g):
            return Changing.gradient

    def backward(gradient):
        Changing.gradient = gradient
        x = sample().requires_grad_()
        return torch.autograd.grad(Changing.apply(x).sum(), x)

    for _ in range(2):
        with pytest.raises(TypeError, match=r"Changing\.vjp must return floating tensors or None, got a str for input 0"):
            backward("wrong")
    backward(sample())
    with pytest.raises((TypeError, RuntimeError), match=r"expected Variable or None \(got str\)"):
        backward("wrong")


def test_in_place_on_a_temporary():
    """Rules may work in place on tensors that they made."""
    x = sample()
    assert torch.equal(Mutating.apply(x), 2 * x + 1)
    for transform in (jacrev, jacfwd, lambda f: jacrev(jacfwd(lambda x: f(x) ** 2))):
        assert_close(transform(Mutating.apply)(x), transform(lambda x: 2 * x + 1)(x))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: Cube.apply(x),
        lambda x: SinCos.apply(x),
        lambda x: MatMul.apply(x[:, None], x[None]),
        lambda x: grad(lambda x: Cube.apply(x).sum())(x),
        lambda x: vjp(Cube.apply, x)[1](x),
        lambda x: jvp(Cube.apply, (x,), (x,)),
        lambda x: vmap(SinCos.apply)(x),
    ],
)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_nothing_is_kept_alive(call, requires_grad):
    """The inputs are gone with the results, without the garbage collector."""
    x = sample() * 1
    x.requires_grad_(requires_grad)
    gone = weakref.ref(x)
    gc.disable()
    try:
        result = call(x)
        del result, x
        assert gone() is None
    finally:
        gc.enable()


class Product(Function):
    """x y^n, with right rules."""

    @staticmethod
    def forward(x, y, n=1):
        return x * y**n

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, ctx.n = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def vjp(ctx, g):
        x, y = ctx.saved_tensors
        return g * y**ctx.n, g * x * ctx.n * y ** (ctx.n - 1), None

    @staticmethod
    def jvp(ctx, t, u, _):
        x, y = ctx.saved_tensors
        return t * y**ctx.n + u * x * ctx.n * y ** (ctx.n - 1)

    @staticmethod
    def vmap(info, in_dims, x, y, n):
        return Product.apply(x.movedim(in_dims[0], 0), y.movedim(in_dims[1], 0), n), 0


def _save_nothing(ctx, inputs, output):
    ctx.n = inputs[2]


def _save_for_backward_alone(ctx, inputs, output):
    *tensors, ctx.n = inputs
    ctx.save_for_backward(*tensors)


MISTAKES = {
    "too_few": (
        "vjp",
        lambda ctx, g: (g, g),
        "vjp must return one gradient for each of the 3 inputs of forward, or None, got a tuple of 2",
    ),
    "too_many": ("vjp", lambda ctx, g: (g, g, None, g), "for each of the 3 inputs of forward, or None, got a tuple of 4"),
    "one": ("vjp", lambda ctx, g: g, "for each of the 3 inputs of forward, or None, got a tensor of dtype torch.float64"),
    "list": ("vjp", lambda ctx, g: [g, g, None], "for each of the 3 inputs of forward, or None, got a list"),
    "nothing": ("vjp", lambda ctx, g: None, "for each of the 3 inputs of forward, or None, got a NoneType"),
    "number": ("vjp", lambda ctx, g: (g, 1.0, None), "vjp must return floating tensors or None, got a float for input 1"),
    "mask": ("vjp", lambda ctx, g: (g > 0, g, None), "got a tensor of dtype torch.bool for input 0"),
    "unsaved": (
        "setup_context",
        _save_nothing,
        "vjp failed: it reads ctx.saved_tensors, and setup_context saves .* ctx.save_for_backward",
    ),
    "number_as_tangent": ("jvp", lambda ctx, t, u, _: 0.0, "jvp must return a floating tensor for each output, got a float"),
    "tangents_in_a_list": ("jvp", lambda ctx, t, u, _: [t], "jvp must return a floating tensor for each output, got a list"),
    "mask_as_tangent": (
        "jvp",
        lambda ctx, t, u, _: t > 0,
        "jvp must return a floating tensor for each output, got a tensor of dtype torch.bool",
    ),
    "no_tangent": ("jvp", lambda ctx, t, u, n: t + u + 0 * n, "jvp failed: the tangent of input 2 is None"),
    "unsaved_for_jvp": (
        "setup_context",
        _save_for_backward_alone,
        "jvp failed: it reads ctx.saved_tensors, .* ctx.save_for_forward",
    ),
}
BACKWARDS = {
    "backward": lambda f, x, y: f(x.clone().requires_grad_(), y.clone().requires_grad_()).sum().backward(),
    "grad": lambda f, x, y: grad(lambda x, y: f(x, y).sum(), (0, 1))(x, y),
    "vmap_grad": lambda f, x, y: vmap(grad(lambda x, y: f(x, y).sum()))(x[None], y[None]),
}
FORWARDS = {
    "jvp": lambda f, x, y: jvp(f, (x, y), (x, y)),
    "vmap_jvp": lambda f, x, y: vmap(lambda x, y: jvp(f, (x, y), (x, y)))(x[None], y[None]),
}


@pytest.mark.short
@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_named(name):
    """Errors name the class, the rule, and what was found, at each call until the rule is right."""
    rule, body, words = MISTAKES[name]
    wrong = type("Mistaken", (Product,), {rule: staticmethod(body)})
    for call in (FORWARDS if rule == "jvp" or name.endswith("jvp") else BACKWARDS).values():
        for _ in range(2):
            with pytest.raises(TypeError, match=rf"^Mistaken\.(?:vjp|jvp) ?.*{words.removeprefix('vjp ').removeprefix('jvp ')}"):
                call(wrong.apply, sample(), sample())


@pytest.mark.parametrize(
    ("rule", "body"), [("jvp", lambda ctx, t: t), ("vmap", lambda info, x: x), ("setup_context", lambda ctx: None)]
)
def test_rule_that_cannot_be_called_is_refused(rule, body):
    """The definition of the class raises, and says what the rule is called with."""
    with pytest.raises(TypeError, match=rf"^Mistaken\.{rule} is called with \(.*\), got the signature"):
        type("Mistaken", (Product,), {rule: staticmethod(body)})
