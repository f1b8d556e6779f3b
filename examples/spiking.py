"""
Spiking networks: training, per-sample gradients, surrogates that learn
=======================================================================

A network of leaky integrate-and-fire neurons reads the 1,797 handwritten digits that scikit-learn ships as trains of spikes: a
pixel fires at each of twelve time steps with the probability of its brightness. The neuron is ten lines of plain torch code. Its
spike is 0 or 1, and ``fullgrad.spikes`` gives it the slope of a surrogate. Four networks are compared:

* ``fixed width``: trained by ordinary backpropagation through time.
* ``learned width``: the same, and each hidden neuron learns the width of its surrogate.
* ``DP-SGD``: on per-sample gradients from ``vmap(grad)``, each clipped, their sum noised
  (Abadi et al., https://arxiv.org/abs/1607.00133). No epsilon is claimed for it.
* ``no surrogate``: torch's step, whose derivative is 0. Only the last layer learns.

Then the same surrogate is part of the neurons of snntorch, spikingjelly and sinabs. A package that is missing is skipped, and
says so.

Run it from a checkout, with scikit-learn, matplotlib and rich installed::

    python examples/spiking.py --output spiking.png

It takes less than a minute. It ends with an error if a result is not as good as it should be, or if per-sample gradients through
time do not equal those of a loop over the samples.
"""

import argparse
import functools
import math
import sys
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch
from matplotlib import pyplot as plt
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import fullgrad
from fullgrad import spikes

torch.set_num_threads(1)  # tensors this small are not worth the coordination of a second thread
TIME_STEPS = 12
HIDDEN = 96
DECAY = 0.8
ALPHA = 2.0  # the inverse width of the surrogate, where training begins
EPOCHS, BATCH, LEARNING_RATE = 15, 64, 5e-3
PRIVATE_EPOCHS, PRIVATE_BATCH, PRIVATE_LEARNING_RATE, MAX_NORM, NOISE = 10, 256, 1.0, 1.0, 0.6

Parameters = dict[str, Tensor]

# %%
# Digits as spike trains
# ----------------------
#
# A new train is drawn for every epoch, by the operator that also passes a gradient to the rate, were it needed.


def load() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pixels in [0, 1] and labels, for training and for testing."""
    pixels, labels = map(torch.tensor, load_digits(return_X_y=True))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images, labels = (pixels.float() / 16)[order], labels[order]
    return images[:1347], labels[:1347], images[1347:], labels[1347:]


def encode(images: Tensor) -> Tensor:
    """Spike trains of shape (time, …, pixels)."""
    return spikes.bernoulli(images.expand(TIME_STEPS, *images.shape))


# %%
# The neuron and the network
# --------------------------
#
# The membrane potential decays, adds the current, and is reduced by the threshold where the neuron fires. The derivative of the
# reset is left out, as is usual. Everything here is the code of one sample and of a batch alike.

Spike = Callable[[Tensor, Tensor], Tensor]


def run_neurons(current: Tensor, alpha: Tensor, spike: Spike) -> Tensor:
    """Spikes of leaky integrate-and-fire neurons, for currents of shape (time, …, neurons)."""
    v, out = torch.zeros_like(current[0]), []
    for x in current:
        v = DECAY * v + x
        s = spike(v, alpha)
        v = v - s.detach()
        out.append(s)
    return torch.stack(out)


def logits_of(p: Parameters, trains: Tensor, spike: Spike) -> Tensor:
    """The mean over time of a linear layer of the hidden spikes."""
    hidden = run_neurons(trains @ p["first"] + p["bias"], p["log_alpha"].exp(), spike)
    return hidden.mean(0) @ p["second"] + p["last_bias"]


def surrogate(v: Tensor, alpha: Tensor) -> Tensor:
    return spikes.atan(v, alpha, threshold=1.0)


def plain_step(v: Tensor, alpha: Tensor) -> Tensor:
    return (v >= 1.0).to(v.dtype)


def make_parameters(seed: int) -> Parameters:
    generator = torch.Generator().manual_seed(seed)
    return {
        "first": torch.randn(64, HIDDEN, generator=generator) / math.sqrt(20),
        "bias": torch.zeros(HIDDEN),
        "second": torch.randn(HIDDEN, 10, generator=generator) * 4 / math.sqrt(HIDDEN),
        "last_bias": torch.zeros(10),
        "log_alpha": torch.full((HIDDEN,), math.log(ALPHA)),
    }


# %%
# Training
# --------


def loss(p: Parameters, trains: Tensor, labels: Tensor, spike: Spike) -> Tensor:
    return cross_entropy(logits_of(p, trains, spike), labels)


def train(images: Tensor, labels: Tensor, spike: Spike, frozen: tuple[str, ...], tick: Callable[[], None]) -> Parameters:
    """Train by backpropagation through time, with Adam."""
    p = make_parameters(0)
    learned = [t.requires_grad_() for name, t in p.items() if name not in frozen]
    optimizer = torch.optim.Adam(learned, LEARNING_RATE)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(images)).split(BATCH):
            optimizer.zero_grad()
            loss(p, encode(images[batch]), labels[batch], spike).backward()
            optimizer.step()
        tick()
    return {name: t.detach() for name, t in p.items()}


def per_sample_gradients(p: Parameters, trains: Tensor, labels: Tensor) -> Parameters:
    """Gradients through time, one for each sample: the batch is the second dimension of the trains."""
    one = functools.partial(loss, spike=surrogate)
    return vmap(grad(one), in_dims=(None, 1, 0))(p, trains, labels)


def train_privately(images: Tensor, labels: Tensor, tick: Callable[[], None]) -> Parameters:
    """Train by DP-SGD: clip the gradient of each sample, add them up, add noise. The widths learn, too."""
    p = make_parameters(0)
    for _ in range(PRIVATE_EPOCHS):
        for batch in torch.randperm(len(images)).split(PRIVATE_BATCH)[:-1]:
            gradients = per_sample_gradients(p, encode(images[batch]), labels[batch])
            norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
            factors = (MAX_NORM / norms).clamp(max=1.0)
            for name, g in gradients.items():
                total = torch.einsum("b,b...->...", factors, g)
                p[name] = p[name] - PRIVATE_LEARNING_RATE * (total + NOISE * MAX_NORM * torch.randn_like(total)) / len(batch)
        tick()
    return p


def check_per_sample(images: Tensor, labels: Tensor) -> None:
    """Check that per-sample gradients equal those of a loop, for every parameter, the widths included."""
    p, trains = make_parameters(1), encode(images[:8])
    found = per_sample_gradients(p, trains, labels[:8])
    one = functools.partial(loss, spike=surrogate)
    loop = [grad(one)(p, trains[:, i], labels[i]) for i in range(8)]
    for name, g in found.items():
        assert_close(g, torch.stack([single[name] for single in loop]))
        assert g.abs().max() > 0, name


def accuracy(p: Parameters, images: Tensor, labels: Tensor, spike: Spike = surrogate) -> float:
    torch.manual_seed(2)
    return (logits_of(p, encode(images), spike).argmax(-1) == labels).double().mean().item()


# %%
# In the neurons of other packages
# --------------------------------
#
# Each gets the trained currents and must fire as the ten lines above do, by a neuron of its own with our surrogate in it; and the
# gradient of the currents must be the same.


def in_snntorch(current: Tensor, alpha: Tensor) -> Tensor:
    from snntorch import Leaky

    neuron = Leaky(beta=DECAY, spike_grad=functools.partial(spikes.atan, alpha=alpha), reset_mechanism="none")
    v, out = torch.zeros_like(current[0]), []
    for x in current:
        s, v = neuron(x, v)
        v = v - s.detach()  # snntorch resets one step later
        out.append(s)
    return torch.stack(out)


def in_spikingjelly(current: Tensor, alpha: Tensor) -> Tensor:
    from spikingjelly.activation_based.neuron import LIFNode

    spike = fullgrad.nn.ATanSpike(alpha)
    node = LIFNode(1 / (1 - DECAY), decay_input=False, v_reset=None, detach_reset=True, surrogate_function=spike)
    return torch.stack([node(x) for x in current])


def in_sinabs(current: Tensor, alpha: Tensor) -> Tensor:
    from sinabs.activation import MembraneSubtract
    from sinabs.layers.functional.lif import lif_forward_single

    spike_fn = spikes.for_sinabs(functools.partial(spikes.atan, alpha=alpha))
    reset = MembraneSubtract()
    state, out = {"v_mem": torch.zeros_like(current[0])}, []
    for x in current:
        s, state = lif_forward_single(
            x, DECAY, None, state, torch.tensor(1.0), spike_fn, lambda s, *rest: reset(s.detach(), *rest), None, None, False
        )
        out.append(s)
    return torch.stack(out)


PACKAGES = {"snntorch": in_snntorch, "spikingjelly": in_spikingjelly, "sinabs": in_sinabs}


def compare_packages(p: Parameters, images: Tensor) -> list[str]:
    """Compare each package with the plain loop."""
    current = encode(images[:64]) @ p["first"] + p["bias"]
    alpha, weights = p["log_alpha"].exp(), torch.randn(TIME_STEPS, 64, HIDDEN)
    ours = functools.partial(run_neurons, spike=surrogate)
    lines = []
    for package, neurons in PACKAGES.items():
        if find_spec(package) is None:
            lines.append(f"{package}: not installed, skipped")
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found, expected = (
                (run(current, alpha), grad(lambda c, run=run: (run(c, alpha) * weights).sum())(current))
                for run in (neurons, ours)
            )
        assert_close(found, expected, rtol=1e-4, atol=1e-4)
        lines.append(f"{package}: the spikes and the gradient of the plain loop")
    return lines


# %%
# Pictures
# --------


def draw(path: Path, p: Parameters, images: Tensor, labels: Tensor) -> None:
    """Draw a raster of one digit, the learned slopes, and their inverse widths."""
    trains = encode(images[0])
    hidden = run_neurons(trains @ p["first"] + p["bias"], p["log_alpha"].exp(), surrogate)
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    for series, color, offset in ((trains, "#7D8288", 0), (hidden, "#3A8FD0", 64)):
        t, neuron = series.nonzero(as_tuple=True)
        axes[0].scatter(t, neuron + offset, s=4, color=color)
    axes[0].set(title=f"a {int(labels[0])}: pixels (gray), hidden neurons", xlabel="time step", ylabel="neuron")
    alphas = p["log_alpha"].exp().sort().values
    v = torch.linspace(-0.5, 2.5, 300)
    for alpha in alphas[:: max(1, HIDDEN // 16)]:
        slope = vmap(grad(lambda x, alpha=alpha: spikes.atan(x, alpha, threshold=1.0)))(v)
        axes[1].plot(v, slope, color="#3A8FD0", alpha=0.5, linewidth=1)
    axes[1].plot(v, vmap(grad(lambda x: spikes.atan(x, ALPHA, threshold=1.0)))(v), color="#DD6B20", label="at the start")
    axes[1].set(title="learned slopes", xlabel="membrane potential")
    axes[1].legend(frameon=False)
    axes[2].hist(alphas.numpy(), bins=20, color="#3A8FD0")
    axes[2].axvline(ALPHA, color="#DD6B20")
    axes[2].set(title="inverse widths of the neurons", xlabel=r"$\alpha$")
    figure.savefig(path, dpi=120)
    plt.close(figure)


# %%
# All of it
# ---------


def main() -> int:
    parser = argparse.ArgumentParser(description="Spiking networks with declared slopes, on handwritten digits.")
    parser.add_argument("--output", type=Path, help="where the picture goes")
    options = parser.parse_args([] if "sphinx" in sys.modules else None)
    torch.manual_seed(0)
    console, begin = Console(), time.perf_counter()
    images, labels, test_images, test_labels = load()
    check_per_sample(images, labels)
    console.print("per-sample gradients through time equal a loop over 8 samples")
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    results: dict[str, float] = {}
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("training", total=3 * EPOCHS + PRIVATE_EPOCHS)
        tick = functools.partial(progress.advance, task)
        fixed = train(images, labels, surrogate, ("log_alpha",), tick)
        learned = train(images, labels, surrogate, (), tick)
        without = train(images, labels, plain_step, ("log_alpha",), tick)
        private = train_privately(images, labels, tick)
    for name, p in {"fixed width": fixed, "learned width": learned, "DP-SGD": private, "no surrogate": without}.items():
        results[name] = accuracy(p, test_images, test_labels, plain_step if p is without else surrogate)
    table = Table("network", "test accuracy", "inverse widths")
    for (name, score), p in zip(results.items(), (fixed, learned, private, without), strict=True):
        alphas = p["log_alpha"].exp()
        table.add_row(name, f"{100 * score:.1f}%", f"{alphas.min():.2f} to {alphas.max():.2f}")
    console.print(table)
    for line in compare_packages(learned, images):
        console.print(line)
    if options.output:
        draw(options.output, learned, test_images, test_labels)
        console.print(f"wrote {options.output}")
    console.print(f"{time.perf_counter() - begin:.0f} seconds")
    assert min(results["fixed width"], results["learned width"]) > 0.93, results
    assert results["DP-SGD"] > 0.7, results
    assert results["no surrogate"] < results["fixed width"], results
    return 0


if __name__ == "__main__":
    main()
