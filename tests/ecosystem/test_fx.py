"""`torch.fx.symbolic_trace`: a public function is one node, with its parameters and its declared derivative."""

import inspect
import io
import operator

import pytest
import torch
from torch import Tensor, nn

import fullgrad
from fullgrad import spikes
from tests.ecosystem.test_overrides import OVERRIDABLE, PUBLIC


class Network(nn.Module):
    """Public functions, modules of the package and parameters, as a user's model has them."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.spike = fullgrad.nn.FunctionModule(spikes.atan, learnable="alpha", alpha=3.0)
        self.quantizer = fullgrad.nn.LSQ(nn.Parameter(torch.tensor(0.25)))

    def forward(self, x):
        x = fullgrad.clamp(self.quantizer(x), max_value=self.scale * 4)
        values = fullgrad.soft.topk(fullgrad.round(x * 4, "half_away"), 2, softness=0.5).values
        return fullgrad.soft.sort(x, descending=True).values + self.spike(x) + values.sum()


def gradients(network, x):
    """The gradients of the input and of the parameters."""
    x = x.clone().requires_grad_()
    y = network(x)
    parameters = [network.get_parameter(name) for name in ("scale", "spike.alpha", "quantizer.scale")]
    return y, torch.autograd.grad(y.square().sum(), [x, *parameters])


def saved_and_loaded(module):
    """The graph saved and loaded by `torch.save`, which writes its code and no functions."""
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_a_graph_computes_value_and_declared_derivative():
    """A graph equals the module that was traced, also after it was saved and loaded."""
    torch.manual_seed(0)
    network, x = Network(), torch.randn(5)
    y, expected = gradients(network, x)
    graph = torch.fx.symbolic_trace(network)
    for found in (graph, saved_and_loaded(graph)):
        z, parts = gradients(found, x)
        assert torch.equal(y, z)
        assert all(map(torch.equal, parts, expected))


def test_nodes_are_public_functions_with_the_arguments_of_the_call():
    """Nodes have the public names of the functions."""
    graph = torch.fx.symbolic_trace(Network()).graph
    nodes = {node.target: node for node in graph.nodes if node.target in PUBLIC}
    names = ("quantizers.lsq", "clamp", "round", "soft.topk", "soft.sort", "spikes.atan")
    assert [*nodes] == [operator.attrgetter(name)(fullgrad) for name in names]
    assert nodes[fullgrad.round].args[1:] == ("half_away",)
    assert nodes[fullgrad.soft.topk].args[1:] == (2,)
    assert nodes[fullgrad.soft.topk].kwargs == {"softness": 0.5}
    assert nodes[fullgrad.soft.sort].kwargs == {"descending": True}
    assert [*nodes[fullgrad.clamp].kwargs] == ["max_value"]


def test_generated_code_reads_as_written():
    """`print_readable` and the generated code use the package's public modules."""
    code = torch.fx.symbolic_trace(Network()).print_readable(print_output=False)
    assert "fullgrad_round(" in code
    assert "fullgrad_soft_sort(" in code


@pytest.mark.short
@pytest.mark.parametrize("function", OVERRIDABLE, ids=PUBLIC.get)
def test_every_public_function_is_one_node(function):
    """Nothing is computed while the graph is made, and the names of nodes are those of the functions."""
    required = [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    namespace = {"function": function}
    exec(f"def f({', '.join(required)}): return function({', '.join(f'{name}={name}' for name in required)})", namespace)
    graph = torch.fx.symbolic_trace(namespace["f"]).graph
    (node,) = [node for node in graph.nodes if node.op == "call_function"]
    assert node.target is function
    assert node._pretty_print_target(node.target) == PUBLIC[function]


def test_an_operator_of_ones_own_is_a_node_with_its_derivative():
    """The ``apply`` of a class and functions made by `straight_through`, whose forwards would be traced otherwise, are nodes."""

    class Step(fullgrad.Elementwise):
        reads = {0: (0,)}

        @staticmethod
        def forward(x, height=1.0):
            return (x > 0).to(x.dtype) * height

        @staticmethod
        def vjp_term(i, v, x, height):
            return v * torch.sigmoid(x) * height

    soft = fullgrad.straight_through(torch.round, torch.tanh)
    x = torch.tensor([-0.6, 0.6, 1.7])
    for f in (lambda x: Step.apply(x * 2, height=3.0), lambda x: soft(x)):
        graph = torch.fx.symbolic_trace(f)
        assert torch.equal(graph(x), f(x))
        assert torch.equal(torch.func.grad(lambda x: graph(x).sum())(x), torch.func.grad(lambda x: f(x).sum())(x))  # noqa: B023
        assert torch.equal(torch.func.vmap(torch.func.grad(graph))(x), torch.func.vmap(torch.func.grad(f))(x))


class Doubled(torch.autograd.Function):
    """The identity, with the slope 2."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return 2 * g


@fullgrad.custom_jvp
def named(x):
    """The sine of the first of a pair, with the slope 3, as a module has it."""
    return torch.sin(x[0])


named.defjvp(lambda p, t: (named(*p), 3 * t[0][0]))


def made_of_functions():
    """Functions of one tensor that have other derivatives than their code, by the name of the operator."""
    jvp, vjp = fullgrad.custom_jvp(lambda x: torch.sin(x)), fullgrad.custom_vjp(lambda x: torch.sin(x))
    jvp.defjvp(lambda p, t: (jvp(*p), 3 * t[0]))
    vjp.defvjp(lambda x: (vjp(x), x), lambda x, g: (x * g,))
    return {
        "custom_jvp": lambda x: jvp(x * 2),
        "custom_jvp of a structure": lambda x: named((x, 2)),
        "custom_vjp": lambda x: vjp(x * 2),
        "custom_vjp by keyword": lambda x: vjp(x=x),
        "custom_gradient": fullgrad.custom_gradient(lambda x: (torch.sin(x), lambda g: 4 * g)),
        "with_reference": fullgrad.with_reference(lambda x: torch.as_tensor(x.numpy() * 1), torch.exp),
        "linear_map": fullgrad.linear_map(lambda x: 2 * x, lambda g: 3 * g),
        "adopt": lambda x: fullgrad.adopt(Doubled)(x),
    }


@pytest.mark.parametrize("name", made_of_functions())
def test_a_function_with_rules_is_a_node_with_its_derivative(name):
    """The graph calls the function itself, whose code would be traced otherwise, without its rules."""
    f, x = made_of_functions()[name], torch.tensor([-0.6, 0.6, 1.7])
    graph = torch.fx.symbolic_trace(lambda x: f(x) + 1)
    assert not any(node.target in (torch.sin, torch.clone, "clone") for node in graph.graph.nodes)
    assert torch.equal(graph(x), f(x) + 1)
    assert torch.equal(torch.func.grad(lambda x: graph(x).sum())(x), torch.func.grad(lambda x: f(x).sum())(x))
    assert torch.equal(torch.func.vmap(torch.func.grad(graph))(x), torch.func.vmap(torch.func.grad(f))(x))


def test_a_function_with_rules_that_has_a_name_is_saved_by_it():
    """A saved graph imports the function of the module; one without a name is refused."""
    x = torch.tensor([-0.6, 0.6, 1.7])
    loaded = saved_and_loaded(torch.fx.symbolic_trace(lambda x: named((x, 2))))
    assert torch.func.grad(lambda x: loaded(x).sum())(x).tolist() == [3, 3, 3]
    f = made_of_functions()["custom_gradient"]
    with pytest.raises(torch.package.importer.ObjNotFoundError, match="custom_gradient_of"):
        saved_and_loaded(torch.fx.symbolic_trace(lambda x: f(x) + 1))


def test_transforms_and_shape_propagation_of_a_graph():
    """A graph works in other passes: vmap, forward mode, compilation, and shape propagation."""
    from torch.fx.passes.shape_prop import ShapeProp

    graph = torch.fx.symbolic_trace(lambda x: fullgrad.soft_round(fullgrad.soft.sort(x, softness=0.3).values))
    x = torch.tensor([[1.7, 0.8, 2.6], [0.9, 3.2, 1.1]])
    ShapeProp(graph).propagate(x)
    assert [node.meta["tensor_meta"].shape for node in graph.graph.nodes if node.target is fullgrad.soft_round] == [x.shape]

    def f(x):
        return fullgrad.soft_round(fullgrad.soft.sort(x, softness=0.3).values)

    for transform in (torch.func.jacfwd, torch.func.hessian):
        torch.testing.assert_close(transform(graph)(x), transform(f)(x), rtol=0, atol=0)
    torch.testing.assert_close(torch.func.vmap(torch.func.jacrev(graph))(x), torch.func.vmap(torch.func.jacrev(f))(x))
    assert torch.equal(torch.compile(graph, backend="eager", fullgraph=True)(x), f(x))


def test_a_node_among_plain_tensors():
    """The tensor that is traced may be a parameter of the function, and its first argument a constant."""
    x = torch.tensor([-2.0, 0.5, 2.0])
    graph = torch.fx.symbolic_trace(lambda bound: fullgrad.clamp(x, max_value=bound))
    assert isinstance(graph(torch.tensor(1.0)), Tensor)
    assert graph(torch.tensor(1.0)).tolist() == [-2.0, 0.5, 1.0]
