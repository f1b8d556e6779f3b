"""The neurons of four packages with our surrogates: per-sample gradients through time equal a loop over the samples.

A package that is not installed is skipped (the extra ``plugins`` has them all). No neuron of theirs can do this with its own
surrogates, which the last test holds.
"""

import copy
import functools
import re
import warnings
from pathlib import Path

import pytest
import torch
from torch.func import grad, vmap

import fullgrad
from fullgrad import spikes

STEPS, FEATURES = 5, 4
pytestmark = pytest.mark.filterwarnings("ignore")  # those of the packages, when they are imported
torch.manual_seed(0)
WEIGHT, ALPHA = torch.randn(FEATURES, FEATURES, dtype=torch.float64), torch.full((FEATURES,), 2.0, dtype=torch.float64)
INPUTS = 2 * torch.rand(6, STEPS, FEATURES, dtype=torch.float64)


def install(package):
    """The package, or a skipped test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(package)


def check_per_sample(loss, *parameters):
    """Check that ``vmap(grad(loss))`` over samples equals the loop, and is not 0."""
    argnums = tuple(range(len(parameters)))
    gradients = grad(loss, argnums)
    found = vmap(gradients, (*[None] * len(parameters), 0))(*parameters, INPUTS)
    expected = [torch.stack(parts) for parts in zip(*[gradients(*parameters, x) for x in INPUTS], strict=True)]
    torch.testing.assert_close(found, tuple(expected))
    assert all(g.abs().max() > 0 for g in found)


def spikingjelly_loss(surrogate, weight, alpha, x):
    from spikingjelly.activation_based import neuron

    node = neuron.LIFNode(tau=1.5, surrogate_function=functools.partial(surrogate, alpha=alpha))
    return sum(node(weight @ x[t]).square().sum() * (t + 1) for t in range(STEPS)) + node.v.square().sum()


def snntorch_loss(surrogate, weight, alpha, x):
    from snntorch import Leaky

    node = Leaky(beta=0.8, spike_grad=functools.partial(surrogate, alpha=alpha, tie=0.0))
    membrane, total = torch.zeros(FEATURES, dtype=torch.float64), 0.0
    for t in range(STEPS):
        spike, membrane = node(weight @ x[t], membrane)
        total = total + spike.sum() * (t + 1) + membrane.square().sum()
    return total


def sinabs_loss(surrogate, weight, alpha, x):
    from sinabs.layers import LIF

    layer = LIF(
        tau_mem=5.0, spike_threshold=torch.tensor(0.5), spike_fn=spikes.for_sinabs(functools.partial(surrogate, alpha=alpha))
    )
    out = layer((x @ weight.T).unsqueeze(0))
    return (out.squeeze(0) * torch.arange(1.0, STEPS + 1).unsqueeze(1)).sum() + layer.v_mem.square().sum()


def norse_loss(surrogate, weight, alpha, x):
    from norse.torch.functional import lif

    zeros = torch.zeros(FEATURES, dtype=torch.float64)
    state, total = lif.LIFFeedForwardState(zeros, zeros), 0.0
    for t in range(STEPS):
        spike, state = lif.lif_feed_forward_step(20 * weight @ x[t], state, lif.LIFParameters(), dt=0.01)
        total = total + spike.sum() * (t + 1) + state.v.square().sum()
    return total


@pytest.mark.short
@pytest.mark.parametrize("name", ["atan", "sigmoid", "piecewise_quadratic"])
@pytest.mark.parametrize(
    ("package", "loss"), [("spikingjelly", spikingjelly_loss), ("snntorch", snntorch_loss), ("sinabs", sinabs_loss)]
)
def test_neurons_have_per_sample_gradients(package, loss, name):
    """Per-sample gradients of weights and of the surrogate's own width equal the loop."""
    install(package)
    check_per_sample(functools.partial(loss, getattr(spikes, name)), WEIGHT, ALPHA)


@pytest.mark.parametrize("name", ["atan", "sigmoid"])
def test_norse_with_its_threshold_rebound(name, monkeypatch):
    """norse's ``method`` is a string, so the function replaces the name that its neuron calls."""
    install("norse")
    from norse.torch.functional import lif

    def check(weight, alpha, x):
        surrogate = functools.partial(getattr(spikes, name), alpha=alpha, tie=0.0)
        monkeypatch.setattr(lif, "threshold", lambda v, method, alpha: surrogate(v))
        return norse_loss(None, weight, alpha, x)

    check_per_sample(check, WEIGHT, ALPHA)


def test_a_norse_cell_with_a_step_of_ones_own():
    """``SNNCell`` takes any step."""
    install("norse")
    from norse.torch.module.snn import SNNCell

    def step(x, state, parameters, dt):
        v = 0.8 * state + x
        spike = spikes.fast_sigmoid(v, 1.0, threshold=1.0, tie=0.0)
        return spike, v - spike.detach()

    def loss(weight, x):
        cell = SNNCell(activation=step, state_fallback=torch.zeros_like, p=None)
        total, state = 0.0, None
        for t in range(STEPS):
            spike, state = cell(weight @ x[t], state)
            total = total + spike.sum() * (t + 1)
        return total

    check_per_sample(loss, WEIGHT)


@pytest.mark.parametrize(
    ("package", "loss"), [("spikingjelly", spikingjelly_loss), ("snntorch", snntorch_loss), ("sinabs", sinabs_loss)]
)
def test_a_module_is_part_of_their_neurons(package, loss):
    """`ATanSpike` with a width that learns: ordinary training reaches it, and a copy keeps it."""
    install(package)
    spike = fullgrad.nn.ATanSpike(torch.full((FEATURES,), 2.0), learnable="alpha")

    def surrogate(v, alpha=None, **rest):
        return spikes.atan(v, spike.alpha, **rest)

    loss(surrogate, WEIGHT, ALPHA, INPUTS[0]).backward()
    assert spike.alpha.grad.abs().max() > 0


def test_spikingjelly_registers_the_width():
    """The parameter of a surrogate module is one of the neuron's own."""
    install("spikingjelly")
    from spikingjelly.activation_based import neuron

    node = neuron.LIFNode(surrogate_function=fullgrad.nn.ATanSpike(2.0, learnable="alpha"))
    assert "surrogate_function.alpha" in dict(copy.deepcopy(node).named_parameters())


def test_snntorch_keeps_the_dtype():
    """float64 in and out, where its own surrogates give float32."""
    install("snntorch")
    from snntorch import Leaky

    for dtype in (torch.float64, torch.bfloat16):
        spike, _ = Leaky(beta=0.8, spike_grad=fullgrad.nn.ATanSpike(tie=0.0)).to(dtype)(torch.rand(3, dtype=dtype))
        assert spike.dtype == dtype


def test_sinabs_with_an_adaptive_threshold_has_the_published_gradients():
    """The threshold is detached, as in the package."""
    install("sinabs")
    from sinabs.activation import MultiGaussian, MultiSpike
    from sinabs.layers import ALIF

    def gradient(**how):
        layer = ALIF(tau_mem=5.0, tau_adapt=8.0, adapt_scale=0.9, spike_threshold=torch.tensor(0.5), **how)
        w = WEIGHT.clone().requires_grad_()
        out = layer((INPUTS[:1] * 3) @ w.T)
        return torch.autograd.grad((out * torch.arange(1.0, STEPS + 1).unsqueeze(1)).sum(), w)[0]

    def surrogate(v, threshold):
        return fullgrad.replace_grad(spikes.multi_spike(v, threshold), spikes.multi_gaussian(v, threshold=threshold))

    theirs = gradient(spike_fn=MultiSpike, surrogate_grad_fn=MultiGaussian())
    torch.testing.assert_close(gradient(spike_fn=spikes.for_sinabs(surrogate)), theirs)
    learned = gradient(spike_fn=spikes.for_sinabs(surrogate, learn_threshold=True))
    assert (learned - theirs).abs().max() > 1e-3 * theirs.abs().max()


@pytest.mark.parametrize("package", ["spikingjelly", "snntorch"])
def test_their_own_surrogates_raise(package):
    """Other surrogates raise, which is the reason for ours. When this passes, the page says too much."""
    install(package)
    if package == "spikingjelly":
        from spikingjelly.activation_based.surrogate import ATan

        own, loss = ATan(2.0), spikingjelly_loss
    else:
        from snntorch import surrogate

        own, loss = surrogate.atan(2.0), snntorch_loss
    with pytest.raises(RuntimeError):
        check_per_sample(lambda weight, x: loss(lambda v, alpha=None, tie=None: own(v), weight, ALPHA, x), WEIGHT)


GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "spiking-packages.md"
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)


@pytest.mark.short
@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_the_blocks_of_the_guide_run(block):
    """Each block runs where its package is installed."""
    (package,) = {p for p in ("spikingjelly", "snntorch", "sinabs", "norse") if f"from {p}" in block}
    install(package)
    exec(compile(block, GUIDE.name, "exec"), {"__name__": "guide"})
