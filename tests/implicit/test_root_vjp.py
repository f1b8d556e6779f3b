"""`root_vjp` and `root_jvp`: the derivatives of `root`, as functions."""

import pytest
import torch
from torch import nn
from torch.func import grad, hessian, jacrev, jvp, vjp, vmap

import fullgrad
from fullgrad import implicit

F64 = torch.float64
X, Y = torch.tensor([0.3, -0.7, 1.1], dtype=F64), torch.tensor([1.5, 0.4, -0.2], dtype=F64)


def f(z, x, y):
    first, second = z["first"], z["second"]
    return {"first": first**3 + first + second - x, "second": second * (1 + y * y) - x.sum()}


def solver(x, y):
    second = x.sum() / (1 + y * y)
    first = torch.zeros_like(x)
    for _ in range(60):
        first = first - (first**3 + first + second - x) / (3 * first**2 + 1)
    return {"first": first, "second": second}


@pytest.mark.short
@pytest.mark.parametrize("linear_solve", [None, "gmres", "normal_cg"])
def test_they_are_the_derivatives_of_the_solution(linear_solve):
    """In structures, by vjp and jvp of the iterations."""
    z, back = vjp(solver, X, Y)
    g = {"first": Y, "second": X}
    found = implicit.root_vjp(f, z, (X, Y), g, linear_solve=linear_solve)
    torch.testing.assert_close(found, back(g), rtol=1e-6, atol=1e-8)
    found = implicit.root_jvp(f, z, (X, Y), (Y, X), linear_solve=linear_solve)
    torch.testing.assert_close(found, jvp(solver, (X, Y), (Y, X))[1], rtol=1e-6, atol=1e-8)


def test_none_stands_for_zeros():
    """A cotangent or a tangent that is left out is 0."""
    z, back = vjp(solver, X, Y)
    torch.testing.assert_close(
        implicit.root_vjp(f, z, (X, Y), {"first": Y, "second": None}), back({"first": Y, "second": torch.zeros_like(X)})
    )
    torch.testing.assert_close(implicit.root_jvp(f, z, (X, Y), (None, X)), jvp(lambda y: solver(X, y), (Y,), (X,))[1])
    torch.testing.assert_close(implicit.root_jvp(f, z, (X, Y), (None, None)), {k: torch.zeros_like(X) for k in z})


def test_rules_of_ones_own_have_every_order():
    """A solver with rules made of them has the Hessian of the iterations, also in a batch."""

    def value(x):
        return solver(x, Y)["second"] * solver(x, Y)["first"]

    own = fullgrad.custom_vjp(solver)
    own.defvjp(lambda x, y: (solver(x, y), (x, y)), lambda kept, g: implicit.root_vjp(f, own(*kept), kept, g))
    by_rule = lambda x: own(x, Y)["second"] * own(x, Y)["first"]  # noqa: E731
    for run in (
        lambda f: grad(lambda x: f(x).sum())(X),
        lambda f: hessian(lambda x: f(x).sum())(X),
        lambda f: vmap(jacrev(f))(torch.stack([X, Y])),
    ):
        torch.testing.assert_close(run(by_rule), run(value), rtol=1e-8, atol=1e-8)


def test_modules_numbers_and_captured_tensors():
    """A module gets a dict by name, a number 0, an integer tensor None; what the equation captures gets derivatives, too."""
    layer, scale = nn.Linear(3, 3, dtype=F64), torch.tensor(1.5, dtype=F64, requires_grad=True)
    x, k = X.clone().requires_grad_(), torch.tensor([2])

    def equation(z, layer, x, power, k):
        return z**power + z - scale * layer(x) * k

    z = torch.full((3,), 0.4, dtype=F64)
    grads = implicit.root_vjp(equation, z, (layer, x, 3, k), Y)
    assert [*grads[0]] == ["weight", "bias"]
    assert grads[2] == 0
    assert grads[3] is None
    w = Y / (3 * z**2 + 1)
    torch.testing.assert_close(grads[0]["weight"], 3.0 * w.outer(X))
    torch.testing.assert_close(torch.autograd.grad(grads[1].sum(), scale)[0], grads[1].sum().detach() / scale.detach())


VJP, JVP = implicit.root_vjp, implicit.root_jvp
ERRORS = {
    "function": (lambda: VJP(3, X, (X,), X), TypeError, "implicit.root_vjp: `f` must be a function, got"),
    "args": (lambda: VJP(torch.sub, X, X, X), TypeError, "implicit.root_vjp: `args` must be a tuple or list"),
    "shape": (lambda: VJP(torch.sub, X, (X,), X[:2]), ValueError, "a cotangent must have the shape of its argument"),
    "structure": (lambda: VJP(f, solver(X, Y), (X, Y), X), TypeError, "`cotangent` must have the structure"),
    "tangents": (lambda: JVP(torch.sub, X, (X,), X), TypeError, "`tangents` must be a tuple with one for each of the 1"),
    "tangent": (lambda: JVP(torch.sub, X, (X,), (X.float(),)), TypeError, "a tangent must have the dtype"),
    "solver": (lambda: JVP(torch.sub, X, (X,), (X,), linear_solve="lu"), ValueError, "`linear_solve` must be one of"),
    "singular": (lambda: VJP(lambda z, x: 0 * z - x, X, (X,), X), RuntimeError, "implicit.root_vjp: .* is singular"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    """Bad input raises an error that names the function and what was found."""
    call, kind, message = ERRORS[name]
    with pytest.raises(kind, match=message):
        call()


def test_compiled_as_one_node():
    """In one graph, also differentiated there, with structures and constants."""

    def found(z, x, g):
        equation = lambda z, x, k: {"z": z["z"] ** 3 + z["z"] - k * x}  # noqa: E731
        by_x = implicit.root_vjp(equation, {"z": z}, (x, 1), {"z": g})[0]
        along = implicit.root_jvp(equation, {"z": z}, (x, 1), (g, None))["z"]
        return by_x, along

    def whole(z, x, g):
        return *found(z, x, g), grad(lambda z: found(z, x, g)[0].sum())(z)

    expected = whole(X, Y, Y)
    torch.testing.assert_close(expected[:2], (Y / (3 * X**2 + 1),) * 2)
    torch.testing.assert_close(torch.compile(whole, backend="aot_eager", fullgraph=True)(X, Y, Y), expected)
