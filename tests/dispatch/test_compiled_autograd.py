"""Backwards that torch's compiled autograd traces: Dynamo sees the rules themselves, and executes what it cannot trace."""

from dataclasses import replace

import pytest
import torch
from torch._dynamo import compiled_autograd

import fullgrad
from fullgrad import quantizers, soft, spikes
from fullgrad._suite.cases import CASES
from fullgrad.testing._subject import close

pytestmark = [
    # Dynamo traces what a cache holds, and says so; it reads the gradient of what it makes of a leaf.
    pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]
# torch adds the gradients of several uses without asking whether one is None (docs/limits.md).
NONE_GRADIENTS = {"replace_grad", "scale by a tensor", "soft.entmax_loss", "soft.normmax_loss"}


# Their backwards call code that torch cannot see, which breaks the graph.
OPAQUE = ("blackbox.interpolated", "blackbox.imle", "blackbox.finite_difference")


def gradients(function, inputs, *, compiled, fullgraph=True):
    """The gradients of the inputs, by one graph without a break, or by the engine."""
    y = function(*inputs)
    total = (y * torch.linspace(1, 2, y.numel(), dtype=y.dtype).view(y.shape)).sum()
    if compiled:
        with compiled_autograd._enable(lambda graph: torch.compile(graph, backend="eager", fullgraph=fullgraph)):
            total.backward()
    else:
        total.backward()
    return [v.grad for v in inputs]


def assert_thread_is_whole():
    """Check that ``backward()`` works; it raises in a thread that thinks it is inside torch's legacy vmap."""
    torch.ones(2, requires_grad=True).sin().sum().backward()


@pytest.mark.exhaustive(but=1)
@pytest.mark.parametrize("case", [c for c in CASES if c.name not in NONE_GRADIENTS and not c.exhaustive], ids=lambda c: c.name)
def test_every_backward_is_one_graph(case):
    """The backward of every operator is one graph, with numbers that change from call to call; that of a black box has its code
    between graphs.
    """
    whole = not case.name.startswith(OPAQUE)
    for factor in (1.0, 1.01, 1.02):
        some = replace(case, inputs=tuple(v * factor if isinstance(v, float) else v for v in case.inputs))
        torch.manual_seed(0)
        try:
            expected = gradients(some.op, some.leaves(), compiled=False)
        except ValueError:  # a number that may not be any, such as that of a tie
            assert factor != 1.0
            break
        torch.manual_seed(0)
        for a, e in zip(gradients(some.op, some.leaves(), compiled=True, fullgraph=whole), expected, strict=True):
            assert (a is None) == (e is None)
            if e is not None:
                close(a, e)
    assert_thread_is_whole()


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", [c for c in CASES if c.name not in NONE_GRADIENTS and c.exhaustive], ids=lambda c: c.name)
def test_every_backward_is_one_graph_in_every_mode(case):
    """The backward of every mode and variant is one graph."""
    test_every_backward_is_one_graph(case)


NUMBERS = {
    "sort_st": lambda x, n: fullgrad.sort_st(x, softness=n)[0],
    "soft.sort": lambda x, n: soft.sort(x, softness=n, mode="c1")[0],
    "clamp": lambda x, n: fullgrad.clamp(x, -n, n),
    "atan": lambda x, n: spikes.atan(x, alpha=n),
    "fake_quantize": lambda x, n: quantizers.fake_quantize(x, n, 0, -8, 7),
    "fake_quantize by the reciprocal": lambda x, n: quantizers.fake_quantize(x, n, 0, -8, 7, reciprocal=True),
    "float_quantize": lambda x, n: quantizers.float_quantize(x, "float8_e4m3fn", scale=n),
    "clip_grad_norm": lambda x, n: fullgrad.clip_grad_norm(x, n),
}


@pytest.mark.long(but=1)
@pytest.mark.parametrize("function", NUMBERS.values(), ids=NUMBERS)
def test_numbers_may_change_from_step_to_step(function):
    """A softness may be annealed: Dynamo makes a symbol of a number that changes."""
    x = torch.tensor([0.3, -1.0, 2.0, 0.7])
    for n in (0.1, 0.2, 0.3, 0.45):
        expected = gradients(lambda x, n=n: function(x, n), [x.clone().requires_grad_()], compiled=False)
        close(gradients(lambda x, n=n: function(x, n), [x.clone().requires_grad_()], compiled=True), expected)
    assert_thread_is_whole()
