"""`opaque`: a kernel is one node of every graph, and a plain call elsewhere."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from fullgrad._dispatch import is_traced, opaque

pytestmark = pytest.mark.short

CALLS = []


@opaque("test_running_maximum", fake=torch.empty_like, batched=lambda in_dims, args: ((args[0].movedim(in_dims[0], 0),), 0))
def running_maximum(x: torch.Tensor) -> torch.Tensor:
    CALLS.append(x)
    return torch.cummax(x, -1).values


@opaque(
    "test_scaled", fake=lambda xs, factor: [torch.empty_like(x) for x in xs], schema="(Tensor[] xs, float factor) -> Tensor[]"
)
def scaled(xs, factor):
    return [x * factor for x in xs]


X = torch.tensor([[1.0, 3.0, 2.0], [0.0, -1.0, 4.0]])


def nodes(graph):
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


def test_eager_calls_are_calls_of_the_function():
    """Eager calls use no dispatcher."""
    CALLS.clear()
    assert torch.equal(running_maximum(X), torch.cummax(X, -1).values)
    assert CALLS[0] is X


def test_it_is_one_node_of_a_graph():
    """A tracer sees the operator and not its steps."""
    assert nodes(make_fx(running_maximum)(X)) == ["fullgrad.test_running_maximum.default"]
    assert nodes(make_fx(lambda x: scaled([x, x], 2.0)[0])(X))[0] == "fullgrad.test_scaled.default"


def test_compiled_code_calls_it():
    """Compiled code is one graph with the same numbers."""
    compiled = torch.compile(running_maximum, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(X), running_maximum(X))


def test_tensors_without_data_have_the_shape_of_the_output():
    """Outputs on the meta device have the right shape, in lists too."""
    assert running_maximum(X.to("meta")).shape == X.shape
    assert [y.device.type for y in scaled([X.to("meta"), X.to("meta")], 2.0)] == ["meta", "meta"]


def test_vmap_of_the_node():
    """The given vmap rule is called once for the batch."""
    CALLS.clear()
    graph = make_fx(torch.func.vmap(running_maximum, in_dims=1))(X)
    assert nodes(graph).count("fullgrad.test_running_maximum.default") == 1
    assert torch.equal(graph(X), torch.cummax(X.mT, -1).values)


@pytest.mark.parametrize(
    ("arguments", "traced"), [((X, 2), False), (([X], 2), False), ((X.to("meta"),), True), (([X, X.to("meta")], 2), True)]
)
def test_a_tensor_without_data_counts_as_traced(arguments, traced):
    """A tensor without data counts as traced, wherever it is among the arguments."""
    assert is_traced(*arguments) is traced
