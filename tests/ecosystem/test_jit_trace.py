"""`torch.jit.trace`, which TensorBoard's ``add_graph`` uses: the graph has the value, as that of torch.export."""

import warnings

import torch

import fullgrad


class Rounded(torch.nn.Module):
    """A layer with a rounded weight."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([0.3, 1.7, 2.2]))

    def forward(self, x):
        return fullgrad.clamp(fullgrad.round(self.weight) * x, -5.0, 5.0)


X = torch.tensor([0.4, -1.3, 0.2])


def test_the_value_is_traced():
    """torch's own check of the trace passes, and the graph is of plain operations, which can be saved."""
    layer = Rounded()
    with torch.no_grad():
        traced = torch.jit.trace(layer, (X,))
    assert torch.equal(traced(X * 3), layer(X * 3))
    assert "aten::round" in str(traced.graph)
    assert "^" not in str(traced.graph)


def test_a_parameter_that_requires_a_gradient_is_warned_of_once():
    """By the first operator that it meets: the derivative of the graph is that of the plain operations."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        traced = torch.jit.trace(Rounded(), (X,))
    words = [str(w.message).partition(";")[0] for w in caught if issubclass(w.category, UserWarning)]
    says = "torch.jit.trace keeps the value and drops the declared derivative"
    assert words == [f"Round: {says}"]
    assert torch.equal(traced(X), Rounded()(X))


def test_after_a_trace_derivatives_are_declared_again():
    """The state of the tracer ends with it."""
    layer = Rounded()
    with torch.no_grad():
        torch.jit.trace(layer, (X,))
    assert torch.equal(torch.autograd.grad(layer(X).sum(), layer.weight)[0], X)
