"""
Handwritten digits with 4 bits, and per-sample gradients
========================================================

A small network with 4-bit weights and 4-bit activations learns the 1,797 handwritten digits that scikit-learn ships. Rounding has
derivative 0, so such a network can only learn with a declared gradient. Four rows compare:

* ``torch.round``: torch's own rounding and clamping. The gradient of every weight is exactly 0; the last bias alone learns.
* ``fullgrad``: the same network and the same values, with the straight-through derivative.
* ``fullgrad, DP-SGD``: the same again, on per-sample gradients from ``vmap(grad)``, each clipped, their sum noised
  (Abadi et al., https://arxiv.org/abs/1607.00133).
* ``full precision``: the same network without rounding.

Run it from a checkout, with scikit-learn, matplotlib and rich installed::

    python examples/digits.py --output digits.png --seeds 3

It takes half a minute. It prints a table, compares one batch of per-sample gradients with a loop over its samples, and writes a
picture if a file is given. It ends with an error if a result is not as good as it should be. No epsilon is claimed for DP-SGD:
that takes a privacy accountant, such as the one in Opacus, and a cryptographic source of noise.
"""

import argparse
import copy
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy, linear

import fullgrad

BITS = 4
STEPS = 2**BITS - 1  # between the lowest and the highest of the 2^4 levels
WIDTHS = (64, 128, 64, 10)  # 8 x 8 pixels in, ten digits out
EPOCHS = 50
LABEL_SMOOTHING = 0.1  # so few digits are soon learnt by heart, and this holds the network back

BATCH = 64
LEARNING_RATE = 0.01  # Adam

# DP-SGD has its own: a large batch averages the noise away, and plain SGD does not rescale it as Adam would.
PRIVATE_BATCH = 256
PRIVATE_LEARNING_RATE = 0.5
MAX_NORM = 1.0
NOISE_MULTIPLIER = 1.0


# %%
# Three ways to quantize
# ----------------------


class Quantizer(NamedTuple):
    """The quantizers of a layer's input and of its weights, which are stored in [0, 1] and used in [-scale, scale]."""

    activation: Callable[[Tensor], Tensor]
    weight: Callable[[Tensor, float], Tensor]


def fullgrad_activation(x: Tensor) -> Tensor:
    return fullgrad.k_bit_quantize(fullgrad.clamp(x, 0.0, 1.0), BITS)


def fullgrad_weight(w: Tensor, scale: float) -> Tensor:
    return fullgrad.affine_k_bit_quantize(fullgrad.clamp(w, 0.0, 1.0), BITS, 2 * scale, -scale)


def torch_activation(x: Tensor) -> Tensor:
    return torch.round(torch.clamp(x, 0.0, 1.0) * STEPS) / STEPS


def torch_weight(w: Tensor, scale: float) -> Tensor:
    return 2 * scale * (torch.round(torch.clamp(w, 0.0, 1.0) * STEPS) / STEPS) - scale


def full_precision_activation(x: Tensor) -> Tensor:
    return torch.clamp(x, 0.0, 1.0)


def full_precision_weight(w: Tensor, scale: float) -> Tensor:
    return 2 * scale * w - scale


FULLGRAD = Quantizer(fullgrad_activation, fullgrad_weight)
TORCH = Quantizer(torch_activation, torch_weight)
FULL_PRECISION = Quantizer(full_precision_activation, full_precision_weight)


# %%
# The network
# -----------


class QuantizedLinear(nn.Module):
    """A linear layer that quantizes its input and its weights. The clamp of the input is the network's nonlinearity."""

    def __init__(self, inputs: int, outputs: int, quantizer: Quantizer) -> None:
        super().__init__()
        self.quantizer = quantizer
        # Wider than usual, since a sum of inputs from [0, 1] has to fill [0, 1] again.
        self.scale = 3.0 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.rand(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return linear(self.quantizer.activation(x), self.quantizer.weight(self.weight, self.scale), self.bias)


def make_network(quantizer: Quantizer) -> nn.Sequential:
    """A network in which every layer is quantized, the first and the last too; only the biases are not."""
    return nn.Sequential(*[QuantizedLinear(i, o, quantizer) for i, o in pairwise(WIDTHS)])


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of one sample, or the mean over a batch."""
    return cross_entropy(logits, labels, label_smoothing=LABEL_SMOOTHING)


def weight_gradient_norm(gradients: dict[str, Tensor]) -> float:
    """The norm of the gradient of all weights together. Biases do not count: no rounding follows the last one."""
    norms = [torch.linalg.vector_norm(g) for name, g in gradients.items() if name.endswith("weight")]
    return torch.linalg.vector_norm(torch.stack(norms)).item()


# %%
# Ordinary training
# -----------------


def shuffled_batches(samples: int) -> Iterator[Tensor]:
    """An epoch of batches of equal size."""
    order = torch.randperm(samples)
    for step in range(samples // BATCH):
        yield order[step * BATCH : (step + 1) * BATCH]


def ordinary_gradients(network: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The gradient of the mean loss of a batch."""
    parameters = dict(network.named_parameters())
    gradients = torch.autograd.grad(loss(network(images), labels), list(parameters.values()))
    return dict(zip(parameters, gradients, strict=True))


# %%
# Per-sample gradients and DP-SGD
# -------------------------------


def poisson_batches(samples: int) -> Iterator[Tensor]:
    """An epoch of batches that each sample joins independently, as the theory of DP-SGD assumes."""
    for _ in range(samples // PRIVATE_BATCH):
        yield torch.nonzero(torch.rand(samples) < PRIVATE_BATCH / samples).squeeze(1)


def per_sample_gradients(network: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The gradient of the loss of each sample: for a parameter of shape S and a batch of B, a tensor of shape (B, *S)."""

    def sample_loss(parameters: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        return loss(functional_call(network, parameters, (image,)), label)

    parameters = {name: p.detach() for name, p in network.named_parameters()}
    return vmap(grad(sample_loss), in_dims=(None, 0, 0))(parameters, images, labels)


def sample_norms(gradients: dict[str, Tensor]) -> Tensor:
    """The norm of each sample's gradient, over all parameters together."""
    norms = [torch.linalg.vector_norm(g.flatten(1), dim=1) for g in gradients.values()]
    return torch.linalg.vector_norm(torch.stack(norms), dim=0)


def clip_and_noise(gradients: dict[str, Tensor], norms: Tensor) -> dict[str, Tensor]:
    """Scale each sample's gradient down to ``MAX_NORM``, add them up, add noise, divide by the expected size of a batch."""
    factors = (MAX_NORM / norms).clamp(max=1.0)
    noised: dict[str, Tensor] = {}
    for name, g in gradients.items():
        clipped_sum = torch.einsum("b,b...->...", factors, g)
        noise = NOISE_MULTIPLIER * MAX_NORM * torch.randn_like(clipped_sum)
        noised[name] = (clipped_sum + noise) / PRIVATE_BATCH
    return noised


def check_against_loop(network: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """Compare per-sample gradients with a loop over the samples that differentiates each on its own, without ``torch.func``.

    Returns:
        The largest difference and the largest gradient.

    Raises:
        AssertionError: They differ by more than the rounding error of float64.
    """
    # The two sum in different orders. In float32, a value close to a half could then be rounded up here and down there.
    network, images = copy.deepcopy(network).double(), images.double()
    batched = per_sample_gradients(network, images, labels)
    looped = [ordinary_gradients(network, image, label) for image, label in zip(images, labels, strict=True)]
    differences: list[float] = []
    for name, gradients in batched.items():
        expected = torch.stack([sample[name] for sample in looped])
        torch.testing.assert_close(gradients, expected, rtol=1e-9, atol=1e-12)
        differences.append((gradients - expected).abs().max().item())
    return max(differences), max(g.abs().max().item() for g in batched.values())


# %%
# Training runs
# -------------


class Split(NamedTuple):
    """Training and test images, a pixel in [0, 1], with their labels."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


@dataclass(frozen=True)
class Variant:
    """A row of the table, a line of the picture."""

    name: str
    quantizer: Quantizer
    private: bool
    color: str  # of the Okabe-Ito palette
    dashes: str


ROUND = Variant("torch.round", TORCH, False, "#D55E00", ":")
ORDINARY = Variant("fullgrad", FULLGRAD, False, "#0072B2", "-")
PRIVATE = Variant("fullgrad, DP-SGD", FULLGRAD, True, "#009E73", "-.")
FULL = Variant("full precision", FULL_PRECISION, False, "#000000", "--")
VARIANTS = (ROUND, ORDINARY, PRIVATE, FULL)


@dataclass
class Run:
    """The results of one training run."""

    network: nn.Module
    seconds: float = 0.0
    accuracies: list[float] = field(default_factory=list)  # on the test set, after each epoch
    gradient_norms: list[float] = field(default_factory=list)  # of the weights, at each step, before clipping and noise
    sample_norms: list[Tensor] = field(default_factory=list)  # DP-SGD only: per-sample gradient norms of each epoch

    @property
    def accuracy(self) -> float:
        """The accuracy after the last epoch; the test set selects nothing."""
        return self.accuracies[-1]


def load(seed: int) -> Split:
    """The digits: three quarters to train, one quarter to test, with equal shares of every digit."""
    images, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(images / 16, labels, test_size=0.25, stratify=labels, random_state=seed)
    return Split(torch.tensor(train_x).float(), torch.tensor(train_y), torch.tensor(test_x).float(), torch.tensor(test_y))


def train(variant: Variant, seed: int, split: Split, on_epoch: Callable[[], None]) -> Run:
    """Train one variant from one seed. All variants of a seed start from the same weights."""
    torch.manual_seed(seed)
    run = Run(make_network(variant.quantizer))
    optimizer, scheduler = make_optimizer(run.network, variant.private)
    for _ in range(EPOCHS):
        start = time.perf_counter()
        train_epoch(run, variant.private, optimizer, split)
        scheduler.step()
        run.seconds += time.perf_counter() - start
        run.accuracies.append(accuracy_on_test(run.network, split))
        on_epoch()
    return run


def make_optimizer(network: nn.Module, private: bool) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    if private:
        optimizer = torch.optim.SGD(network.parameters(), PRIVATE_LEARNING_RATE, momentum=0.9)
    else:
        optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)


def train_epoch(run: Run, private: bool, optimizer: torch.optim.Optimizer, split: Split) -> None:
    samples = len(split.train_labels)
    norms_of_epoch: list[Tensor] = []
    for batch in poisson_batches(samples) if private else shuffled_batches(samples):
        images, labels = split.train_images[batch], split.train_labels[batch]
        if private:
            per_sample = per_sample_gradients(run.network, images, labels)
            norms = sample_norms(per_sample)
            norms_of_epoch.append(norms)
            run.gradient_norms.append(weight_gradient_norm({name: g.mean(0) for name, g in per_sample.items()}))
            gradients = clip_and_noise(per_sample, norms)
        else:
            gradients = ordinary_gradients(run.network, images, labels)
            run.gradient_norms.append(weight_gradient_norm(gradients))
        for name, p in run.network.named_parameters():
            p.grad = gradients[name]
        optimizer.step()
    if private:
        run.sample_norms.append(torch.cat(norms_of_epoch))


@torch.no_grad()
def accuracy_on_test(network: nn.Module, split: Split) -> float:
    return (network(split.test_images).argmax(1) == split.test_labels).double().mean().item()


def train_all(seeds: int, console: Console) -> dict[str, list[Run]]:
    """Train every variant from every seed, with a progress bar; return the runs of each variant in the order of the seeds."""
    runs: dict[str, list[Run]] = {variant.name: [] for variant in VARIANTS}
    columns = (BarColumn(), TextColumn("{task.percentage:3.0f}%"), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=seeds * len(VARIANTS) * EPOCHS)
        for seed in range(seeds):
            split = load(seed)
            for variant in VARIANTS:
                progress.update(task, description=f"{variant.name}, seed {seed}")
                runs[variant.name].append(train(variant, seed, split, lambda: progress.advance(task)))
        progress.update(task, description="trained")
    return runs


# %%
# Results
# -------


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def make_table(runs: dict[str, list[Run]]) -> Table:
    seeds = len(runs[FULL.name])
    table = Table(
        title=f"{BITS}-bit digits: {EPOCHS} epochs, {seeds} seed{'s' * (seeds > 1)}",
        caption="seconds: to train from one seed\ngradient norm: of all weights, mean over steps, before clip and noise",
    )
    table.add_column("variant")
    for heading in ("test accuracy", "worst seed", "seconds", "gradient norm"):
        table.add_column(heading, justify="right")
    for variant in VARIANTS:
        of_variant = runs[variant.name]
        table.add_row(
            variant.name,
            f"{mean([run.accuracy for run in of_variant]):.3f}",
            f"{min(run.accuracy for run in of_variant):.3f}",
            f"{mean([run.seconds for run in of_variant]):.1f}",
            f"{mean([mean(run.gradient_norms) for run in of_variant]):.3f}",
        )
    return table


def unmet_requirements(runs: dict[str, list[Run]]) -> list[str]:
    """The promises of this example that do not hold, in words; empty when all hold."""
    accuracies = {name: [run.accuracy for run in of_variant] for name, of_variant in runs.items()}
    unmet: list[str] = []

    def require(holds: bool, promise: str, found: float) -> None:
        if not holds:
            unmet.append(f"{promise}, got {found:.4f}")

    for seed, accuracy in enumerate(accuracies[ORDINARY.name]):
        require(accuracy >= 0.965, f"{ORDINARY.name}, seed {seed}: test accuracy must be at least 0.965", accuracy)
    for seed, accuracy in enumerate(accuracies[PRIVATE.name]):
        require(accuracy >= 0.90, f"{PRIVATE.name}, seed {seed}: test accuracy must be at least 0.90", accuracy)
    for seed, (accuracy, run) in enumerate(zip(accuracies[ROUND.name], runs[ROUND.name], strict=True)):
        require(accuracy <= 0.5, f"{ROUND.name}, seed {seed}: test accuracy must be far below, at most 0.5", accuracy)
        norm = max(run.gradient_norms)
        require(norm == 0.0, f"{ROUND.name}, seed {seed}: the gradient of the weights must be 0", norm)
    gap = mean(accuracies[FULL.name]) - mean(accuracies[ORDINARY.name])
    require(abs(gap) <= 0.015, f"{ORDINARY.name}: mean accuracy must be within 0.015 of full precision", gap)
    return unmet


def draw(runs: dict[str, list[Run]], path: Path | None) -> None:
    """Draw learning curves of all variants, and the per-sample gradient norms that DP-SGD clips."""
    figure = plt.figure(figsize=(11, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2, gridspec_kw={"wspace": 0.06})
    draw_curves(left, runs)
    draw_norms(right, runs[PRIVATE.name][0])
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    if path:
        figure.savefig(path, dpi=150)


def draw_curves(axes: Axes, runs: dict[str, list[Run]]) -> None:
    """Draw the test error on a logarithmic axis, where 2% and 5% are as far apart as 20% and 50%."""
    epochs = range(1, EPOCHS + 1)
    for variant in VARIANTS:
        errors = 100 * (1 - torch.tensor([run.accuracies for run in runs[variant.name]], dtype=torch.float64))
        axes.plot(epochs, errors.mean(0), variant.dashes, color=variant.color, linewidth=2, label=variant.name)
        axes.fill_between(epochs, errors.amin(0), errors.amax(0), color=variant.color, alpha=0.15, linewidth=0)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(FixedLocator([1, 2, 5, 10, 20, 50, 100]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}%")
    axes.set(xlabel="epoch", ylabel="test error", title="Learning curves: mean and range over the seeds")
    axes.set(xlim=(1, EPOCHS), ylim=(0.4, 130))
    axes.grid(axis="y", alpha=0.3)
    axes.legend(frameon=False, loc="center right", bbox_to_anchor=(1.0, 0.75))


def draw_norms(axes: Axes, run: Run) -> None:
    """Draw two histograms with common bins on a logarithmic axis."""
    first, last = run.sample_norms[0], run.sample_norms[-1]
    both = torch.cat([first, last]).log10()
    bins = torch.logspace(both.min().item(), both.max().item(), 41).tolist()
    for norms, label, color in ((first, "first epoch", "#E69F00"), (last, "last epoch", PRIVATE.color)):
        axes.hist(norms.tolist(), bins, color=color, alpha=0.6, label=label)
    axes.axvline(MAX_NORM, color="black", linestyle="--", label=f"clipped to {MAX_NORM:g}")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="norm of a sample's gradient", ylabel="samples", title=f"What is clipped in {PRIVATE.name}, seed 0")
    axes.legend(frameon=False)


def main() -> None:
    parser = argparse.ArgumentParser(description="4-bit digits with declared gradients, and per-sample gradients by vmap(grad).")
    parser.add_argument("--output", type=Path, help="where to write the picture")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds to train from")
    arguments = parser.parse_args()
    if arguments.seeds < 1:
        parser.error("--seeds must be at least 1")

    # Tensors this small are not worth the coordination of a second thread.
    torch.set_num_threads(1)
    console = Console(width=None if sys.stdout.isatty() else 100)
    runs = train_all(arguments.seeds, console)
    console.print(make_table(runs))

    split = load(seed=0)
    images, labels = split.train_images[:BATCH], split.train_labels[:BATCH]
    difference, gradient = check_against_loop(runs[PRIVATE.name][0].network, images, labels)
    found = f"(largest difference {difference:.1e}, largest gradient {gradient:.2g})"
    console.print(f"per-sample gradients of one batch of {BATCH} equal a loop over its samples {found}", soft_wrap=True)

    draw(runs, arguments.output)
    if arguments.output:
        console.print(f"wrote {arguments.output}")

    unmet = unmet_requirements(runs)
    if unmet:
        raise AssertionError("\n".join(unmet))


# %%
# On the left of the picture, the test error of every variant. On the right, the norms of per-sample gradients in DP-SGD, in its
# first and its last epoch: what lies beyond the dashed line is clipped.

if __name__ == "__main__":
    main()
