"""`FunctionModule`: the module of any function, alone and as a part of others."""

import copy
import functools
import pickle

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

import fullgrad
from fullgrad import quantizers, spikes
from fullgrad.nn import FunctionModule

V = torch.linspace(-2, 2, 9)


def dropped(x, p=0.5, training=True):
    """A function with an argument that is the module's own."""
    return x * p if training else x


@pytest.mark.parametrize(
    ("spike", "words"),
    [
        (FunctionModule(spikes.atan, alpha=3.0, threshold=0.5), "FunctionModule(atan, alpha=3.0, threshold=0.5)"),
        (fullgrad.nn.ATanSpike(alpha=3.0, threshold=0.5), "ATanSpike(alpha=3.0, threshold=0.5)"),
    ],
)
def test_a_module_of_numbers(spike, words):
    """Which are no part of the state."""
    assert repr(spike) == words
    assert not spike.state_dict()
    x, y = (V.clone().requires_grad_() for _ in range(2))
    spike(x).sum().backward()
    spikes.atan(y, alpha=3.0, threshold=0.5).sum().backward()
    assert x.grad.equal(y.grad)
    spike.threshold = 1.0
    assert torch.equal(spike(V), spikes.atan(V, 3.0, 1.0))


@pytest.mark.parametrize(
    ("make", "name"),
    [(functools.partial(FunctionModule, spikes.atan), "FunctionModule(atan, "), (fullgrad.nn.ATanSpike, "ATanSpike(")],
)
def test_a_module_learns(make, name):
    """A module keeps tensors and learns what it is told to; it is copied, pickled, and shown."""
    alpha = torch.full((3, 1), 2.0)
    spike = make(alpha=alpha, threshold=0.5, grad_scale=torch.tensor(2.0), learnable=("alpha", "threshold"))
    assert {*dict(spike.named_parameters())} == {"alpha", "threshold"}
    assert {*dict(spike.named_buffers())} == {"grad_scale"}
    v = torch.randn(3, 5)
    expected = torch.autograd.functional.vjp(lambda a, t: spikes.atan(v, a, t, 2.0).sum(), (alpha, torch.tensor(0.5)))[1]
    for module in (spike, copy.deepcopy(spike), pickle.loads(pickle.dumps(spike))):
        assert torch.equal(module(v), spikes.atan(v, threshold=0.5))
        gradients = torch.autograd.grad(module(v).sum(), [module.alpha, module.threshold])
        torch.testing.assert_close(gradients, expected)
        shown = "alpha=Parameter of shape (3, 1), threshold=Parameter of shape (), grad_scale=tensor of shape ()"
        assert repr(module) == f"{name}{shown})"
    assert torch.equal(alpha, torch.full((3, 1), 2.0))


def test_any_function_has_a_module():
    """One that is made of a slope, of several inputs, of C, a partial one, another module."""
    made = FunctionModule(spikes.from_slope(lambda u: 1 / (1 + u**4)), threshold=torch.tensor(0.5), learnable="threshold")
    made(V).sum().backward()
    torch.testing.assert_close(made.threshold.grad, -(1 / (1 + (V - 0.5) ** 4)).sum())
    assert torch.equal(FunctionModule(torch.lerp, weight=0.25)(V, 2 * V), torch.lerp(V, 2 * V, 0.25))
    assert torch.equal(FunctionModule(functools.partial(torch.clamp, min=0.0), max=1.0)(V), V.clamp(0, 1))
    assert torch.equal(FunctionModule(spikes.atan, alpha=3.0)(V, threshold=0.5), spikes.atan(V, 3.0, 0.5))
    linear = nn.Linear(9, 2)
    assert {*FunctionModule(linear).parameters()} == {*linear.parameters()}
    assert torch.equal(FunctionModule(linear)(V), linear(V))


def test_training_is_that_of_the_module():
    module = FunctionModule(dropped, p=0.25)
    assert torch.equal(module(V), V * 0.25)
    assert torch.equal(module.eval()(V), V)


@pytest.mark.long
def test_a_compiled_module():
    """One graph."""
    module = FunctionModule(spikes.atan, alpha=2.0, threshold=torch.tensor(0.5), learnable="alpha")
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    found, expected = (torch.autograd.grad(f(V).sum(), module.alpha) for f in (compiled, module))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("make", [functools.partial(FunctionModule, quantizers.lsq), fullgrad.nn.LSQ])
def test_in_ensembles(make):
    """With functional_call, stacked states and vmap; a parameter that is given is the module's own."""
    scales = [nn.Parameter(torch.tensor(0.1 * (i + 1))) for i in range(3)]
    models = [nn.Sequential(nn.Linear(4, 3), make(scale=scale)) for scale in scales]
    x = torch.randn(5, 4)
    params, buffers = stack_module_state(models)
    stacked = vmap(lambda p, b: functional_call(models[0], (p, b), (x,)))(params, buffers)
    torch.testing.assert_close(stacked, torch.stack([m(x) for m in models]))
    assert [*models[0].state_dict()] == ["0.weight", "0.bias", "1.scale"]
    assert models[0][1].scale is scales[0]


@pytest.mark.parametrize("make", [functools.partial(FunctionModule, quantizers.codebook_quantize), fullgrad.nn.CodebookQuantize])
def test_as_a_parametrization(make):
    """What was saved of it is what it is."""
    layer = nn.Linear(4, 3)
    quantizer = make(codebook=quantizers.levels("nf4"), inside="exact")
    nn.utils.parametrize.register_parametrization(layer, "weight", quantizer)
    assert {*layer.weight.flatten().tolist()} <= {*quantizers.levels("nf4").tolist()}
    assert [name for name, _ in quantizer.named_buffers()] == ["codebook"]
    assert "inside='exact'" in repr(quantizer)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: FunctionModule(3), TypeError, "^FunctionModule: `function` must be a function, got"),
        (lambda: FunctionModule(quantizers.lsq, step=1.0), TypeError, "^FunctionModule: lsq got an unexpected .* 'step'"),
        (lambda: FunctionModule(spikes.atan, v=V), TypeError, "^FunctionModule: atan got an unexpected .* 'v'"),
        (lambda: FunctionModule(spikes.atan, learnable="alpha"), ValueError, "`learnable` must be among none, got 'alpha'"),
        (
            lambda: FunctionModule(spikes.atan, tie=0.0, learnable=("alpha",)),
            ValueError,
            "`learnable` must be among tie, got 'alpha'",
        ),
        (
            lambda: FunctionModule(quantizers.lsq, scale="1", learnable="scale"),
            TypeError,
            "`scale` must be a number or a floating tensor to be learnable, got '1'",
        ),
        (lambda: FunctionModule(fullgrad.scale, forward=2.0), ValueError, "attributes of nn.Module, got 'forward'"),
        (lambda: FunctionModule(dropped, training=False), ValueError, "attributes of nn.Module, got 'training'"),
    ],
)
def test_errors_name_the_rule_and_what_was_found(make, error, message):
    """When the module is made."""
    with pytest.raises(error, match=message):
        make()
