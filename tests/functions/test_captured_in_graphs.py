"""Compiled operators made of functions have the derivatives by tensors that these functions hold, as eager ones have."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, hessian, vmap

import fullgrad
from fullgrad import forward
from fullgrad.implicit import fixed_point


class Box:
    pass


GLOBAL = torch.tensor(1.3, requires_grad=True)
NET = nn.Linear(3, 3)


def made():
    """A function that holds tensors in every way, and these: those with a gradient, and constants."""
    cell, constant, table, box = torch.tensor(1.7, requires_grad=True), torch.tensor(0.7), {}, Box()
    table["w"] = torch.tensor(1.5, requires_grad=True)
    box.w, box.c = torch.tensor(1.2, requires_grad=True), torch.tensor(0.5)

    def soft(x: Tensor) -> Tensor:
        return torch.sin(NET(x) + GLOBAL + cell + table["w"] + box.w + constant + box.c)

    return soft, [GLOBAL, cell, table["w"], box.w, *NET.parameters()], [constant, box.c]


def solver(soft):
    solve = fixed_point(lambda z, x: 0.2 * z + soft(x), vmap_method="map")(lambda z, x: soft(x).detach() / 0.8)
    return lambda x: solve(torch.zeros_like(x), x)


def solver_below(soft):
    """The solver is code, called when the graph runs; the equation alone holds tensors."""
    solve = fixed_point(lambda z, x: 0.2 * z + soft(x), tol=None)(lambda z, x: x)
    return lambda x: solve(torch.zeros_like(x), x)


OPERATORS = {
    "straight_through": lambda soft: fullgrad.straight_through(lambda x: torch.round(soft(x)), soft),
    "with_reference": lambda soft: fullgrad.with_reference(soft, soft, vmap_method="map"),
    "fixed_point": solver,
    "fixed_point below": solver_below,
    "laplacian": lambda soft: forward.laplacian(lambda x: soft(x).sum()),
    "hessian_diagonal": lambda soft: forward.hessian_diagonal(lambda x: soft(x).sum()),
    "jacobian_diagonal": lambda soft: forward.jacobian_diagonal(lambda x: soft(x)),
    "divergence": lambda soft: forward.divergence(lambda x: soft(x)),
}
TRANSFORMS = {
    "value": lambda op: lambda x: op(x.mean(0)),
    "vmap": vmap,
    "vmap of grad": lambda op: vmap(grad(lambda x: op(x).sum())),
}


def agrees(f, held, constants, backend="aot_eager", fullgraph=True):
    torch.compiler.reset()
    loss = lambda x: f(x).square().sum() + NET(x).square().sum()  # noqa: E731
    compiled = torch.compile(loss, backend=backend, fullgraph=fullgraph)
    for _ in range(2):
        x = torch.linspace(-0.4, 0.5, 6).reshape(2, 3).requires_grad_()
        inputs = [x, *held]
        found = torch.autograd.grad(compiled(x), inputs)
        torch.testing.assert_close(found, torch.autograd.grad(loss(x), inputs), rtol=1e-4, atol=1e-5)  # inductor rounds anew
        with torch.no_grad():
            for t in (*held, *constants):
                t.mul_(1.05)


@pytest.mark.long(but=5)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", OPERATORS)
def test_the_derivatives_by_what_functions_hold(name, transform):
    soft, held, constants = made()
    agrees(TRANSFORMS[transform](OPERATORS[name](soft)), held, constants)


@pytest.mark.long
@pytest.mark.parametrize("name", ["laplacian", "straight_through"])
def test_the_derivatives_by_what_functions_hold_in_inductor(name):
    soft, held, constants = made()
    agrees(vmap(OPERATORS[name](soft)), held, constants, "inductor")


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_network_of_a_differential_equation(fullgraph):
    """The example of the page: the residual and the boundary have gradients by the parameters."""
    laplacian = forward.laplacian(lambda x: NET(x).sum())
    agrees(vmap(laplacian), [*NET.parameters()], [], fullgraph=fullgraph)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(2.0))
        self.quantize = fullgrad.straight_through(self.hard, self.soft)

    def hard(self, x):
        return torch.round(x * self.w)

    def soft(self, x):
        return x * self.w


def test_methods_of_a_module():
    layer = Layer()
    quantize = layer.quantize  # Dynamo of torch 2.11 does not find it in the module
    agrees(lambda x: quantize(x), [layer.w], [])


def test_another_parameter_is_that_of_the_next_call():
    torch.compiler.reset()
    layer = Layer()
    quantize = layer.quantize
    compiled = torch.compile(lambda x: quantize(x), backend="aot_eager", fullgraph=True)
    x = torch.tensor([0.4, 1.2])
    for value in (2.0, 3.0):
        layer.w = nn.Parameter(torch.tensor(value))
        torch.testing.assert_close(compiled(x), torch.round(x * value))
        torch.testing.assert_close(torch.autograd.grad(compiled(x).sum(), layer.w)[0], x.sum())


CONSTANT = torch.tensor([0.5, 1.0, 2.0])


class Scaled(nn.Module):
    """The hyperbolic tangent of a multiple that is a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("factor", torch.tensor([0.5, 1.0, 2.0]))

    def forward(self, x):
        return torch.tanh(x * self.factor)


def of_constants():
    """Pairs of functions that hold constants alone: `soft`, `hard` or both, as a global, in a cell and in a module."""
    cell, module = torch.tensor([0.7, 1.1, 1.9]), Scaled()
    return {
        "soft global": (torch.sign, lambda x: torch.tanh(x * CONSTANT), [CONSTANT]),
        "soft cell": (torch.sign, lambda x: torch.tanh(x * cell), [cell]),
        "soft module": (torch.sign, module, [module.factor]),
        "hard": (lambda x: torch.round(x * cell), torch.tanh, [cell]),
        "both": (lambda x: torch.round(x * cell), lambda x: module(x) + CONSTANT, [cell, module.factor, CONSTANT]),
    }


@pytest.mark.long(but=2)
@pytest.mark.parametrize("name", of_constants())
def test_straight_through_takes_constants(name):
    """Constants are inputs of the graph, also after they were changed; outside of transforms and in them."""
    hard, soft, constants = of_constants()[name]
    op = fullgrad.straight_through(hard, soft)
    for transform in (lambda f: f, vmap, lambda f: vmap(grad(lambda x: f(x).sum())), lambda f: hessian(lambda x: f(x).sum())):
        agrees(transform(op), [], constants)


def test_straight_through_follows_a_tensor_that_both_functions_hold():
    w, x = torch.tensor(2.0), torch.tensor([0.4, 1.2])
    op = fullgrad.straight_through(lambda x: torch.round(x * w), lambda x: x * w)
    torch.compiler.reset()
    compiled = torch.compile(lambda x: op(x) * 2, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), torch.round(x * 2) * 2)
    w.requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(compiled(x).sum(), w)[0], 2 * x.sum())


def test_straight_through_refuses_a_later_constant_by_name():
    x, box = torch.ones(3), Box()
    op = fullgrad.straight_through(lambda x: torch.round(x * box.w), lambda x: x * 2)
    box.w = torch.tensor(2.0)
    torch.compiler.reset()
    with pytest.raises(Exception, match=r"`hard` uses a tensor that is none of its arguments.*Pass it as an argument"):
        torch.compile(lambda x: op(x) * 2, backend="aot_eager")(x)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # at which Dynamo looks
@pytest.mark.parametrize("name", ["with_reference", "fixed_point"])
def test_code_that_is_called_when_the_graph_runs_refuses_by_name(name):
    soft, held, constants = made()
    if name == "with_reference":
        op = fullgrad.with_reference(soft, soft)
    else:
        solve = fixed_point(lambda z, x: 0.2 * z + soft(x))(lambda z, x: soft(x).detach() / 0.8)
        op = lambda x: solve(torch.zeros_like(x), x)  # noqa: E731
    torch.compiler.reset()
    with pytest.raises(Exception, match=rf"{name}.*captures a tensor that requires a gradient.*Pass the tensor, or the module"):
        torch.compile(op, backend="aot_eager", fullgraph=True)(torch.ones(2, 3))
    agrees(op, held, constants, fullgraph=False)  # the graph breaks there
