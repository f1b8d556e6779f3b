"""A constant has no tangent: its rule gets None, in every mode and at every level."""

import pytest
import torch
import torch.autograd.forward_ad as fa
from torch.func import grad, jacfwd, jacrev, jvp, vjp, vmap

import fullgrad
from fullgrad import quantizers, safe, spikes
from tests.operators import Cube


class Product(Cube):
    """x y, whose jvp records which tangents there are."""

    seen = ()

    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def vjp(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x

    @staticmethod
    def jvp(ctx, *tangents):
        Product.seen += (tuple(t is not None for t in tangents),)
        x, y = ctx.saved_tensors
        parts = [t * other for t, other in zip(tangents, (y, x), strict=True) if t is not None]
        return sum(parts[1:], parts[0])

    @classmethod
    def vmap(cls, info, in_dims, x, y):
        return cls.apply(*(a if d is None else a.movedim(d, 0) for a, d in zip((x, y), in_dims, strict=True))), 0


class WithZeros(Product):
    """`Product`, which asks for zeros as torch's Functions get them."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(True)
        Product.setup_context(ctx, inputs, output)


def dual(f, x):
    with fa.dual_level():
        return fa.unpack_dual(f(fa.make_dual(x, torch.ones_like(x)))).tangent


def push(f, x):
    return jvp(f, (x,), (torch.ones_like(x),))[1]


MODES = {
    "jvp": push,
    "forward_ad": dual,
    "jacfwd": lambda f, x: jacfwd(f)(x),
    "jvp of grad's level": lambda f, x: grad(lambda x: push(f, x) * 1.0)(x),
    "vmap of jvp": lambda f, x: vmap(lambda x: push(f, x))(x[None])[0],
    "jvp of vmap": lambda f, x: push(lambda x: vmap(f)(x[None])[0], x),
    "compiled": lambda f, x: torch.compile(lambda x: push(f, x), backend="aot_eager", fullgraph=True)(x),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("of", [0, 1])
def test_the_tangent_of_a_constant_is_none(mode, of):
    """A rule sees the tangent of the input that is differentiated, and None for the constant."""
    x, y = torch.tensor(2.0), torch.tensor(3.0)
    f = (lambda v: Product.apply(v, y)) if of == 0 else (lambda v: Product.apply(y, v))
    Product.seen = ()
    MODES[mode](f, x)
    assert set(Product.seen) == {(of == 0, of == 1)}


def test_each_level_has_constants_of_its_own():
    """An input that is constant at one level may have a tangent at another."""
    x, y = torch.tensor(2.0), torch.tensor(3.0)
    Product.seen = ()
    assert jacfwd(jacfwd(Product.apply, 0), 1)(x, y) == 1
    assert set(Product.seen) == {(True, False), (False, True)}


def test_a_rule_may_ask_for_zeros():
    """With ``ctx.set_materialize_grads(True)`` both tangents are there."""
    Product.seen = ()
    for mode in ("jvp", "forward_ad", "compiled"):
        assert MODES[mode](lambda x: WithZeros.apply(x, torch.tensor(3.0)), torch.tensor(2.0)) == 3
    assert set(Product.seen) == {(True, True)}


class Both(Cube):
    """x and x ** 2, of which a user may need one."""

    @staticmethod
    def forward(x):
        return x.clone(), x * x

    @staticmethod
    def vjp(ctx, g, h):
        (x,) = ctx.saved_tensors
        return g + 2 * x * h

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return t.clone(), 2 * x * t

    @classmethod
    def vmap(cls, info, in_dims, x):
        return cls.apply(x.movedim(in_dims[0], 0)), (0, 0)


@pytest.mark.parametrize("used", [0, 1])
def test_a_cotangent_that_does_not_exist_is_zeros(used):
    """A rule gets zeros for an output that nothing uses, also where forward mode might have been needed."""
    x, expected = torch.tensor([1.0, 2.0]), [torch.ones(2), torch.tensor([2.0, 4.0])][used]
    f = lambda x: Both.apply(x)[used].sum()  # noqa: E731
    assert torch.equal(grad(f)(x), expected)
    assert torch.equal(vmap(grad(lambda x: Both.apply(x)[used]))(x), expected)
    leaf = x.clone().requires_grad_()
    with fa.dual_level():
        assert torch.equal(torch.autograd.grad(f(leaf), leaf)[0], expected)
    compiled = torch.compile(f, backend="aot_eager", fullgraph=True)
    assert torch.equal(torch.autograd.grad(compiled(leaf), leaf)[0], expected)


def test_a_cotangent_that_is_not_there_gives_no_gradient():
    """Where a Function behind an operator has no gradient, the operator's gradient is 0."""

    class Constant(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x: x * 1)
        backward = staticmethod(lambda ctx, g: None)

    x = torch.tensor([1.0, 2.0], requires_grad=True)
    with fa.dual_level():
        y = Constant.apply(fullgrad.Round.apply(Cube.apply(x)))
    assert torch.equal(torch.autograd.grad(y.sum(), x, materialize_grads=True)[0], torch.zeros(2))


INFINITE = {
    "codebook_quantize": (
        lambda x: quantizers.codebook_quantize(x, torch.tensor([-1.0, 0.0, 1.0]), torch.tensor(2.0)),
        torch.inf,
    ),
    "step_quantize": (lambda x: fullgrad.step_quantize(x, torch.tensor(0.5)), torch.inf),
    "scale_fwd": (lambda x: fullgrad.scale_fwd(x, torch.tensor(2.0)), torch.inf),
    "scale": (lambda x: fullgrad.scale(x, torch.tensor(2.0), torch.tensor(3.0)), torch.inf),
    "safe.pow": (lambda x: safe.pow(x, torch.tensor(2.0)), 1e20),
    "safe.div": (lambda x: safe.div(x, torch.tensor(1e-20)), 1e20),
    "affine_k_bit_quantize": (lambda x: fullgrad.affine_k_bit_quantize(x, 8, torch.tensor(1e-3), torch.tensor(0.0)), 1e38),
    "multi_spike": (lambda x: spikes.multi_spike(x, torch.tensor(1e-5)), 1e38),
    "periodic_exponential": (lambda x: spikes.periodic_exponential(x, torch.tensor(1.0), torch.tensor(1e-30)), 1e20),
}


@pytest.mark.parametrize("name", INFINITE)
def test_an_infinite_slope_of_a_constant_adds_nothing(name):
    """Forward mode has the derivative of reverse mode, where the slope of a constant parameter is infinite."""
    f, number = INFINITE[name]
    x = torch.tensor(number)
    expected = grad(f)(x)
    for mode in ("jvp", "forward_ad", "compiled"):
        torch.testing.assert_close(MODES[mode](f, x), expected, equal_nan=True)


def test_second_derivatives_of_a_quotient_with_a_tiny_divisor():
    """A slope that overflows has no part in the derivatives by the other argument."""
    x, y = torch.tensor(0.0), torch.tensor(1e-20)
    assert push(lambda x: push(lambda x: safe.div(x, y), x), x) == 0
    x, y = torch.tensor(0.3), torch.tensor(2e-17)
    for outer in (jacfwd, jacrev):
        for inner in (jacfwd, jacrev):
            torch.testing.assert_close(outer(inner(safe.div, 0), 1)(x, y), torch.tensor(-2.5e33))
    assert vjp(lambda y: jacfwd(safe.div)(x, y), y)[1](torch.tensor(1.0))[0] == outer(jacfwd(safe.div, 0), 1)(x, y)
