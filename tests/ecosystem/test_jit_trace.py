"""`torch.jit.trace`, which TensorBoard's ``add_graph`` uses: the graph has the value, like that of torch.export."""

import warnings

import pytest
import torch
from torch import Tensor

import fullgrad
from fullgrad._dispatch import pytree
from fullgrad._suite.cases import CASES
from tests.operators import ThroughRound


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
    """The first operator that meets the parameter warns: the graph has the derivative of the plain operations."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        traced = torch.jit.trace(Rounded(), (X,))
    words = [str(w.message).partition(";")[0] for w in caught if issubclass(w.category, UserWarning)]
    says = "torch.jit.trace keeps the value and drops the declared derivative"
    assert words == [f"Round: {says}"]
    assert torch.equal(traced(X), Rounded()(X))


def test_after_a_trace_derivatives_are_declared_again():
    """The state of the tracer ends with the trace."""
    layer = Rounded()
    with torch.no_grad():
        torch.jit.trace(layer, (X,))
    assert torch.equal(torch.autograd.grad(layer(X).sum(), layer.weight)[0], X)


REFUSED = ("implicit.root_vjp", "implicit.root_jvp")
CALLS = [case for case in CASES if not (case.exhaustive or case.draws) and isinstance(case.inputs[0], Tensor)]
CALLS = [case for case in CALLS if case.name not in REFUSED]


@pytest.mark.parametrize("name", REFUSED)
def test_what_solves_linear_equations_is_refused_by_name(name):
    """A trace would hold the numbers of its example."""
    case = next(case for case in CASES if case.name == name)
    with pytest.raises(NotImplementedError, match=f"{name}: torch.jit.trace cannot record"):
        torch.jit.trace(case.operator, case.inputs)


def others(x):
    """Inputs of the same shape for which eager code would take other branches."""
    if not x.is_floating_point() or x.numel() < 2:
        return []
    special = [x.flatten().index_fill(0, torch.tensor(0), v).reshape(x.shape) for v in (torch.inf, -torch.inf, torch.nan)]
    return [x.flip(-1) * 0.3, x * 30, x * 1e-30, torch.full_like(x, 0.7), *special]


# torch warns of each size that becomes a number of the graph.
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.name)
def test_a_traced_operator_is_right_for_other_inputs(case):
    """The graph has no choice that depends on the numbers of its first inputs."""

    def call(*tensors):
        given = iter(tensors)
        output = case.operator(*[next(given) if isinstance(value, Tensor) else value for value in case.inputs])
        return tuple(leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor))

    x, *rest = [value for value in case.inputs if isinstance(value, Tensor)]
    with torch.no_grad():
        traced = torch.jit.trace(call, (x, *rest))
        for other in (x, *others(x)):
            try:
                expected = call(other, *rest)
            except (ValueError, RuntimeError):
                continue
            torch.testing.assert_close(traced(other, *rest), expected, equal_nan=True, rtol=1e-12, atol=1e-13)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_numbers_that_are_kept_are_constants_of_the_first_trace():
    """Kept numbers are constants also of a later trace: torch traces twice, and compares."""
    with torch.no_grad():
        traced = torch.jit.trace(lambda x: fullgrad.soft.greater_equal(x, 0.5), (torch.ones(3, dtype=torch.float64),))
    assert "aten::detach" not in str(traced.graph)


def test_keyword_arguments_of_what_a_forward_calls():
    """Keywords such as the dtype of an index work in a trace."""

    class Total(ThroughRound):
        @staticmethod
        def forward(x):
            return x[torch.zeros(2, dtype=torch.long)]

    with torch.no_grad():
        assert torch.jit.trace(Total.apply, (X,))(X).equal(Total.forward(X))


def test_torch_takes_large_constants_for_each_other():
    """torch takes large constants for each other, as docs/limits.md says until torch fixes it."""
    x = torch.ones((), dtype=torch.float64)
    traced = torch.jit.trace(lambda x: torch.stack((x * 1e300, x * 1e200)), (x,), check_trace=False)
    assert traced(x).tolist() == [1e300, 1e300]
