"""Operators whose code writes in place, where `torch.func.linearize` computes constants once, and in other graphs."""

import pytest
import torch
from torch.func import grad, jacrev, jvp, linearize, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

import fullgrad
from fullgrad import implicit

F64 = torch.float64
X, T, U = (torch.tensor(v, dtype=F64) for v in ([0.7, 0.2], [1.0, -0.5], [0.3, 2.0]))


def with_item(x):
    """Another item in new memory."""
    z = torch.ones(2, dtype=F64)
    z[0] = x[1] * x[0]
    return z.sum() * x.sin()


def of_views(x):
    """Views of a temporary, and the temporary itself."""
    z = x.sin()
    z[:1].mul_(x[1])
    z[1:].mul_(3.0)
    return x * z.add_(z.clone())


def into_others(x):
    """Memory that is given, and lists of tensors."""
    z = torch.mul(x.detach().sin(), 3.0, out=torch.empty(2, dtype=F64))
    torch._foreach_mul_([z], 2.0)
    return x * z


# Each with the same function in code that writes nothing.
CODES = {
    "jacrev": (lambda x: jacrev(torch.sin)(x).sum(0), torch.cos),
    "an item": (with_item, lambda x: (1 + x[0] * x[1]) * x.sin()),
    "views": (of_views, lambda x: x * x.sin() * torch.stack([2 * x[1], torch.full_like(x[1], 6.0)])),
    "out and lists": (into_others, lambda x: 6 * x * x.detach().sin()),
}


def of_rule(f):
    op = fullgrad.custom_vjp(torch.sin)
    op.defvjp(lambda x: (torch.sin(x), x), lambda x, g: (g * f(x),))
    return op


def of_custom_jvp(f):
    op = fullgrad.custom_jvp(torch.sin)
    op.defjvp(lambda p, t: (op(*p), f(*p) * t[0]))
    return op


def of_value(f):
    op = fullgrad.custom_vjp(f)
    op.defvjp(lambda x: (f(x), x), lambda x, g: (vjp(f, x)[1](g)[0],))
    return op


def of_class(f):
    class Op(fullgrad.Function):
        @staticmethod
        def forward(x):
            return f(x)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def vjp(ctx, g):
            return g * f(*ctx.saved_tensors)

        @staticmethod
        def jvp(ctx, t):
            return t * f(*ctx.saved_tensors)

        @staticmethod
        def vmap(info, in_dims, x):
            raise NotImplementedError

    return Op.apply


OPERATORS = {
    "custom_vjp": of_value,
    "rule": of_rule,
    "custom_jvp": of_custom_jvp,
    "custom_gradient": lambda f: fullgrad.custom_gradient(lambda x: (f(x), lambda g: g * f(x))),
    "with_reference": lambda f: fullgrad.with_reference(f, f),
    "checkpoint": lambda f: lambda x: fullgrad.checkpoint(f, x),
    "straight_through": lambda f: fullgrad.straight_through(torch.sin, f),
    "class": of_class,
    "linear_map": lambda f: fullgrad.linear_map(lambda y: f(U) * y, lambda y: f(U) * y),
    "root": lambda f: lambda x: implicit.root(lambda z, x: z - f(x), vmap_method="map")(lambda i, x: f(x))(None, x),
    "sequential": lambda f: lambda x: implicit.root(lambda z, x: z - f(x))(lambda i, x: f(x))(None, x),
    "fixed_point": lambda f: lambda x: implicit.fixed_point(lambda z, x: (z + f(x)) / 2)(lambda i, x: f(x))(None, x),
    "argmin": lambda f: lambda x: implicit.argmin(lambda z, x: (z - f(x)).square().sum())(lambda i, x: f(x))(None, x),
    "solve": lambda f: lambda x: implicit.solve(lambda w: (3 + f(x)) * w, x),
}


def along(op, t):
    return jvp(op, (X,), (t,))[1]


def of_gradient(op, t):
    return jvp(grad(lambda x: (op(x) * U).sum()), (X,), (t,))[1]


# The map of tangents that a tracer returns, and the same in eager code.
WAYS = {
    "linearize": (lambda op: linearize(op, X)[1], along),
    "linearize(grad)": (lambda op: linearize(grad(lambda x: (op(x) * U).sum()), X)[1], of_gradient),
    "linearize(vmap)": (lambda op: lambda t: linearize(vmap(op), X.repeat(2, 1))[1](t.repeat(2, 1))[1], along),
    "make_fx(jvp)": (lambda op: make_fx(lambda t: along(op, t))(T), along),
    "make_fx(vjp)": (lambda op: make_fx(lambda t: vjp(op, X)[1](t)[0])(T), lambda op, t: vjp(op, X)[1](t)[0]),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.sampled(of=20)
def test_code_that_writes_in_place_in_graphs(name, code, way):
    """Each call of a graph has the derivative of code that writes nothing, whatever the calls before."""
    if way == "linearize(vmap)" and code in ("an item", "out and lists"):
        pytest.skip("torch has no rule for it, as in eager code")
    if way == "linearize(vmap)" and name == "class":
        pytest.skip("it has no rule for batches")
    (given, plain), (trace, eager) = CODES[code], WAYS[way]
    push, op = trace(OPERATORS[name](given)), OPERATORS[name](plain)
    for t in (T, U, T):
        assert_close(push(t), eager(op, t))


@pytest.mark.parametrize("method", ["map", "sequential"])
@pytest.mark.parametrize("solver", ["newton", "anderson", "jacrev"])
def test_solvers_in_linearize(solver, method):
    """The slope is that at the solution, and not where the solver begins. By "map" all iterations are recorded."""
    f = lambda z, m: z - 0.3 * torch.sin(z) - m  # noqa: E731

    def by_jacrev(g, z):
        for _ in range(6):
            z = z - g(z) / jacrev(g)(z)
        return z

    solvers = {
        "newton": lambda g, z: implicit.newton(g, z, maxiter=6),
        "anderson": lambda g, z: implicit.anderson(lambda z: z - g(z), z, maxiter=20),
        "jacrev": by_jacrev,
    }
    solve = implicit.root(f, vmap_method=method)(lambda init, m: solvers[solver](lambda z: f(z, m), init))
    op = lambda m: solve(torch.zeros_like(m), m)  # noqa: E731
    y, push = linearize(op, X[0])
    assert_close(push(T[0]), 1 / (1 - 0.3 * torch.cos(y)))


def _equation(z, x):
    return z**3 - x


PUSHED = {
    "root": lambda x: implicit.root(_equation)(lambda z, x: x ** (1 / 3))(torch.zeros(2, dtype=F64), x),
    "fixed_point": lambda x: implicit.fixed_point(lambda z, x: (z + x / z) / 2)(lambda z, x: x.sqrt())(x, x),
    "solve": lambda x: implicit.solve(lambda v: v * (2 + x.sum()), x.sin()),
    "linear_map": fullgrad.linear_map(lambda x: 2 * x, lambda g: 2 * g, vmap_method="sequential"),
    "broadcast": fullgrad.linear_map(lambda x: 2 * x, lambda g: 2 * g, vmap_method="broadcast"),
}


@pytest.mark.parametrize("name", PUSHED)
def test_batches_of_what_linearize_returns(name):
    """Code that torch cannot see is a node of the graph, which `vmap` batches: nested, along any dimension, compiled, of none."""
    f = PUSHED[name]
    _, push = linearize(f, X)
    directions = torch.stack([T, U, T - U])
    expected = torch.stack([jvp(f, (X,), (t,))[1] for t in directions])
    assert_close(vmap(push)(directions), expected)
    assert_close(vmap(push, 1, 1)(directions.T), expected.T)
    assert_close(vmap(vmap(push))(torch.stack([directions, 2 * directions])), torch.stack([expected, 2 * expected]))
    assert_close(make_fx(vmap(push))(directions)(directions), expected)
    assert vmap(push)(directions[:0]).shape == (0, 2)
    torch.compiler.reset()
    assert_close(torch.compile(lambda d: vmap(push)(d), backend="aot_eager")(directions), expected)


@pytest.mark.parametrize("name", PUSHED)
def test_a_gradient_of_what_linearize_returns_is_not_lost(name):
    _, push = linearize(PUSHED[name], X)
    with pytest.raises(RuntimeError):
        grad(lambda t: push(t).sum())(T)
    with pytest.raises(RuntimeError):
        push(T.clone().requires_grad_()).sum().backward()
