"""Operators made of functions in compiled code: a number that changes from call to call is the number of that call."""

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

import fullgrad
from fullgrad.implicit import argmin, fixed_point, root, root_jvp, root_vjp


def value(x: Tensor, n: float) -> Tensor:
    return torch.tanh(x * n) / 2


def slope(x: Tensor, n: float) -> Tensor:
    return n * (1 - (2 * value(x, n)) ** 2) / 2


def newton(z: Tensor, x: Tensor, n: float) -> Tensor:
    for _ in range(20):
        z = z - (z**3 + n * z - x) / (3 * z**2 + n)
    return z


def iterated(z: Tensor, x: Tensor, n: float) -> Tensor:
    for _ in range(60):
        z = torch.cos(x * z) / (1 + n)
    return z


def scaled(z: Tensor, x: Tensor, n: float) -> Tensor:
    return n * x / (1 + n)


class Old(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, n):
        ctx.save_for_backward(x)
        ctx.n = n
        return value(x, n)

    @staticmethod
    def backward(ctx, g):
        return g * slope(*ctx.saved_tensors, ctx.n), None


def vjp_by(method):
    f = fullgrad.custom_vjp(value, vmap_method=method)
    f.defvjp(lambda x, n: (f(x, n), (x, n)), lambda r, g: (g * slope(*r), None))
    return f


def jvp_by(method):
    f = fullgrad.custom_jvp(value, vmap_method=method)
    f.defjvp(lambda p, t: (f(*p), t[0] * slope(*p)))
    return f


def solver(decorator, function):
    solve = decorator(function)
    return lambda x, n: solve(torch.zeros_like(x), x, n)


def equation(z, x, n):
    return z**3 + n * z - x


def backward(inputs, y, g):
    return g * slope(*inputs), None


def with_pair():
    f = fullgrad.with_reference(
        lambda x, n: (value(x, n), n),
        lambda x, n: (value(x, n), n),
        backward=lambda i, y, g: (g[0] * slope(i[0], y[1]), None),
    )
    return lambda x, n: torch.mul(*f(x, n))


METHODS = ("map", "sequential", "broadcast")
MAKERS = {
    **{f"custom_vjp {m}": lambda m=m: vjp_by(m) for m in METHODS},
    **{f"custom_jvp {m}": lambda m=m: jvp_by(m) for m in METHODS},
    **{f"with_reference {m}": lambda m=m: fullgrad.with_reference(value, value, vmap_method=m) for m in METHODS},
    "with_reference backward": lambda: fullgrad.with_reference(value, value, backward=backward),
    "with_reference jvp": lambda: fullgrad.with_reference(value, value, jvp=lambda i, y, t: t[0] * slope(*i)),
    "with_reference of a pair": with_pair,
    "root": lambda: solver(root(equation), newton),
    "root broadcast": lambda: solver(root(equation, vmap_method="broadcast"), newton),
    "root gmres": lambda: solver(root(equation, linear_solve="gmres"), newton),
    "fixed_point": lambda: solver(fixed_point(lambda z, x, n: torch.cos(x * z) / (1 + n)), iterated),
    "fixed_point neumann": lambda: solver(
        fixed_point(lambda z, x, n: torch.cos(x * z) / (1 + n), derivative=("neumann", 3)), iterated
    ),
    "argmin": lambda: solver(argmin(lambda z, x, n: (n * (z - x) ** 2 + z**2).sum(-1).sum()), scaled),
    "root_vjp": lambda: lambda x, n: root_vjp(equation, x, (x, n), torch.ones_like(x))[0],
    "root_jvp": lambda: lambda x, n: root_jvp(equation, x, (x, n), (torch.ones_like(x), None)),
    "adopt": lambda: fullgrad.adopt(Old),
    "adopt reference": lambda: fullgrad.adopt(Old, reference=value),
    "straight_through": lambda: fullgrad.straight_through(lambda x, n: torch.round(x * n) / n, value),
    "checkpoint": lambda: lambda x, n: fullgrad.checkpoint(value, x, n),
    "custom_gradient": lambda: fullgrad.custom_gradient(lambda x, n: (value(x, n), lambda g: (g * slope(x, n), None))),
}
FAST = ("custom_vjp sequential", "with_reference sequential", "root", "straight_through")
NUMBERS = {"int": (3, 7, 5, 9), "float": (1.5, 2.5, 3.5, 2.25), "size": (3, 5, 4, 2)}
TRANSFORMS = {
    "value": lambda op: op,
    "vmap of grad": lambda op: lambda x, n: vmap(grad(lambda x: op(x, n).sum()))(x),
    "jvp": lambda op: lambda x, n: torch.func.jvp(lambda x: op(x, n), (x,), (torch.ones_like(x),))[1],
}


def follows(f, kind, dynamic=None, backend="aot_eager"):
    """Whether compiled calls with changing numbers have the values and gradients of eager calls."""
    torch.compiler.reset()
    compiled = torch.compile(lambda x, n: f(x, x.shape[0] if kind == "size" else n), backend=backend, dynamic=dynamic)
    for n in NUMBERS[kind]:
        found = []
        for g in (compiled, f):
            x = torch.linspace(0.1, 0.9, 3 * int(n) if kind == "size" else 6, dtype=torch.float64).reshape(-1, 3).requires_grad_()
            y = g(x, n)
            found.append((y, torch.autograd.grad(y.square().sum(), x)[0]) if y.requires_grad else (y,))
        for actual, expected in zip(*found, strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


# Each maker's value follows numbers of every kind, and its transforms one of each.
EACH = [
    (maker, name, kind)
    for i, maker in enumerate([*FAST, *[m for m in MAKERS if m not in FAST]])
    for j, name in enumerate(TRANSFORMS)
    for k, kind in enumerate(NUMBERS)
    if name == "value" or ((i + j + k) % 3 == 0 and maker not in ("root_vjp", "root_jvp"))
]
SHORT = [case for case in EACH if case[0] in FAST and (case[1] != "value" or case[2] == "float")]


@pytest.mark.long(but=len(SHORT))
@pytest.mark.sampled(of=2)
@pytest.mark.parametrize(("maker", "transform", "kind"), [*SHORT, *[case for case in EACH if case not in SHORT]])
def test_a_changing_number_in_compiled_code(maker, transform, kind):
    follows(TRANSFORMS[transform](MAKERS[maker]()), kind)


@pytest.mark.long(but=2)
@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("maker", FAST)
def test_a_changing_number_with_dynamic_shapes_and_without(maker, dynamic):
    for kind in ("int", "float", "size"):
        follows(MAKERS[maker](), kind, dynamic)


@pytest.mark.parametrize("maker", FAST)
def test_a_changing_number_in_a_keyword_a_dict_and_a_condition(maker):
    if maker in ("custom_vjp sequential", "straight_through"):  # of positional arguments, and of no structures
        f = MAKERS[maker]()
        calls = [lambda x, n: f(x, 2 * n + 1)]
    elif maker == "root":
        solve = root(lambda z, x, d, n: z**3 + d["n"] * z - x * n)(lambda z, x, d, n: newton(z, x * n, d["n"]))
        calls = [lambda x, n: solve(torch.zeros_like(x), x, {"n": n}, n=n + 1)]
    else:
        of_both = lambda x, d, *, n, b=True: value(x, d["n"]) * n if b else x * n  # noqa: E731
        f = fullgrad.with_reference(of_both, of_both)
        calls = [lambda x, n: f(x, {"n": n}, n=n + 1), lambda x, n: f(x, {"n": n}, n=n, b=n > 4)]
    for call in calls:
        for kind in ("int", "float", "size"):
            follows(call, kind)


def test_numbers_of_one_graph():
    """A graph serves all numbers: a number is an input of the node."""
    graphs = []

    def counting(graph, inputs):
        graphs.append(graph)
        return graph

    f = MAKERS["with_reference sequential"]()
    for numbers in (NUMBERS["int"], NUMBERS["float"]):
        torch.compiler.reset()
        graphs.clear()
        compiled = torch.compile(lambda x, n: f(x, n), backend=counting, fullgraph=True)
        for n in numbers:
            compiled(torch.ones(2), n)
        assert len(graphs) == 2  # the first number is a constant to torch


@pytest.mark.long
@pytest.mark.parametrize("maker", FAST)
def test_a_changing_number_in_inductor(maker):
    for kind in ("int", "float", "size"):
        follows(MAKERS[maker](), kind, backend="inductor")
        follows(TRANSFORMS["vmap of grad"](MAKERS[maker]()), kind, backend="inductor")


def test_factors_of_a_matrix_are_those_of_the_number():
    """One solution and other numbers: the factors that a call keeps are of another matrix."""
    x = torch.linspace(0.1, 0.9, 6, dtype=torch.float64)
    g = torch.ones_like(x)
    torch.compiler.reset()
    compiled = torch.compile(lambda x, n: root_vjp(equation, x, (x, n), g)[0], backend="aot_eager")
    for n in (3, 7, 5):
        torch.testing.assert_close(compiled(x, n), 1 / (3 * x**2 + n))


def test_a_symbol_that_is_no_input_of_its_node_raises():
    from fullgrad._engine.symbols import concrete, running

    symbols = []

    def keep(x, n):
        symbols.append(n)
        return x * n

    f = fullgrad.with_reference(keep, keep, vmap_method="map")
    compiled = torch.compile(lambda x, n: f(x, n), backend="aot_eager")
    for n in (3, 7):
        compiled(torch.ones(1), n)
    symbol = next(s for s in symbols if isinstance(s, torch.SymInt))
    assert concrete(symbol) is symbol
    with running([symbol], [5]):
        assert concrete(symbol) == 5
    with running([], []), pytest.raises(RuntimeError, match="A number that changes"):
        concrete(symbol)
