"""
The gradient scales of a deep residual network, made flat
=========================================================

A residual block ``x + f(x)`` whose branch has gain 1 doubles the variance of its input, and on the way back that of the gradient:
both scales grow by sqrt(2) per block, in opposite directions. ``track_scales`` measures it, on 16 blocks and the handwritten
digits that scikit-learn ships. Two operators flatten the gradient of this plain network and leave every value as it is:

* ``scale_bwd``: after the stem and every block a fixed factor for the gradient, chosen from the scales of the plain network.
* ``scale_grad``: at the same places the gradient is divided by its largest absolute value.

The upper row of the picture has the scales of a batch at initialization. The lower row has the gradient scale of every sample by
itself, from ``vmap(grad)``, at initialization and with the weights of the trained plain network. A fixed factor leaves samples as
far apart as they were, and fits less well once the weights have changed. ``scale_grad`` under ``vmap`` normalizes each sample by
itself, so that hard and easy ones weigh the same. ``norm`` and ``head`` come after the last such place, where nothing differs.

No better training is claimed: on a batch a parameter's gradient keeps its direction, and to plain SGD its length is a learning
rate. Flat scales are useful where numbers have a narrow range, as in float8 (Blake et al., https://arxiv.org/abs/2303.11257).

Run ``python examples/scales.py --output scales.png``, with scikit-learn, matplotlib and rich installed. It takes a few seconds,
and ends with an error if a number is not as this page says.
"""

import argparse
import copy
import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib import pyplot as plt
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy, linear

import fullgrad

BLOCKS = 16
WIDTH = 64  # 8 x 8 pixels in, and as wide all the way
PLACES = BLOCKS + 1  # where the gradient may be scaled: after the stem and after every block
EPOCHS, BATCH, LEARNING_RATE = 10, 64, 3e-4  # Adam
MEASURED = 256  # images in a batch whose scales are measured
LOOPED = 8  # of these, compared with a loop
QUANTILES = torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)  # of samples
Place = Callable[[Tensor], Tensor]


# %%
# The network
# -----------


class Block(nn.Module):
    """The block ``x + f(x)``. The branch is not a module, so that a block is one point of the picture."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Parameter(nn.init.kaiming_normal_(torch.empty(WIDTH, WIDTH), nonlinearity="relu"))
        self.outer = nn.Parameter(nn.init.kaiming_normal_(torch.empty(WIDTH, WIDTH), nonlinearity="linear"))

    def forward(self, x: Tensor) -> Tensor:
        return x + linear(torch.relu(linear(x, self.inner)), self.outer)


class Network(nn.Module):
    """A residual network. The output of the stem and of each block passes a place that may change the gradient."""

    def __init__(self, places: list[Place]) -> None:
        super().__init__()
        self.places = places
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for place, following in zip(self.places, [*self.blocks, self.norm], strict=True):
            x = following(place(x))
        return self.head(x)


# %%
# Measuring scales
# ----------------


def train(network: nn.Module, images: Tensor, labels: Tensor) -> None:
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(labels)).split(BATCH):
            optimizer.zero_grad()
            cross_entropy(network(images[batch]), labels[batch]).backward()
            optimizer.step()


def batch_scales(network: nn.Module, images: Tensor, labels: Tensor) -> fullgrad.ModuleScales:
    """The scales of a batch, or of one sample without a batch dimension."""
    with fullgrad.track_scales(network) as scales:
        # The sum, not the mean: the gradient of a sample is then as large in a batch as by itself.
        torch.autograd.grad(cross_entropy(network(images), labels, reduction="sum"), list(network.parameters()))
    return scales


def sample_scales(network: nn.Module, images: Tensor, labels: Tensor) -> fullgrad.ModuleScales:
    """The scales of every sample by itself: each field holds one number per sample."""

    def sample_loss(parameters: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        return cross_entropy(functional_call(network, parameters, (image,)), label)

    parameters = {name: p.detach() for name, p in network.named_parameters()}
    with fullgrad.track_scales(network) as scales:
        vmap(grad(sample_loss), in_dims=(None, 0, 0))(parameters, images, labels)
    return scales


def stacked(scales: fullgrad.ModuleScales, field: str = "backward") -> Tensor:
    """The scales of all modules: the first dimension is depth, the second, if any, samples."""
    return torch.stack([torch.as_tensor(getattr(pair, field), dtype=torch.float64) for pair in scales.values()])


def difference_from_loop(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    """The largest relative difference of per-sample gradient scales from a loop over the samples, without ``vmap``."""
    # In float64: the two sum in different orders, and in float32 a ReLU near its threshold could be on here and off there.
    network, images = copy.deepcopy(network).double(), images.double()
    looped = [stacked(batch_scales(network, image, label)) for image, label in zip(images, labels, strict=True)]
    return (stacked(sample_scales(network, images, labels)) / torch.stack(looped, dim=1) - 1).abs().max().item()


class Measured(NamedTuple):
    """The scales of a variant with one set of weights."""

    batch: fullgrad.ModuleScales
    samples: fullgrad.ModuleScales
    ratio: float  # over all places, of the batch's largest gradient scale to the smallest
    spread: float  # at the first place, of the 95% quantile of the samples' gradient scales to the 5% quantile
    same_values: bool  # logits and forward scales are those of the plain network
    difference: float  # of per-sample scales from a loop


def measure(places: list[Place], plain: Network, images: Tensor, labels: Tensor) -> Measured:
    """Measure a variant with the weights that the plain network has now."""
    network = Network(places)
    network.load_state_dict(plain.state_dict())
    batch, samples = batch_scales(network, images, labels), sample_scales(network, images, labels)
    at_places = stacked(batch)[:PLACES]
    low, _, high = stacked(samples)[0].quantile(QUANTILES).tolist()
    same_scales = torch.equal(stacked(batch, "forward"), stacked(batch_scales(plain, images, labels), "forward"))
    same_values = same_scales and torch.equal(network(images), plain(images))
    difference = difference_from_loop(network, images[:LOOPED], labels[:LOOPED])
    return Measured(batch, samples, (at_places.max() / at_places.min()).item(), high / low, same_values, difference)


# %%
# Results
# -------


def draw(results: dict[str, tuple[Measured, Measured]], path: Path | None) -> None:
    figure = plt.figure(figsize=(14, 8), layout="constrained")
    grid = figure.subplots(2, len(results), sharex=True, sharey="row")
    for (name, (initial, trained)), upper, lower in zip(results.items(), *grid, strict=True):
        initial.batch.plot(upper).set(title=name, xlabel="", ylabel="")
        for stage, label, color, dashes in ((initial, "at initialization", "#D55E00", "-"), (trained, "trained", "black", "--")):
            low, median, high = stacked(stage.samples).quantile(QUANTILES, dim=1)
            lower.plot(range(len(median)), median, dashes, color=color, linewidth=2, label=label)
            lower.fill_between(range(len(median)), low, high, color=color, alpha=0.2, linewidth=0)
        lower.set(yscale="log", xlabel="module, in the order of execution")
        lower.tick_params("x", rotation=90, labelsize="small")
        lower.grid(alpha=0.3)
    grid[0, 0].set_ylabel("scale in a batch, at initialization")
    grid[1, 0].set_ylabel("gradient scale of a sample:\nmedian, and 5% to 95% of samples")
    grid[1, 0].legend(frameon=False)
    if path:
        figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description="The gradient scales of a deep residual network, made flat.")
    parser.add_argument("--output", type=Path, help="where to write the picture")
    output = parser.parse_args().output
    torch.set_num_threads(1)  # tensors this small are not worth the coordination of a second thread
    torch.manual_seed(0)
    pixels, labels = map(torch.tensor, load_digits(return_X_y=True))
    split = train_test_split(pixels.float() / 8 - 1, labels, stratify=labels, random_state=0)
    train_images, images, train_labels, labels = map(torch.as_tensor, split)
    measured = images[:MEASURED], labels[:MEASURED]
    plain = Network([nn.Identity()] * PLACES)
    # Chosen on training images, judged on test images. The last factor brings the gradient to scale 1, the others keep it there.
    chosen = stacked(batch_scales(plain, train_images[:MEASURED], train_labels[:MEASURED]))[:PLACES].tolist()
    fixed: list[Place] = [partial(fullgrad.scale_bwd, scale=after / before) for before, after in pairwise([*chosen, 1.0])]
    variants = {"plain": plain.places, "scale_bwd": fixed, "scale_grad": [fullgrad.scale_grad] * PLACES}
    initial = [measure(places, plain, *measured) for places in variants.values()]
    train(plain, train_images, train_labels)
    trained = [measure(places, plain, *measured) for places in variants.values()]
    results = dict(zip(variants, zip(initial, trained, strict=True), strict=True))
    draw(results, output)

    table = Table("", title="Gradient scales, stem to last block", caption="spread: 95% to 5% quantile of samples, at the stem")
    for heading in ("largest to smallest", "trained", "spread", "trained"):
        table.add_column(heading, justify="right")
    for name, (first, last) in results.items():
        table.add_row(name, *[f"{number:,.2f}" for number in (first.ratio, last.ratio, first.spread, last.spread)])
    Console(width=None if sys.stdout.isatty() else 100).print(table)
    growth = initial[0].ratio ** (1 / BLOCKS)
    accuracy = (plain(images).argmax(1) == labels).double().mean().item()
    difference = max(stage.difference for stage in initial + trained)
    print(f"plain: the gradient grows by {growth:.3f} per block at initialization; test accuracy {accuracy:.3f} after training")
    print(f"per-sample scales equal a loop over {LOOPED} samples (largest relative difference {difference:.1e})")
    if output:
        print(f"wrote {output}")
    promises = {
        "the values of all variants are equal": all(stage.same_values for stage in initial + trained),
        "per-sample scales equal a loop": all(stage.difference < 1e-9 for stage in initial + trained),
        "plain: the gradient grows by sqrt(2) per block": abs(growth / 2**0.5 - 1) < 0.1,
        "plain: the digits are learnt": accuracy > 0.9,
        "scale_bwd: equal scales at initialization": initial[1].ratio < 1.2,
        "scale_bwd: closer scales with trained weights": trained[1].ratio < trained[0].ratio / 20,
        "scale_bwd: samples as far apart": all(abs(s[1].spread / s[0].spread - 1) < 1e-3 for s in (initial, trained)),
        "scale_grad: scales and samples together": all(s[2].ratio < 5 and s[2].spread < 2 for s in (initial, trained)),
    }
    unmet = [promise for promise, kept in promises.items() if not kept]
    if unmet:
        raise AssertionError("not so: " + "; ".join(unmet))


# %%
# The picture has a column for each variant.

if __name__ == "__main__":
    main()
