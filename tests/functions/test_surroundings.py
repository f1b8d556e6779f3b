"""What stands around a call of an operator made of functions: closures, modes, other vmaps, what changes before a backward."""

import ctypes
import functools
import gc
import math
import subprocess
import sys
import types
import weakref

import numpy
import pytest
import torch
from torch import nn
from torch.autograd import forward_ad as fwAD
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import fullgrad
from fullgrad import implicit
from fullgrad._dispatch import STAYS_IN_INFERENCE_MODE
from tests.operators import transforms_leave_inference_mode

X = torch.tensor([0.3, -0.7], dtype=torch.float64)


def of_custom_jvp(f, slope):
    op = fullgrad.custom_jvp(f)
    op.defjvp(lambda primals, tangents: (op(*primals), slope(*primals) * tangents[0]))
    return op


def of_custom_vjp(f, slope):
    op = fullgrad.custom_vjp(f)
    op.defvjp(lambda x: (f(x), x), lambda x, g: (g * slope(x),))
    return op


# Operators of a function and its derivative.
OPERATORS = {
    "custom_jvp": of_custom_jvp,
    "custom_vjp": of_custom_vjp,
    "custom_gradient": lambda f, slope: fullgrad.custom_gradient(lambda x: (f(x), lambda g: g * slope(x))),
    "checkpoint": lambda f, slope: lambda x: fullgrad.checkpoint(f, x),
    "with_reference": lambda f, slope: fullgrad.with_reference(f, f),
    "straight_through": lambda f, slope: fullgrad.straight_through(f, f),
    "root": lambda f, slope: lambda x: implicit.root(lambda z, x: z - f(x))(lambda init, x: f(x))(None, x),
}
CALLED_AGAIN = ["checkpoint", "with_reference", "root"]


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("strategy", ["forward-mode", "reverse-mode"])
def test_vectorized_hessians(name, strategy):
    """torch's legacy vmap over tangents of tensors that require a gradient."""
    op = OPERATORS[name](torch.sin, torch.cos)
    options = {"vectorize": True, "outer_jacobian_strategy": strategy}
    found = torch.autograd.functional.hessian(lambda x: op(x).sum(), X, **options)
    torch.testing.assert_close(found, torch.diag(-X.sin()))


@pytest.mark.parametrize("name", OPERATORS)
def test_closures_over_batched_tensors(name):
    """Functions that close over a sample are right for each."""
    weights = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)

    def op(w):
        return OPERATORS[name](lambda x: torch.sin(w * x), lambda x: w * torch.cos(w * x))

    for of in (lambda f: f(X), lambda f: jvp(f, (X,), (X,))[1], jacrev_at_x, hessian_at_x):
        torch.testing.assert_close(vmap(lambda w, of=of: of(op(w)))(weights), torch.stack([of(op(w)) for w in weights]))


HOLDING = {
    **{name: lambda push, of=of: of(push, lambda x: push(torch.ones_like(x))) for name, of in OPERATORS.items()},
    "solve": lambda push: lambda x: push(push(implicit.solve(push, x))),
    "finite_difference": lambda push: lambda x: fullgrad.blackbox.finite_difference(push, x),
}
FIRST = {
    "backward": lambda f, x: torch.autograd.grad(f(leaf := x.clone().requires_grad_()).sum(), leaf)[0],
    "grad": lambda f, x: grad(lambda x: f(x).sum())(x),
    "jvp": lambda f, x: jvp(f, (x,), (torch.ones_like(x),))[1],
    "vmap(grad)": lambda f, x: vmap(grad(lambda x: f(x).sum()))(x.expand(3, -1))[0],
}


@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("name", HOLDING)
def test_functions_of_linearize_whose_first_call_is_here(name, first):
    """They compute constants in their first call, which belong to no transform of it, and do not count as changed by it."""
    push = torch.func.linearize(torch.sin, X)[1]
    op = HOLDING[name](push)
    torch.testing.assert_close(FIRST[first](op, X), X.cos(), rtol=1e-6, atol=0)
    torch.testing.assert_close(FIRST["backward"](op, X), X.cos(), rtol=1e-6, atol=0)
    torch.testing.assert_close(op(X), X.cos() * X)


def jacrev_at_x(f):
    return jacrev(f)(X)


def hessian_at_x(f):
    return hessian(f)(X)


@pytest.mark.parametrize("name", [*OPERATORS, "linear_map"])
def test_constants_that_change_before_the_derivative(name):
    """Functions and rules that are called in a derivative must find what they close over as it was."""
    scale, x = torch.tensor(2.0, dtype=torch.float64), X.clone().requires_grad_()
    if name == "linear_map":
        op = fullgrad.linear_map(lambda x: scale * x, lambda y: scale * y)
    else:
        op = OPERATORS[name](lambda x: scale * x * x, lambda x: 2 * scale * x)
    y = op(x)
    scale.mul_(3)
    with pytest.raises(RuntimeError, match=rf"{name}.* changed in place after the call.*Pass a clone"):
        y.sum().backward()


@pytest.mark.parametrize("is_argument", [False, True])
def test_modules_that_change_their_mode_before_the_derivative(is_argument):
    """A module is in training or evaluation mode, in the call and in its derivative."""
    module, x = nn.Sequential(nn.Dropout(0.5)), X.clone().requires_grad_()
    y = fullgrad.checkpoint(lambda m, x: m(x), module, x) if is_argument else fullgrad.checkpoint(module, x)
    module.eval()
    with pytest.raises(RuntimeError, match=r"was in training mode when .* called it, and is in evaluation mode"):
        y.sum().backward()
    module.train()
    y.sum().backward()


@pytest.mark.parametrize("is_leaf", [False, True])
@pytest.mark.parametrize("method", ["map", "sequential"])
def test_a_tensor_that_the_reference_alone_uses(method, is_leaf):
    """It gets its derivative, though the kernel never saw it."""

    def of(p):
        w = p if is_leaf else p * 1
        return fullgrad.with_reference(lambda x: 3.0 * x, lambda x: w * x, vmap_method=method)(X).sum()

    p = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(torch.autograd.grad(of(p), p)[0], X.sum())
    torch.testing.assert_close(grad(of)(p.detach()), X.sum())
    torch.testing.assert_close(jvp(of, (p.detach(),), (p.detach(),))[1], 3 * X.sum())


@pytest.mark.parametrize("name", CALLED_AGAIN)
def test_buffers_have_no_tangents(name):
    """Buffers of modules that are arguments: torch's batch norm takes no zeros as their tangents."""
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Tanh()).double().eval()
    x = torch.stack([X, -X, 2 * X])

    def plain(m, x):
        return m(x).square().sum()

    ops = {
        "checkpoint": lambda m, x: fullgrad.checkpoint(plain, m, x),
        "with_reference": fullgrad.with_reference(plain, plain),
        "root": lambda m, x: implicit.root(lambda z, m, x: z - plain(m, x))(lambda init, m, x: plain(m, x))(None, m, x),
    }
    for f in (lambda op: jvp(lambda x: op(module, x), (x,), (x,))[1], lambda op: hessian(lambda x: op(module, x))(x)):
        torch.testing.assert_close(f(ops[name]), f(plain))


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_a_batch_of_cotangents_of_a_function_that_draws(randomness):
    """A derivative draws what the function drew, for all cotangents, or is refused."""
    x, cotangents = X.float(), torch.eye(2)
    y, pull = vjp(lambda x: fullgrad.checkpoint(lambda x: x * torch.rand_like(x), x), x)
    if randomness == "different":
        with pytest.raises(NotImplementedError, match='Pass randomness="same" to that vmap'):
            vmap(pull, randomness=randomness)(cotangents)
    else:
        torch.testing.assert_close(vmap(pull, randomness=randomness)(cotangents)[0], torch.diag(y / x))


def gradient_after_jvp(f, x):
    x = x.requires_grad_()
    return torch.autograd.grad(jvp(f, (x,), (torch.ones_like(x),))[0].square().sum(), x)[0]


def gradient_in_dual_level(f, x):
    with fwAD.dual_level():
        y = f(fwAD.make_dual(x.requires_grad_(), torch.ones_like(x)))
        return torch.stack([torch.autograd.grad(y.square().sum(), x, retain_graph=True)[0], fwAD.unpack_dual(y).tangent])


def batch_of_gradients(f, x):
    y = f(x.requires_grad_())
    return vmap(lambda g: torch.autograd.grad(y, x, g)[0])(torch.stack([torch.ones_like(y), y]))


# Derivatives that are taken elsewhere than the call is made, or whose vmap refuses random numbers.
ELSEWHERE = {
    "gradient after jvp": gradient_after_jvp,
    "forward mode and gradient": gradient_in_dual_level,
    "pullback": lambda f, x: vjp(f, x)[1](x)[0],
    "pullback of jvp": lambda f, x: vjp(lambda x: jvp(f, (x,), (x,))[1], x)[1](x)[0],
    "jacrev": lambda f, x: jacrev(f)(x),
    "jacrev twice": lambda f, x: jacrev(jacrev(lambda x: f(x).square().sum()))(x),
    "batch of gradients": batch_of_gradients,
}
DRAWING = {
    "contiguous": lambda: lambda x: nn.functional.dropout(x.sin()),
    "not contiguous": lambda: lambda x: nn.functional.dropout(x.sin().mT).mT * x,
    "alpha": lambda: lambda x: nn.functional.alpha_dropout(x.mT, 0.3, True).mT * x,
    "transformer": lambda: of_transformer(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3, batch_first=True).double()),
}


def test_a_jacobian_of_samples_that_draw_is_refused():
    """torch's own attention with dropout ends the process in such a vmap inside of another."""
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(jacrev(lambda x: fullgrad.checkpoint(nn.functional.dropout, x)), randomness="different")(torch.ones(2, 3))


def of_transformer(layer):
    layer.norm1 = layer.norm2 = nn.Identity()  # torch's layer norm has wrong derivatives of tangents
    return lambda x: layer(torch.stack([x, 2 * x])).sum(0)


@pytest.mark.parametrize("what", DRAWING)
@pytest.mark.parametrize("where", ELSEWHERE)
def test_draws_where_a_derivative_is_taken_elsewhere(where, what):
    """torch's dropout draws in another order inside of transforms: the function draws again as in its call, or it is refused."""
    torch.manual_seed(0)
    f, x = DRAWING[what](), torch.randn(3, 4, dtype=torch.float64)

    def found(f):
        torch.manual_seed(1)
        return ELSEWHERE[where](f, x.clone())

    expected = found(f)
    if where == "batch of gradients" and what != "contiguous":
        with pytest.raises(NotImplementedError, match="draws other ones inside of a transform than outside"):
            found(lambda x: fullgrad.checkpoint(f, x))
    else:
        torch.testing.assert_close(found(lambda x: fullgrad.checkpoint(f, x)), expected)


def _by_residuals(f):
    """The rule has the value, which another draw would not give."""
    op = fullgrad.custom_vjp(f)
    op.defvjp(lambda x: (lambda y: (y, (y, x)))(f(x)), lambda r, g: (2 * g * r[0] / r[1],))
    return op


OF_OWN_GENERATOR = {
    "checkpoint": lambda f: lambda x: fullgrad.checkpoint(f, x),
    "with_reference": lambda f: fullgrad.with_reference(f, f, vmap_method="map"),
    "custom_jvp": lambda f: _by_tangents(f),
    "custom_vjp": _by_residuals,
    "custom_gradient": lambda f: fullgrad.custom_gradient(lambda x: (lambda y: (y, lambda g: 2 * g * y / x))(f(x))),
}


@pytest.mark.parametrize("generator", [torch.default_generator, torch.Generator()], ids=["default", "own"])
@pytest.mark.parametrize("name", OF_OWN_GENERATOR)
def test_a_generator_draws_the_same_again(name, generator):
    """In the first and the second derivative, which leave its state as it is after the call."""
    generator.manual_seed(0)
    op = OF_OWN_GENERATOR[name](lambda x: x * x * torch.rand(x.shape, generator=generator, dtype=x.dtype))
    x = X.clone().requires_grad_()
    y, state = op(x), generator.get_state()
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(first, 2 * y / x)
    torch.testing.assert_close(second, 2 * y / x**2)
    assert torch.equal(generator.get_state(), state)


def _by_tangents(f):
    op = fullgrad.custom_jvp(f)
    op.defjvp(lambda p, t: jvp(f, p, t))
    return op


@pytest.mark.parametrize("op", [_by_tangents, lambda f: fullgrad.with_reference(f, f, vmap_method="map")])
def test_draws_that_differ_in_a_batch_of_gradients_are_refused(op):
    """A rule and a reference draw what the function drew, or raise."""
    torch.manual_seed(0)
    x = torch.randn(3, 4, dtype=torch.float64)
    torch.manual_seed(1)
    drawn = torch.rand(3, 4).double()
    torch.manual_seed(1)
    torch.testing.assert_close(batch_of_gradients(op(lambda x: x * torch.rand(3, 4)), x)[0], drawn)
    with pytest.raises(NotImplementedError, match="draws other ones inside of a transform than outside"):
        batch_of_gradients(op(DRAWING["not contiguous"]()), x)


@pytest.mark.parametrize(
    "of", [*OPERATORS.values(), lambda f, slope: fullgrad.with_reference(f, f, backward=lambda x, y, g: (g * slope(*x),))]
)
def test_nothing_is_kept_alive(of):
    """An operator and the tensors of its calls are freed with the graph."""
    op, x = of(torch.sin, torch.cos), X.clone().requires_grad_()
    y = op(x)
    y.sum().backward(retain_graph=True)
    refs = [weakref.ref(v) for v in (op, x, y)]
    del op, x, y
    gc.collect()
    assert not any(ref() is not None for ref in refs)


@pytest.mark.parametrize("name", OPERATORS)
def test_rules_compute_in_the_autocast_of_the_call(name):
    """A backward outside of autocast is the one of a call inside."""
    w = torch.linspace(0.1, 1.7, 64).reshape(8, 8)
    op = OPERATORS[name](lambda x: (x @ w).float(), lambda x: (torch.ones_like(x) @ w.mT).float())
    x = torch.linspace(-1, 1, 64).reshape(8, 8).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = op(x)
        inside = torch.autograd.grad(y.sum(), x, retain_graph=True)[0]
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], inside, rtol=0, atol=0)


class Hidden:
    """An object that torch's structures do not know, with a tensor."""

    def __init__(self, tensor):
        self.tensor = tensor


@pytest.mark.parametrize("name", [name for name in OPERATORS if name != "straight_through"])
def test_results_that_hide_tensors_are_refused(name):
    """Their derivatives would be lost."""
    op = OPERATORS[name](lambda x: Hidden(x * 2), lambda x: x)
    with pytest.raises(TypeError, match=r"Hidden|must be tensors"):
        op(X.clone().requires_grad_())


def test_arguments_that_hide_tensors_are_refused_by_straight_through():
    """It takes tensors and constants."""
    op = fullgrad.straight_through(lambda x: x.tensor.round(), lambda x: x.tensor)
    with pytest.raises(TypeError, match=r"straight_through: .* takes no argument like a value of type Hidden"):
        op(Hidden(X))
    of_module = fullgrad.straight_through(lambda net, x: net(x).round(), lambda net, x: net(x))
    with pytest.raises(TypeError, match=r"straight_through: .* takes no argument like a value of type Linear, which holds"):
        of_module(torch.nn.Linear(len(X), 2, dtype=X.dtype), X)


def test_replaced_gradients_of_complex_tensors():
    """`grad_replace` replaces the gradient of complex values, as of real ones."""
    f = fullgrad.grad_replace(lambda z, forward: torch.round(z.real) + 0j if forward else z)
    z = torch.tensor([0.3 + 0.4j, 1.6 - 2j], requires_grad=True)
    y = f(z)
    torch.testing.assert_close(y.detach(), torch.tensor([0 + 0j, 2 + 0j]))
    g = torch.tensor([1 + 2j, 3 - 1j])
    torch.testing.assert_close(torch.autograd.grad(y, z, g)[0], g)


def test_a_rule_must_not_change_its_residuals():
    """A residual may be the user's tensor."""
    op = fullgrad.custom_vjp(torch.sin)
    op.defvjp(lambda x: (torch.sin(x), x), lambda x, g: (g * x.cos_(),))
    with pytest.raises(RuntimeError, match="custom_vjp: sin: `bwd` changes an argument in place"):
        op(X.clone().requires_grad_() * 1).sum().backward()


class Settings:
    """Numbers on a class."""

    scale = 1.0


class Neuron(nn.Module):
    """Numbers on a module, and one that no function reads."""

    def __init__(self):
        super().__init__()
        self.scale, self.calls = 1.0, 0

    def soft(self, x):
        return self.scale * torch.sin(x)

    def slope(self, x):
        return self.scaled() * torch.cos(x)

    def scaled(self):
        return self.scale


def follows_classes():
    """Whether compiled plain code follows a number on a class; of torch 2.11 it does not."""
    compiled = torch.compile(lambda x: Settings.scale * x, backend="aot_eager")
    found = []
    for Settings.scale in (1.0, 3.0):
        found.append(compiled(torch.ones(())).item())
    return found == [1.0, 3.0]


def of_adopt(f, slope):
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return f(x)

        @staticmethod
        def backward(ctx, g):
            return g * slope(*ctx.saved_tensors)

    return fullgrad.adopt(Own)


def of_solution(kind, condition):
    def make(f, slope):
        solve = kind(condition(f), vmap_method="map")(lambda init, x: f(x))
        return lambda x: solve(torch.zeros_like(x), x)

    return make


# Those that have the value of a function, its slope, or both.
VALUE, SLOPE = (lambda x, scale: scale * x.sin(), lambda x, scale: scale * x.cos())
FOLLOWING = {
    **{name: (make, VALUE, SLOPE) for name, make in OPERATORS.items()},
    "root": (of_solution(implicit.root, lambda f: lambda z, x: z - f(x)), VALUE, SLOPE),
    "fixed_point": (of_solution(implicit.fixed_point, lambda f: lambda z, x: 0 * z + f(x)), VALUE, SLOPE),
    "argmin": (of_solution(implicit.argmin, lambda f: lambda z, x: ((z - f(x)) ** 2).sum()), VALUE, SLOPE),
    "adopt": (of_adopt, VALUE, SLOPE),
    "finite_difference": (lambda f, slope: lambda x: fullgrad.blackbox.finite_difference(f, x, 1e-5), VALUE, SLOPE),
    "linear_map": (
        lambda f, slope: fullgrad.linear_map(*[lambda x: f(torch.ones_like(x)) * x] * 2),
        lambda x, scale: scale * math.sin(1) * x,
        lambda x, scale: scale * math.sin(1) * torch.ones_like(x),
    ),
    "map_grad": (
        lambda f, slope: lambda x: fullgrad.map_grad(x, f),
        lambda x, scale: x,
        lambda x, scale: scale * torch.ones_like(x).sin(),
    ),
    "from_slope": (lambda f, slope: fullgrad.spikes.from_slope(slope), lambda x, scale: (x >= 0).to(x.dtype), SLOPE),
}


@pytest.mark.sampled(of=2)
@pytest.mark.long(but=1)
@pytest.mark.parametrize("where", ["a class", "a module", "a variable"])
@pytest.mark.parametrize("name", FOLLOWING)
def test_compiled_code_follows_numbers_that_functions_read(name, where):
    """It is compiled again where they change, and is not where others do."""
    if (name, where) == ("checkpoint", "a class") and not follows_classes():  # it is traced as plain code
        pytest.skip("compiled plain code does not follow a number on a class")
    neuron, scale = Neuron(), 1.0
    functions = {
        "a class": (lambda x: Settings.scale * torch.sin(x), lambda x: Settings.scale * torch.cos(x)),
        "a module": (neuron.soft, neuron.slope),
        "a variable": (lambda x: scale * torch.sin(x), lambda x: scale * torch.cos(x)),
    }
    f, slope = functions[where]
    make, value, derivative = FOLLOWING[name]
    torch.compiler.reset()
    compiled = torch.compile(make(f, slope), backend="aot_eager", fullgraph=True)
    for scale in (1.0, 3.0, 0.5):
        Settings.scale = neuron.scale = scale
        for _ in range(2):
            neuron.calls += 1
            x = X.clone().requires_grad_()
            with torch.compiler.set_stance("default" if neuron.calls % 2 else "fail_on_recompile"):
                y = compiled(x)
            torch.testing.assert_close(y.detach(), value(X, scale))
            torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], derivative(X, scale))


@pytest.mark.parametrize("name", ["custom_vjp", "custom_jvp"])
def test_compiled_code_follows_the_mode_of_a_module(name):
    """A module among the arguments is in training or evaluation mode."""
    dropout, x = nn.Dropout(0.5), torch.ones(64)
    if name == "custom_vjp":
        op = fullgrad.custom_vjp(lambda m, x: m(x) * 1)
        op.defvjp(lambda m, x: (m(x) * 1, None), lambda r, g: (None, g))
    else:
        op = fullgrad.custom_jvp(lambda m, x: m(x) * 1)
        op.defjvp(lambda primals, tangents: (op(*primals), tangents[1]))
    torch.compiler.reset()
    compiled = torch.compile(lambda x: op(dropout, x), backend="aot_eager")
    assert (compiled(x) == 0).any()
    dropout.eval()
    assert (compiled(x) == 1).all()


def reversed_dict(d):
    return dict(reversed(d.items()))


def test_structures_are_matched_by_key():
    """The order of the entries of a dict does not count."""
    d = {"a": X, "b": 2 * X}
    by_rule = fullgrad.custom_vjp(lambda d: d["a"] * 2 + d["b"] * 3)
    by_rule.defvjp(lambda d: (by_rule(d), None), lambda r, g: ({"b": g * 3, "a": g * 2},))
    pulled = fullgrad.custom_gradient(lambda d: (d["a"] * 2 + d["b"] * 3, lambda g: {"b": g * 3, "a": g * 2}))
    kernel = fullgrad.with_reference(
        lambda d: d["a"] * 2 + d["b"] * 3,
        lambda d: d["a"] * 2 + d["b"] * 3,
        backward=lambda inputs, outputs, g: ({"b": g * 3, "a": g * 2},),
    )
    for op in (by_rule, pulled, kernel):
        for given in (d, reversed_dict(d)):
            found = grad(lambda d, op=op: op(d).sum())(given)
            torch.testing.assert_close((found["a"], found["b"]), (torch.full_like(X, 2), torch.full_like(X, 3)))
    tangents = fullgrad.custom_jvp(lambda x: {"u": x, "v": 2 * x})
    tangents.defjvp(lambda primals, t: (tangents(*primals), {"v": 2 * t[0], "u": t[0]}))
    replaced = fullgrad.grad_replace(lambda x, forward: {"u": x, "v": 2 * x} if forward else {"v": 2 * x, "u": 1 * x})
    reference = fullgrad.with_reference(lambda x: {"u": x, "v": 2 * x}, lambda x: {"v": 2 * x, "u": 1 * x})
    solve = implicit.root(lambda z, x: {"v": z["v"] - 2 * x, "u": z["u"] - x})(lambda init, x: {"u": x, "v": 2 * x})
    for op in (tangents, replaced, reference, lambda x: solve({"v": x, "u": x}, x)):
        found = jacrev(op)(torch.ones(()))
        assert (found["u"], found["v"]) == (1, 2)


def test_modules_get_gradients_by_name():
    """The dict of a rule may be in any order."""
    norm, x = nn.LayerNorm(3), torch.randn(4, 3)
    op = fullgrad.custom_vjp(lambda m, x: m(x))

    def bwd(residuals, g):
        m, x = residuals
        unit = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + m.eps).sqrt()
        return {"bias": g.sum(0), "weight": (g * unit).sum(0)}, None

    op.defvjp(lambda m, x: (m(x), (m, x)), bwd)
    expected = torch.autograd.grad(norm(x).square().sum(), (norm.weight, norm.bias))
    found = torch.autograd.grad(op(norm, x).square().sum(), (norm.weight, norm.bias))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("owner", ["numpy", "torch"])
def test_code_that_returns_one_buffer_in_each_call(owner):
    """Samples and calls keep their values, as where a kernel writes into memory of its own."""
    array, tensor = numpy.empty(2), torch.empty(2, dtype=torch.float64)

    def twice(x):
        return torch.from_numpy(numpy.multiply(x.numpy(), 2, out=array)) if owner == "numpy" else torch.mul(x, 2, out=tensor)

    op = fullgrad.linear_map(twice, twice, vmap_method="sequential")
    torch.testing.assert_close(jacrev(op)(X), 2 * torch.eye(2, dtype=torch.float64))
    torch.testing.assert_close(vmap(op)(torch.stack([X, 3 * X])), torch.stack([2 * X, 6 * X]))
    if owner == "numpy":
        first, _ = op(X), op(3 * X)
        torch.testing.assert_close(first, 2 * X)


def test_a_rule_of_tangents_in_a_batch_of_gradients():
    """torch's legacy vmap, where the rule calls the function itself."""
    op = OPERATORS["custom_jvp"](torch.sin, torch.cos)
    torch.testing.assert_close(torch.autograd.functional.jacobian(op, X, vectorize=True), torch.diag(X.cos()))


@pytest.mark.parametrize("name", OPERATORS)
def test_backward_inside_saved_tensor_hooks(name):
    """Hooks that move saved tensors, in the first call of an operator."""
    op, x = OPERATORS[name](torch.sin, torch.cos), X.clone().requires_grad_()
    with torch.autograd.graph.save_on_cpu():
        torch.testing.assert_close(torch.autograd.grad(op(x).sum(), x)[0], X.cos())


def test_a_rule_that_looks_linear_at_0_is_found():
    """An affine rule is linear where what it adds is 0, as inputs often are at first."""
    op = fullgrad.custom_vjp(lambda w: w * 1)
    op.defvjp(lambda w: (w * 1, w), lambda w, g: (g + 0.1 * w,))
    with pytest.raises(NotImplementedError, match="its rule is not linear"):
        jvp(op, (torch.zeros(2),), (torch.ones(2),))


def test_rules_under_autocast_may_return_what_it_makes():
    """A gradient of a lower precision is cast to the argument's dtype, as autograd does."""
    w = torch.randn(4, 4)
    op = fullgrad.custom_vjp(lambda x: x @ w)
    op.defvjp(lambda x: (x @ w, None), lambda r, g: (g @ w.mT,))
    x = torch.randn(3, 4, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = op(x)
    assert torch.autograd.grad(y.sum(), x)[0].dtype is torch.float32


def forces(q):
    """The negative gradient of an energy by the argument."""
    return -torch.autograd.grad(q.requires_grad_().cos().sum(), q, create_graph=True)[0]


@pytest.mark.parametrize("name", CALLED_AGAIN)
def test_functions_that_differentiate_by_their_argument(name):
    """Code of models of forces."""
    op, x = OPERATORS[name](forces, None), X.clone().requires_grad_()
    y = op(x)
    torch.testing.assert_close(y.detach(), X.sin())
    slope = torch.autograd.grad(y.sum(), x, create_graph=True)[0]
    torch.testing.assert_close(slope.detach(), X.cos())
    torch.testing.assert_close(torch.autograd.grad(slope.sum(), x)[0], -X.sin())


def test_functions_that_differentiate_by_what_has_no_gradient():
    """The error says what works."""
    x = X.clone().requires_grad_()
    with pytest.raises(RuntimeError, match=r"checkpoint: <lambda> takes a derivative .* Use torch.func.grad or vjp .*, or"):
        fullgrad.checkpoint(lambda x: torch.autograd.grad(x.cos().sum(), x, create_graph=True)[0], x)


def test_modules_without_a_size():
    """A lazy module is called once before."""
    with pytest.raises(RuntimeError, match="A LazyLinear has no size yet for its weight"):
        fullgrad.checkpoint(nn.LazyLinear(2), X.clone().requires_grad_())


def whole_message(error):
    """The messages of an error and of those that led to it: Dynamo raises one of its own."""
    parts = []
    while error is not None:
        parts.append(str(error))
        error = error.__cause__ or error.__context__
    return " ".join(parts)


@pytest.mark.parametrize("name", ["checkpoint", "with_reference"])
def test_results_share_no_memory(name):
    """The value and the derivative agree where a result is changed in place."""
    op = OPERATORS[name](lambda x: (x, x[0], x * 2), None)

    def f(x):
        x = x * 1
        same, first, twice = op(x)
        same.mul_(3)
        return same.sum() + first + twice.sum() + x.sum()

    expected = torch.tensor([7.0, 6.0], dtype=torch.float64)
    x = X.clone().requires_grad_()
    y = f(x)
    torch.testing.assert_close(torch.autograd.grad(y, x)[0], expected)
    torch.testing.assert_close(y.detach(), expected @ X)
    torch.testing.assert_close(jvp(f, (X,), (X,)), (expected @ X, expected @ X))


SCALES = {
    "a parameter": types.SimpleNamespace(of=nn.Parameter(torch.tensor(3.0))),
    "a constant": types.SimpleNamespace(of=torch.tensor(3.0)),
}


@pytest.mark.parametrize("name", ["with_reference", "root"])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("what", SCALES)
def test_compiled_code_follows_what_functions_close_over(name, requires_grad, what):
    """A tensor that functions hold is an input of the graph: a gradient, a change in place or another tensor is not lost."""
    torch.compiler.reset()
    p = SCALES[what].of

    def f(x):
        return p * x

    if name == "root":
        root = implicit.root(lambda z, x: z - f(x), vmap_method="map")(lambda init, x: f(x))
        op = lambda x: root(torch.zeros(()), x)  # noqa: E731
    else:
        op = fullgrad.with_reference(f, f, vmap_method="map")
    x = torch.tensor(0.7, requires_grad=requires_grad)
    compiled = torch.compile(lambda x: op(x) * 2, backend="aot_eager", fullgraph=True)
    for change in ("none", "in place", "another"):
        with torch.no_grad():
            p = p.mul_(2) if change == "in place" else nn.Parameter(torch.tensor(5.0)) if change == "another" else p
        inputs = [t for t in (x, p) if t.requires_grad]
        found, expected = compiled(x), 2 * p * x
        torch.testing.assert_close(found, expected)
        if inputs:
            torch.testing.assert_close(torch.autograd.grad(found, inputs), torch.autograd.grad(expected, inputs))


BROKEN = {
    **{name: FOLLOWING[name][0] for name in ("root", "fixed_point", "finite_difference", "from_slope")},
    "root called once": lambda f, slope: OPERATORS["root"](f, slope),
    "with_reference": lambda f, slope: fullgrad.with_reference(f, f, vmap_method="map"),
    "with_reference of None": lambda f, slope: (
        lambda x: fullgrad.with_reference(lambda x, y: 2 * x if y is not None else f(x), lambda x, y: f(x), vmap_method="map")(
            x, None
        )
    ),
}


@pytest.mark.short
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # at which Dynamo looks
@pytest.mark.parametrize("name", BROKEN)
def test_a_graph_that_breaks_at_an_operator_leaves_it_to_eager_code(name):
    """Dynamo compiles no frames of the operator, and it gets the arguments of the call."""
    c = torch.tensor(3.0, dtype=torch.float64)
    op = BROKEN[name](lambda x: c * x, lambda x: 3 + 0 * x)
    torch.compiler.reset()
    compiled, x = torch.compile(lambda x: op(x) * 2, backend="eager"), X.clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(compiled(x).sum(), x)[0], torch.full_like(X, 6.0))


THREADS = """
import gc, threading
import torch
from fullgrad._engine.random_states import random_states

def work():
    for _ in range(1000):
        found = [torch.ones(3, requires_grad=True) * 2]
        found.append(found)
        del found
        random_states()

gc.set_threshold(5, 1, 1)
threads = [threading.Thread(target=work) for _ in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
"""


@pytest.mark.long
def test_states_of_generators_in_threads_where_garbage_is_collected():
    """``torch.get_rng_state`` in eight threads waits forever: it collects garbage while it holds the generator's mutex."""
    subprocess.run([sys.executable, "-c", THREADS], check=True, timeout=100)


def test_a_linear_map_in_a_loop_has_the_variables_of_its_call():
    """The transpose is called later, when the loop's variable is another."""

    def f(x):
        for w in (2.0, 5.0):
            x = fullgrad.linear_map(lambda v: w * v, lambda g: w * g)(x)  # noqa: B023
        return x

    one = torch.ones(())
    assert (f(one), grad(f)(one), jvp(f, (one,), (one,))[1]) == (10, 10, 10)


@pytest.mark.parametrize("kind", ["custom_jvp", "custom_vjp"])
def test_a_rule_that_is_replaced_is_tried_anew(kind):
    """A verdict about linearity is that of the rule."""
    op = getattr(fullgrad, kind)(torch.square)
    for is_linear in (False, True, False):
        if kind == "custom_jvp":
            op.defjvp(lambda p, t, linear=is_linear: (op(*p), (t[0] if linear else t[0].clamp(-1, 1)) * 2 * p[0]))
        else:
            op.defvjp(lambda x: (op(x), x), lambda x, g, linear=is_linear: ((g if linear else g.clamp(-1, 1)) * 2 * x,))
        transform = grad if kind == "custom_jvp" else lambda f: lambda x: jvp(f, (x,), (torch.ones(2, dtype=x.dtype),))
        if is_linear:
            transform(lambda x: op(x).sum())(X)
        else:
            with pytest.raises(NotImplementedError, match="linear"):
                transform(lambda x: op(x).sum())(X)


@pytest.mark.parametrize("name", ["custom_jvp", "custom_vjp"])
def test_batches_without_samples(name):
    """As plain code has them."""
    op = OPERATORS[name](torch.sin, torch.cos)
    assert vmap(grad(lambda x: op(x).sum()))(torch.zeros(0, 3)).shape == (0, 3)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("is_inference", [False, True])
def test_forward_mode_in_inference_mode(name, is_inference):
    """As outside, of tensors that were made outside and inside; an error where torch loses its own tangents."""
    op = OPERATORS[name](torch.sin, torch.cos)
    with torch.inference_mode():
        x = X.clone() if is_inference else X
        if transforms_leave_inference_mode():
            torch.testing.assert_close(jvp(op, (x,), (torch.ones_like(x),)), (X.sin(), X.cos()))
        else:
            with pytest.raises(NotImplementedError, match="transform that is opened in inference mode"):
                jvp(op, (x,), (torch.ones_like(x),))


@pytest.mark.short
@pytest.mark.parametrize("name", OPERATORS)
def test_backward_in_inference_mode(name):
    """As outside, for a graph that was made outside."""
    x = X.clone().requires_grad_()
    y = OPERATORS[name](torch.sin, torch.cos)(x).sum()
    with torch.inference_mode():
        torch.testing.assert_close(torch.autograd.grad(y, x), (X.cos(),))


@pytest.mark.parametrize("name", ["custom_vjp", "custom_jvp", "checkpoint", "root"])
def test_batched_gradients_with_a_graph(name):
    """torch's legacy vmap cannot detach a tensor."""
    x = X.clone().requires_grad_()
    op = OPERATORS[name](torch.sin, torch.cos)
    (found,) = torch.autograd.grad(op(x), x, torch.eye(2, dtype=x.dtype), is_grads_batched=True, create_graph=True)
    torch.testing.assert_close(found, torch.diag(X.cos()))


LOOP = """
import torch, fullgrad
from torch import nn
torch.manual_seed(0)
x0 = torch.randn(3, requires_grad=True)
x, layers = x0, [nn.Linear(3, 3).requires_grad_(False) for _ in range(3)]
for layer in layers:
    x = WRITTEN
x.sum().backward()
"""


@pytest.mark.parametrize(
    "written",
    [
        "fullgrad.checkpoint(lambda h: torch.tanh(layer(h)), x)",
        "fullgrad.checkpoint(lambda h: torch.tanh(layer.weight @ h), x)",
        "(lambda act: fullgrad.checkpoint(lambda h: h + act(h), x))(lambda h: torch.tanh(layer(h)))",
        "fullgrad.with_reference(lambda h: torch.tanh(layer(h)), lambda h: torch.tanh(layer(h)))(x)",
    ],
)
def test_a_loop_of_a_script_is_refused(written):
    """A global variable is another layer when the derivative is taken."""
    with pytest.raises(RuntimeError, match="was not used in the call"):
        exec(LOOP.replace("WRITTEN", written), {})


def test_what_a_call_keeps_may_be_used_again():
    """A cache that the first call fills, and a constant that each call makes."""
    kept = {}

    class Cached(nn.Module):
        def forward(self, x):
            if "scale" not in kept:
                kept["scale"] = self.scale = torch.full((2,), 3.0, dtype=x.dtype)
            return self.scale * torch.sin(x) + torch.ones_like(x)

    module, x = Cached(), X.clone().requires_grad_()
    for op in (lambda x: fullgrad.checkpoint(module, x), fullgrad.with_reference(module, module)):
        torch.testing.assert_close(torch.autograd.grad(op(x).sum(), x)[0], 3 * X.cos())


IN_COMPILED_CODE = None


@pytest.mark.parametrize("captures", ["nothing", "a module", "a variable", "a global"])
@pytest.mark.parametrize("name", OPERATORS)
def test_compiled_functions_inside_run_compiled(name, captures, monkeypatch):
    """A function that the user compiled is called compiled, for its value and, if it is called again, for its derivative."""
    runs, scale = [], nn.Linear(2, 2, bias=False).double().requires_grad_(name in CALLED_AGAIN)

    def backend(graph, inputs):
        def run(*args):
            runs.append(len(args))
            return graph(*args)

        return run

    w = torch.full((2,), 1.5, dtype=torch.float64, requires_grad=name in CALLED_AGAIN)
    monkeypatch.setitem(globals(), "IN_COMPILED_CODE", w)
    of = {"a module": scale, "a variable": lambda x: w * x, "a global": lambda x: IN_COMPILED_CODE * x}.get(captures, lambda x: x)
    f = torch.compile(lambda x: torch.sin(of(x)), backend=backend, fullgraph=True)
    op = OPERATORS[name](f, lambda x: torch.ones_like(x))
    x = X.clone().requires_grad_()
    y = op(x)
    assert runs
    torch.testing.assert_close(y.detach(), torch.sin(of(X)).detach())
    if name in CALLED_AGAIN:
        del runs[:]
        inputs = [x, *{"a module": scale.parameters(), "a variable": [w], "a global": [w]}.get(captures, ())]
        found = torch.autograd.grad(y.sum(), inputs)
        assert runs
        torch.testing.assert_close(found, torch.autograd.grad(torch.sin(of(x)).sum(), inputs))


def cubed(x, w=None):
    """A cube by torch's operators, one of which has a number as an argument, and with a weight that it captures."""
    return x.pow(3).reshape(x.size(0), -1).reshape(x.shape) * (1 if w is None else w)


def slope_of_cube(inputs, outputs, grads):
    return (3 * inputs[0].pow(2) * grads.reshape(grads.size(0), -1).reshape(grads.shape),)


BELOW = {
    "value": lambda compiled, how: fullgrad.with_reference(compiled(cubed), cubed, vmap_method=how),
    "backward": lambda compiled, how: fullgrad.with_reference(cubed, cubed, backward=compiled(slope_of_cube), vmap_method=how),
    "backward, in a function": lambda compiled, how: fullgrad.with_reference(
        cubed, cubed, backward=(lambda f: lambda x, y, g: f(x, y, g))(compiled(slope_of_cube)), vmap_method=how
    ),
    "jvp": lambda compiled, how: fullgrad.with_reference(
        cubed, cubed, jvp=compiled(lambda x, y, t: slope_of_cube(x, y, t[0])[0]), vmap_method=how
    ),
}


@pytest.mark.long(but=1)
@pytest.mark.parametrize("how", ["sequential", "broadcast"])
@pytest.mark.parametrize("name", BELOW)
def test_compiled_functions_below_transforms_run_compiled(name, how):
    """A kernel that the user compiled is called compiled under a transform, too: Dynamo meets nothing of ours in it."""
    runs = []

    def backend(graph, inputs):
        runs.extend(n.target for n in graph.graph.nodes if n.op.startswith("call"))
        return graph

    torch._dynamo.reset()
    op, x = BELOW[name](lambda f: torch.compile(f, backend=backend, fullgraph=True), how), X.repeat(2, 1)
    for transform in (torch.func.hessian, torch.func.jacfwd, lambda f: torch.func.vmap(torch.func.grad(f))):
        given = x[None] if transform not in (torch.func.hessian, torch.func.jacfwd) else x
        torch.testing.assert_close(transform(lambda x: op(x).sum())(given), transform(lambda x: cubed(x).sum())(given))
    assert "pow" in runs


@pytest.mark.long(but=1)
@pytest.mark.parametrize("how", ["sequential", "broadcast"])
def test_compiled_functions_below_transforms_follow_what_they_capture(how):
    """A kernel that the user compiled has the derivative by a tensor of a transform that it captures; a rule refuses one."""
    ws, compiled = torch.stack([X, X + 1]), functools.partial(torch.compile, backend="eager")

    def captures(w):
        f = functools.partial(cubed, w=w)
        return fullgrad.with_reference(compiled(lambda x: f(x)), f, vmap_method=how)(X).sum()

    def backward_captures(w):
        rule = compiled(lambda x, y, g: (slope_of_cube(x, y, g)[0] * w,))
        op = fullgrad.with_reference(cubed, cubed, backward=rule, vmap_method=how)
        return torch.func.grad(lambda x: op(x).sum())(X).sum()

    for transform in (torch.func.vmap, torch.func.jacrev, lambda f: torch.func.vmap(torch.func.hessian(f))):
        given = ws if transform is not torch.func.jacrev else ws[0]
        torch.testing.assert_close(transform(captures)(given), transform(lambda w: cubed(X, w).sum())(given))
    with pytest.raises(RuntimeError, match="`backward` captures a tensor that requires a gradient or belongs to a transform"):
        torch.func.grad(backward_captures)(ws[0])


@pytest.mark.long(but=1)
@pytest.mark.parametrize("name", ["checkpoint", "with_reference"])
def test_second_derivatives_of_compiled_functions(name):
    """A derivative of a derivative calls the code that was compiled, as compiled code has none: torch raises, or gives 0."""
    compiled = torch.compile(cubed, backend="aot_eager", fullgraph=True)
    op = {
        "checkpoint": functools.partial(fullgrad.checkpoint, compiled),
        "with_reference": fullgrad.with_reference(cubed, compiled),
    }
    x = X.clone().requires_grad_()
    for scale in (1, 2):
        y = op[name](x * scale).sum()
        for order in (3 * x**2, 6 * x, 6 + 0 * x):
            (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            torch.testing.assert_close(y, scale**3 * order)


# --- Zeros without memory ---------------------------------------------------------------------------------------------------


def halved(*tensors):
    """A kernel that reads the memory of its last argument, in which forward mode of torch has zeros at the address 0."""
    if any(torch._C._functorch.is_functorch_wrapped_tensor(t) for t in tensors):  # torch code, in a rule below a transform
        return tensors[-1] * 0.5
    for t in tensors:
        assert t.data_ptr(), "a kernel gets a null pointer"
    t = tensors[-1].contiguous()
    read = ctypes.string_at(t.data_ptr(), t.nbytes)
    return torch.frombuffer(bytearray(read), dtype=t.dtype).reshape(t.shape) * 0.5


class Halved(fullgrad.Function):
    """A Function of users, whose rules call it."""

    @staticmethod
    def forward(x):
        return halved(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vjp(ctx, g):
        return halved_by_function(g)

    @staticmethod
    def jvp(ctx, t):
        return halved_by_function(t)

    @staticmethod
    def vmap(info, in_dims, x):
        return Halved.apply(x), in_dims[0]


def halved_by_function(x):
    """Its rule reads memory, too, where there is some."""
    halved(x)
    return Halved.apply(x)


class TorchHalved(torch.autograd.Function):
    """A Function of torch."""

    @staticmethod
    def forward(x):
        return halved(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return halved(g)


LINEAR = {
    **{f"linear_map {how}": fullgrad.linear_map(halved, halved, vmap_method=how) for how in ("sequential", "broadcast")},
    **{f"custom_jvp {how}": fullgrad.custom_jvp(halved, vmap_method=how) for how in ("map", "sequential", "broadcast")},
    **{f"custom_vjp {how}": fullgrad.custom_vjp(halved, vmap_method=how) for how in ("map", "sequential")},
    "custom_gradient": fullgrad.custom_gradient(lambda x: (halved(x), halved)),
    "with_reference": fullgrad.with_reference(halved, halved, backward=lambda inputs, outputs, g: (halved(g),)),
    "straight_through": fullgrad.straight_through(halved, halved),
    "root": lambda x: implicit.root(lambda z, x: 2 * z - x, vmap_method="sequential")(lambda init, x: halved(x))(None, x),
    "Function": Halved.apply,
    "adopt": fullgrad.adopt(TorchHalved, strict=True),
    "map_grad": lambda x: fullgrad.map_grad(x, halved),
    "from_slope": fullgrad.spikes.from_slope(lambda u: halved(u) * 0 + 0.5),
    "finite_difference": lambda x: fullgrad.blackbox.finite_difference(halved, x, 1.0),
}
for name, op in LINEAR.items():
    if name.startswith("custom_jvp"):
        op.defjvp(lambda primals, tangents, op=op: (op(*primals), halved(*tangents)))
    elif name.startswith("custom_vjp"):
        op.defvjp(lambda x: (halved(x), x), lambda x, g: (halved(x, g),))


@pytest.mark.parametrize("name", LINEAR)
def test_zeros_of_forward_mode_have_memory(name):
    """Functions and rules of users read their arguments, tangents and cotangents, also where torch made zeros without memory."""
    op, zero = LINEAR[name], torch._efficientzerotensor(2, dtype=X.dtype)
    assert not zero.data_ptr()
    x = X.clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(op(x), x, zero)[0], torch.zeros_like(X))
    torch.testing.assert_close(op(zero.detach().requires_grad_()).detach(), op(torch.zeros_like(X)))
    with fwAD.dual_level():
        assert not fwAD.unpack_dual(op(fwAD.make_dual(X, zero))).tangent.any()
    curvature = jacfwd(jacfwd(lambda x: op(x * x)))
    torch.testing.assert_close(curvature(X).sum((1, 2)), torch.full_like(X, 2.0 if name == "map_grad" else 1.0))
    torch.testing.assert_close(jacfwd(curvature)(X), torch.zeros(2, 2, 2, 2, dtype=X.dtype))


class Sine(torch.autograd.Function):
    """A Function of another package."""

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()


IN_INFERENCE_MODE = {
    **{name: of(torch.sin, torch.cos) for name, of in OPERATORS.items()},
    "adopt": fullgrad.adopt(Sine),
    "adopt with a reference": fullgrad.adopt(Sine, reference=torch.sin),
    "solve": lambda x: implicit.solve(lambda w: w * (2 + x), x.sin()),
    "solve by gmres": lambda x: implicit.solve(lambda w: w * (2 + x), x.sin(), linear_solve="gmres"),
    "newton": lambda x: implicit.root(lambda z, x: z**3 + z - x)(lambda z, x: implicit.newton(lambda z: z**3 + z - x, z))(x, x),
    "finite_difference": lambda x: fullgrad.blackbox.finite_difference(torch.sin, x),
    "soft.rank": lambda x: fullgrad.soft.rank(x, -1, softness=0.3, method="neuralsort", standardize=False),
}
IN_TRANSFORMS = {
    "grad": lambda f: grad(lambda x: f(x).sin().sum()),
    "hessian": lambda f: hessian(lambda x: f(x).sin().sum()),
    "per sample": lambda f: lambda x: vmap(grad(lambda x: f(x).sin().sum()))(torch.stack([x, 2 * x])),
    "jvp": lambda f: lambda x: jvp(f, (x,), (x,))[1],
}


@pytest.mark.skipif(STAYS_IN_INFERENCE_MODE, reason="torch loses the derivatives of transforms that are opened in inference mode")
@pytest.mark.parametrize("transform", IN_TRANSFORMS)
@pytest.mark.parametrize("name", IN_INFERENCE_MODE)
def test_transforms_in_inference_mode(name, transform):
    """They have their derivatives there, of tensors made before and of those made inside."""
    of = IN_TRANSFORMS[transform](IN_INFERENCE_MODE[name])
    expected = of(X)
    with torch.inference_mode():
        torch.testing.assert_close(of(X), expected)
        torch.testing.assert_close(of(X * 1), expected)
