"""`laplacian`: the trace of the Hessian, its parts, and all that differentiates it."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jvp, vmap
from torch.testing import assert_close

import fullgrad
from fullgrad import forward, implicit, quantizers, soft
from fullgrad.forward import laplacian, taylor
from tests.forward.golden import LAPLACIANS
from tests.forward.memory import held

X = torch.tensor([0.4, -1.1, 0.7, 1.3], dtype=torch.float64)
BATCH = torch.stack([X, X.sin(), 2 * X])


def trace(f):
    """The trace of the Hessian by torch."""

    def of(x, *constants):
        h = hessian(f)(x, *constants)
        return h.reshape(*h.shape[: h.ndim - 2 * x.ndim], x.numel(), x.numel()).diagonal(dim1=-2, dim2=-1).sum(-1)

    return of


def network():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, 6), nn.Softplus(), nn.Linear(6, 1)).double()
    return net, {k: p.detach() for k, p in net.named_parameters()}


NET, P = network()


def u(x, p=P):
    return functional_call(NET, p, (x,)).squeeze(-1)


FIRST_USE = """
import torch
from fullgrad.forward import laplacian
from torch.utils.flop_counter import FlopCounterMode

x = torch.tensor([0.3, -1.2])
with FlopCounterMode(display=False) as counter:
    value = laplacian(lambda x: (x @ torch.ones(2, 3)).square().sum())(x)
torch.testing.assert_close(value, torch.tensor(12.0))
print(counter.get_total_flops())
"""


@pytest.mark.long
def test_the_first_use_of_a_process_may_be_in_a_mode():
    """One that counts operations, and records no graph."""
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", FIRST_USE], capture_output=True, text=True)
    assert int(run.stdout) >= 2 * (2 * 2 * 3), run.stderr[-1500:]


def assert_is_by_torch(f, v, order):
    """The Laplacian is the trace of torch's Hessian, and the derivatives along v are those of nested jvp."""
    assert_close(laplacian(f)(X), trace(f)(X), rtol=1e-10, atol=1e-10)
    g = lambda t: f(X + t * v)  # noqa: E731
    for found in taylor(f, X, v, order):
        assert_close(found, g(X.new_zeros(())), rtol=1e-9, atol=1e-9)
        g = lambda t, g=g: jvp(g, (t,), (torch.ones_like(t),))[1]  # noqa: E731


def first_in_place(x):
    y = x.clone()
    y[0] = x[1] * 2
    return (y.mul_(x).add_(1.0) ** 3).sum()


# What a straight line meets first: its second derivative is 0, and is not computed where that is known.
FIRST = {
    "linear": lambda x: F.linear(x, X.outer(X), X),
    "linear and a kink": lambda x: F.relu(F.linear(x, X.outer(X), X)),
    "a sum": lambda x: ((x + 1) - X + 2 * x).sum(),
    "a view": lambda x: (x.reshape(2, 2).T @ torch.stack([x[:2], x[2:]])).sin().sum(),
    "chunks": lambda x: sum(c.prod() * k for k, c in enumerate(x.chunk(2), 1)),
    "a quotient": lambda x: (x / X).exp().sum() + (1 / (x + 3)).sum(),
    "padded": lambda x: F.pad(x, (1, 2), value=0.5).cos().prod(),
    "a convolution": lambda x: F.conv1d(x[None], X[None, None, :2], X[:1]).square().sum(),
    "a rule": lambda x: x.softmax(0)[0],
    "no rule": lambda x: x.cumprod(0).sum(),
    "an operator": lambda x: (soft.relu(x) * x).sum(),
    "in place": first_in_place,
    "a condition": lambda x: torch.where(x > 0, x, 2 * x).square().sum(),
    "attention": lambda x: F.scaled_dot_product_attention(x.view(1, 2, 2), x.view(1, 2, 2).sin(), x.view(1, 2, 2)).sum(),
}


@pytest.mark.parametrize("name", FIRST)
def test_what_a_straight_line_meets_first(name):
    """Laplacian and derivatives of order 4 are those of torch, and a result that is 0 has a gradient of zeros."""
    f = FIRST[name]
    assert_is_by_torch(f, X.flip(0).cos(), 4)
    weight = X.clone().requires_grad_()
    torch.autograd.grad(laplacian(lambda x: f(x * weight))(X).sum(), weight)


# Functions that return their argument or a view of it.
ALIASES = {
    **{name: getattr(torch, name) for name in ("atleast_1d", "atleast_2d", "resolve_conj", "conj_physical", "cartesian_prod")},
    **{name: getattr(Tensor, name) for name in ("view_as", "type_as", "expand_as", "reshape_as")},
    "adjoint": lambda y: y.view(1, 4).adjoint(),
    "hsplit": lambda y: torch.hsplit(y, 2)[0],
    "diagonal": lambda y: torch.linalg.diagonal(y.view(2, 2)),
    "einsum": lambda y: torch.einsum("ij->ji", y.view(1, 4)),
    "sum_to_size": lambda y: y.sum_to_size(4),
    "as_strided": lambda y: y.as_strided((2,), (2,)),
    "alias": torch.ops.aten.alias,
    "real": lambda y: y.real,
    "dropout": lambda y: F.dropout(y, 0.5, False),
    "no dropout": lambda y: F.dropout(y, 0.0),
    "alpha_dropout": lambda y: F.alpha_dropout(y, 0.5, False),
    "slices": lambda y: y[1:][None, ::2],
}


@pytest.mark.parametrize("read", ["the tensor", "the alias"])
@pytest.mark.parametrize("name", ALIASES)
@pytest.mark.parametrize("first", [lambda x: 2 * x, lambda x: x * x + x], ids=["a line", "a curve"])
def test_code_may_write_into_an_alias(name, read, first):
    """All parts of the tensor are written to."""

    def f(x):
        y = first(x)
        z = ALIASES[name](*[y] * (2 if name.endswith("_as") else 1))
        z.tanh_()
        return (y if read == "the tensor" else z).square().sum()

    assert_is_by_torch(f, X.cos(), 3)


@pytest.mark.parametrize(
    ("f", "x", "wanted"),
    [
        (lambda x: (X @ x).exp(), X, lambda x: (X @ X) * (X @ x).exp()),
        (lambda x: 1 / x.norm(), X[:3], lambda x: x.sum() * 0),
        (lambda x: (-(x @ x) / 2).exp(), X, lambda x: (x @ x - 4) * (-(x @ x) / 2).exp()),
        (lambda x: x.sin(), X, lambda x: -x.sin()),
        (laplacian(lambda x: (x @ x) ** 2), X, lambda x: x.new_tensor(8.0 * 4 * 6)),
    ],
)
@pytest.mark.short
def test_closed_forms(f, x, wanted):
    torch.testing.assert_close(laplacian(f)(x), wanted(x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", LAPLACIANS)
def test_value_gradient_and_laplacian_are_those_of_folx(name):
    golden = json.loads((Path(__file__).parent / "golden.json").read_text())
    x, w, *wanted = (torch.tensor(v, dtype=torch.float64) for v in (golden["x"], golden["w"], *golden["laplacians"][name]))
    f = eval(f"lambda x: {LAPLACIANS[name]}", {**vars(torch), "w": w})
    torch.testing.assert_close(list(laplacian(f, parts=True)(x)), wanted, rtol=1e-10, atol=1e-10)


def test_local_energies_of_the_oscillator_and_of_hydrogen_are_known():
    def energy(log_psi, potential):
        _, gradient, second = laplacian(log_psi, parts=True)(x)
        return -0.5 * (second + gradient @ gradient) + potential

    x = X[:3]
    torch.testing.assert_close(energy(lambda x: -(x @ x) / 2, x @ x / 2), torch.tensor(1.5, dtype=torch.float64))
    torch.testing.assert_close(energy(lambda x: -x.norm(), -1 / x.norm()), torch.tensor(-0.5, dtype=torch.float64))


@pytest.mark.parametrize("chunk_size", [None, 1, 3])
def test_the_parts_are_value_gradient_and_laplacian(chunk_size):
    f = lambda x: torch.stack([u(x), x.sin().prod()])  # noqa: E731
    value, gradient, second = laplacian(f, parts=True, chunk_size=chunk_size)(X)
    torch.testing.assert_close(value, f(X))
    torch.testing.assert_close(gradient, torch.func.jacrev(f)(X))
    with fullgrad.completing():
        torch.testing.assert_close(second, trace(f)(X), rtol=1e-10, atol=1e-10)


def test_a_tree_of_any_shapes():
    f = lambda t, c: (t["a"].sin().sum() * t["b"] ** 2).sum() * c  # noqa: E731
    t = {"a": X.reshape(2, 2), "b": X[:3]}
    value, gradient, second = laplacian(f, parts=True)(t, 2.0)
    a, b = t["a"], t["b"]
    torch.testing.assert_close(second, 2 * (-a.sin().sum() * (b**2).sum() + 6 * a.sin().sum()))
    torch.testing.assert_close((value, gradient), (f(t, 2.0), grad(f)(t, 2.0)))


OF = {
    "round": lambda x: fullgrad.round(x * 3) @ x.sin(),
    "ranks": lambda x: soft.rank(x) @ fullgrad.round(x * 3),
    "lsq": lambda x: quantizers.lsq(x, x.abs().mean(), -4, 3) @ x,
    "a gradient inside": lambda x: grad(u)(x) @ x,
    "determinant": lambda x: torch.linalg.slogdet(torch.outer(x, x) + torch.eye(4, dtype=x.dtype))[1],
}


@pytest.mark.parametrize("name", OF)
@pytest.mark.short
def test_the_laplacian_is_the_trace_of_the_hessian(name):
    with fullgrad.completing():
        wanted = trace(OF[name])(X)
    torch.testing.assert_close(laplacian(OF[name])(X), wanted, rtol=1e-10, atol=1e-10)


def loss(lap):
    return lambda p, x: lap(lambda x: u(x, p))(x).square()


TRANSFORMS = {
    "grad": lambda lap: grad(lap(u))(X),
    "hessian": lambda lap: hessian(lap(u))(X),
    "jvp": lambda lap: jvp(lap(u), (X,), (X.sin(),)),
    "vmap": lambda lap: vmap(lap(u))(BATCH),
    "vmap of grad": lambda lap: vmap(grad(lap(u)))(BATCH),
    "gradients of parameters": lambda lap: grad(loss(lap))(P, X),
    "per-sample gradients": lambda lap: vmap(grad(loss(lap)), (None, 0))(P, BATCH),
    "an ensemble": lambda lap: vmap(lambda p: lap(lambda x: u(x, p))(X))({k: torch.stack([p, 2 * p]) for k, p in P.items()}),
    "a captured value": lambda lap: grad(lambda a: lap(lambda x: (a * x).sin().sum())(X))(X),
    "the biharmonic operator": lambda lap: lap(lap(u))(X),
    "a Taylor series of it": lambda lap: taylor(lap(u), X, X.sin(), 1),
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.short(of=2)
def test_what_is_outside_differentiates_and_batches_it(name):
    with fullgrad.completing():
        wanted = TRANSFORMS[name](trace)
    torch.testing.assert_close(TRANSFORMS[name](laplacian), wanted, rtol=1e-9, atol=1e-9)


def written(x):
    y = x.clone()
    y += x
    y *= x.exp()
    y[0] = x[1] * x[2]
    y[1:3].mul_(x[:2])
    z = y.sin_().cosh()
    z.add_(1)
    return (y * z).sum()


@pytest.mark.parametrize("name", ["grad", "vmap", "vmap of grad"])
def test_code_in_place_is_differentiated_and_batched(name):
    transform = {"grad": lambda f: grad(f)(X), "vmap": lambda f: vmap(f)(BATCH), "vmap of grad": lambda f: vmap(grad(f))(BATCH)}
    torch.testing.assert_close(transform[name](laplacian(written)), transform[name](trace(written)), rtol=1e-9, atol=1e-9)


def test_a_backward_reaches_the_parameters_of_a_module():
    parameters = [p for k, p in NET.named_parameters() if k != "5.bias"]
    own = lambda x: NET(x).squeeze(-1)  # noqa: E731
    found = torch.autograd.grad(vmap(laplacian(own))(BATCH).square().sum(), parameters)
    wanted = grad(lambda p: sum(loss(laplacian)(p, x) for x in BATCH))(P)
    torch.testing.assert_close(found, tuple([g for k, g in wanted.items() if k != "5.bias"]))


LAP = laplacian(lambda x, p: u(x, p))


@pytest.mark.parametrize(
    "f",
    [
        lambda p: vmap(LAP, (0, None))(BATCH, p),
        grad(lambda p: LAP(X, p).square()),
        lambda p: vmap(lambda x: grad(lambda p: LAP(x, p).square())(p))(BATCH),
    ],
)
@pytest.mark.long(but=1)
def test_made_outside_it_is_one_node_of_compiled_code(f):
    torch.testing.assert_close(torch.compile(f, backend="aot_eager", fullgraph=True)(P), f(P))


@pytest.mark.long(but=1)
@pytest.mark.parametrize("act", [F.gelu, F.softplus, F.elu, torch.tanh])
def test_compiled_tangents_of_it_are_those_of_eager_code(act):
    """The curves of some functions need jvps inside of the node, which a compiled jvp around it may not hide."""
    lap, w = laplacian(lambda x, w: act(w @ x).sum()), torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(3, 2)
    batch = w[:, :2].cos()
    values = lambda w: vmap(lap, (0, None))(batch, w)  # noqa: E731
    for f in (lambda w: jvp(values, (w,), (w,))[1], lambda w: jvp(grad(lambda w: values(w).square().sum()), (w,), (w,))[1]):
        torch.testing.assert_close(torch.compile(f, backend="aot_eager", fullgraph=True)(w), f(w))
        jvp(torch.sin, (w,), (w,))  # no level is left open


@pytest.mark.long
def test_made_in_compiled_code_it_is_right():
    f = lambda x: laplacian(u)(x) * 2  # noqa: E731
    torch.testing.assert_close(torch.compile(f, backend="aot_eager")(X), f(X))


def test_a_second_derivative_is_held_once():
    """Of n directions the graph keeps n first derivatives and one second one, where nested jvp keeps n of both."""
    net = nn.Sequential(nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
    x = torch.randn(32)

    def nested(f):
        along = lambda x, v: jvp(lambda x: jvp(f, (x,), (v,))[1], (x,), (v,))[1]  # noqa: E731
        return lambda x: vmap(along, (None, 0))(x, torch.eye(32)).sum()

    f = lambda x: net(x).squeeze(-1)  # noqa: E731
    mine, found = held(lambda: laplacian(f)(x))
    theirs, wanted = held(lambda: nested(f)(x))
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
    assert mine < 0.6 * theirs


def test_it_pickles_with_its_function():
    import pickle

    copy = pickle.loads(pickle.dumps(laplacian(torch.sin, chunk_size=2)))
    torch.testing.assert_close(copy(X), -X.sin())
    assert math.isfinite(copy(X).sum())


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: laplacian(3), TypeError),
        (lambda: laplacian(u, chunk_size=0), ValueError),
        (lambda: laplacian(u, chunk_size=True), ValueError),
        (lambda: laplacian(u, parts="all"), TypeError),
        (lambda: laplacian(u)(x=X), TypeError),
        (lambda: laplacian(u)(torch.arange(4)), TypeError),
        (lambda: laplacian(lambda x: (x, x))(X), TypeError),
        (lambda: laplacian(torch.sum)(X[:0]), ValueError),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(call, error):
    with pytest.raises(error, match=r"^laplacian: "):
        call()


def dropped(x):
    return nn.functional.dropout(x, 0.5) ** 2


def dropped_and_written(x):
    """A curve cannot be written into what does not move: all of it is computed again, by nested `jvp`."""
    y = dropped(x)
    z = torch.zeros_like(X)
    z[:] = y
    return z


def dropped_with_indices(x):
    return dropped(x).sort().values


LONG = torch.linspace(0.5, 2, 12, dtype=torch.float64)


def drawn(f, chunk_size=None):
    torch.manual_seed(0)
    return laplacian(f, parts=True, chunk_size=chunk_size)


@pytest.mark.parametrize("f", [dropped, dropped_with_indices, lambda x: dropped(grad(lambda x: (x**2).sum())(x) / 2)])
def test_the_chunks_of_a_call_share_its_random_numbers(f):
    torch.testing.assert_close(drawn(f, 5)(LONG), drawn(f)(LONG))


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_what_runs_again_draws_the_same_numbers(chunk_size):
    wanted = drawn(dropped)(X)
    state = torch.get_rng_state()
    torch.testing.assert_close(drawn(dropped_and_written, chunk_size)(X), wanted)
    assert torch.equal(torch.get_rng_state(), state)
    series = [X.sin(), X.cos()]
    torch.manual_seed(0)
    found = fullgrad.forward.jet(dropped_and_written, (X,), (series,))
    torch.manual_seed(0)
    torch.testing.assert_close(found, fullgrad.forward.jet(dropped, (X,), (series,)))


def test_the_samples_of_a_vmap_draw_differently_and_the_chunks_of_each_the_same():
    batch = torch.stack([LONG] * 3)
    value, gradient, second = vmap(drawn(dropped, 5), randomness="different")(batch)
    scale = (value / batch**2).round()
    torch.testing.assert_close(gradient, torch.diag_embed(2 * scale * batch))
    torch.testing.assert_close(second, 2 * scale)
    assert not torch.equal(value[0], value[1])


def test_a_trace_cannot_draw_again_and_refuses():
    from torch.fx.experimental.proxy_tensor import make_fx

    torch.testing.assert_close(make_fx(laplacian(lambda x: u(x), chunk_size=3))(X)(X), laplacian(u)(X))
    with pytest.raises(NotImplementedError, match="laplacian draws random numbers"):
        make_fx(laplacian(dropped, chunk_size=3))(X)


def of_a_network(operator):
    """A function of a vector, with the Laplacian of the network in it, by an operator made of functions."""
    inner = lambda v, p: vmap(laplacian(u), (0, None))(BATCH, p).mean() * v  # noqa: E731
    if operator == "solve":
        return lambda v, p: implicit.solve(lambda w: 3 * w + inner(w, p), v)
    if operator == "root":
        return lambda v, p: implicit.root(lambda w, v, p: 3 * w + inner(w, p) - v)(lambda init, v, p: v / (3 + inner(1.0, p)))(
            v, v, p
        )
    if operator == "fixed_point":
        f = lambda w, v: v / 3 - inner(w, P) / 3  # noqa: E731
        return lambda v, p: implicit.fixed_point(f)(lambda init, v: implicit.anderson(lambda w: f(w, v), init, tol=1e-12))(v, v)
    if operator == "checkpoint":
        return lambda v, p: fullgrad.checkpoint(inner, v, p)
    made = fullgrad.custom_vjp(inner)
    made.defvjp(lambda v, p: (inner(v, p), (v, p)), lambda r, g: torch.func.vjp(inner, *r)[1](g))
    return made


@pytest.mark.parametrize("operator", ["solve", "root", "fixed_point", "checkpoint", "custom_vjp"])
def test_operators_made_of_functions_hold_laplacians_of_networks(operator):
    """A network that a function holds makes the operator look at each operation: values along curves are of its own call."""
    f, v = of_a_network(operator), torch.tensor([1.0, -0.5], dtype=torch.float64)
    mean = torch.stack([trace(u)(x) for x in BATCH]).mean()
    torch.testing.assert_close(f(v, P), v * mean if operator in ("checkpoint", "custom_vjp") else v / (3 + mean))
    for transform in (torch.func.jacrev, torch.func.jacfwd):
        expected = mean if operator in ("checkpoint", "custom_vjp") else 1 / (3 + mean)
        torch.testing.assert_close(transform(f)(v, P), expected * torch.eye(2, dtype=torch.float64))


def test_a_laplacian_through_an_operator_that_captures_its_point():
    """Values along the curve of a call outside are captured, and have derivatives."""
    b = torch.tensor([1.0, 2.0], dtype=torch.float64)
    held = nn.Linear(2, 2).double()

    def f(x):
        return implicit.solve(lambda w: 3 * w + x.square().sum() * w + 0 * held(w), b).sum()

    x = torch.tensor([0.3, -0.7], dtype=torch.float64)
    torch.testing.assert_close(laplacian(f)(x), trace(lambda x: 3 / (3 + x.square().sum()))(x))


@pytest.mark.parametrize("activation", [torch.nn.GELU, torch.nn.Softplus])
@pytest.mark.parametrize("name", ["laplacian", "hessian_diagonal", "taylor", "jvp"])
def test_in_a_level_of_forward_mode_that_is_open(activation, name):
    """`torch.func.linearize` and `dual_level` open a level that torch's own jvp does not count: the next one would raise."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 4), activation(), torch.nn.Linear(4, 1)).double()
    params = {name: p.detach() for name, p in net.named_parameters()}
    directions = {name: torch.randn_like(p) for name, p in params.items()}
    x = torch.tensor([0.3, -0.7], dtype=torch.float64)

    def found(params):
        f = lambda x: torch.func.functional_call(net, params, (x,))[0]  # noqa: E731
        return {
            "laplacian": lambda: forward.laplacian(f)(x),
            "hessian_diagonal": lambda: forward.hessian_diagonal(f)(x),
            "taylor": lambda: forward.taylor(f, x, torch.ones_like(x), 3)[3],
            "jvp": lambda: forward.jvp(f, (x,), (x,), track_tangent=True)[1],
        }[name]()

    expected = torch.func.jvp(found, (params,), (directions,))[1]
    assert_close(torch.func.linearize(found, params)[1](directions), expected)
    with forward_ad.dual_level():
        duals = {name: forward_ad.make_dual(p, directions[name]) for name, p in params.items()}
        assert_close(forward_ad.unpack_dual(found(duals)).tangent, expected)
    assert torch.equal(torch.func.jvp(torch.sin, (x,), (x,))[1], x.cos() * x)  # no level is left open
