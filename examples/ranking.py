"""
A layer that keeps its best units, by rank
==========================================

A hidden layer of 32 units ranks them for every image and passes on the k best; the others are 0. What follows then needs k
numbers and their places, and no more, which is why the trained network is always used with exactly k. How to train it, on the
handwritten digits that scikit-learn ships? Four answers compete:

* ``torch``: keep exactly k, with torch's derivative. A unit that is not kept has no gradient, and may never come into play.
* ``soft``: keep every unit in part, by ``soft.rank`` and ``soft.less_equal``. The network learns to use what it will not have.
* ``soft, annealed``: the same, with a softness that falls to a hundredth while the network trains.
* ``straight-through``: ``rank_st`` and ``less_equal_st`` keep exactly k, and have the derivative of ``soft``.

Each has the same network, the same batches, and as many learning rates and softnesses to choose from; it chooses for each seed
by itself on a validation part, with exactly k units kept. ``vmap(grad)`` trains all networks of a learning rate at once: over
seeds, k and softness.

Run ``python examples/ranking.py --output ranking.png --seeds 5``, with scikit-learn, matplotlib and rich installed. It takes a
minute, and ends with an error if the straight-through derivative is not the best where few units are kept.
"""

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

import fullgrad

UNITS = 32
KEPT = (1, 2)  # k
SOFTNESSES = (0.04, 0.08)  # of the rank, relative to the spread of the units
LEARNING_RATES = (0.003, 0.01, 0.03)  # Adam, then down to 0 by a cosine
MORE_LEARNING_RATES = (0.01, 0.015, 0.02, 0.03, 0.05, 0.1)  # instead of a softness
STEPS, BATCH = 1000, 32
METHOD = "sigmoid"  # each pair of units is compared softly
Parameters = dict[str, Tensor]
Keep = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # of units, k, the softness of the rank, and that of the comparison


def keep_torch(units: Tensor, k: Tensor, softness: Tensor, of_comparison: Tensor) -> Tensor:
    return units * (units.argsort(dim=-1, descending=True).argsort(dim=-1) < k)


def keep_soft(units: Tensor, k: Tensor, softness: Tensor, of_comparison: Tensor) -> Tensor:
    rank = fullgrad.soft.rank(units, dim=-1, softness=softness, method=METHOD)
    return units * fullgrad.soft.less_equal(rank, k + 0.5, softness=of_comparison)


def keep_straight_through(units: Tensor, k: Tensor, softness: Tensor, of_comparison: Tensor) -> Tensor:
    rank = fullgrad.rank_st(units, dim=-1, softness=softness, method=METHOD)
    return units * fullgrad.less_equal_st(rank, k + 0.5, softness=of_comparison)


class Contestant(NamedTuple):
    """A row of the table, a line of the picture."""

    name: str
    keep: Keep
    softnesses: tuple[float, ...]
    rates: tuple[float, ...]
    last_softness: float  # after the last step, as a multiple of the first
    colour: str  # of the Okabe-Ito palette
    dashes: str


TORCH = Contestant("torch", keep_torch, (1.0,), MORE_LEARNING_RATES, 1.0, "#000000", ":")
SOFT = Contestant("soft", keep_soft, SOFTNESSES, LEARNING_RATES, 1.0, "#D55E00", "--")
ANNEALED = Contestant("soft, annealed", keep_soft, SOFTNESSES, LEARNING_RATES, 0.01, "#E69F00", "-.")
STRAIGHT_THROUGH = Contestant("straight-through", keep_straight_through, SOFTNESSES, LEARNING_RATES, 1.0, "#0072B2", "-")
CONTESTANTS = (TORCH, SOFT, ANNEALED, STRAIGHT_THROUGH)


def logits(p: Parameters, keep: Keep, images: Tensor, *how: Tensor) -> Tensor:
    return keep(images @ p["inner"] + p["thresholds"], *how) @ p["outer"] + p["bias"]


def initial(seed: int) -> Parameters:
    generator = torch.Generator().manual_seed(seed)
    inner, outer = torch.randn(64, UNITS, generator=generator) / 8, torch.randn(UNITS, 10, generator=generator)
    return {"inner": inner, "thresholds": torch.zeros(UNITS), "outer": outer, "bias": torch.zeros(10)}


class Part(NamedTuple):
    images: Tensor  # seed, sample, pixel
    labels: Tensor


def load(seeds: int) -> list[Part]:
    """Half of the digits to train, a sixth to choose, a third to judge: another split for each seed."""
    images, labels = load_digits(return_X_y=True)
    splits: list[list[Part]] = []
    for seed in range(seeds):
        x, test_x, y, test_y = train_test_split(images / 16, labels, test_size=600, stratify=labels, random_state=seed)
        x, valid_x, y, valid_y = train_test_split(x, y, test_size=300, stratify=y, random_state=seed)
        pairs = ((x, y), (valid_x, valid_y), (test_x, test_y))
        splits.append([Part(torch.tensor(a).float(), torch.tensor(b)) for a, b in pairs])
    return [Part(*map(torch.stack, zip(*parts, strict=True))) for parts in zip(*splits, strict=True)]


class Accuracies(NamedTuple):
    """By seed, k, softness and learning rate."""

    validation: Tensor  # with exactly k
    test: Tensor  # with exactly k
    as_trained: Tensor  # on the test part, as the last step of the training keeps units

    def chosen(self) -> list[Tensor]:
        """All three by seed and k, of the softness and learning rate that validation prefers."""
        best = self.validation.flatten(2).argmax(2, keepdim=True)
        return [accuracies.flatten(2).gather(2, best).squeeze(2) for accuracies in self]


def train(contestant: Contestant, parts: list[Part]) -> Accuracies:
    """All networks of a contestant at once, each with the same batches."""
    (images, labels), validation, test = parts
    axes = range(len(labels)), KEPT, contestant.softnesses, contestant.rates
    seed, k, softness, rate = torch.cartesian_prod(*[torch.tensor(axis, dtype=torch.float32) for axis in axes]).unbind(1)
    seed = seed.long()
    starts = [initial(s) for s in seed.tolist()]
    parameters = {name: torch.stack([start[name] for start in starts]) for name in starts[0]}
    mean, square = ({name: torch.zeros_like(p) for name, p in parameters.items()} for _ in range(2))

    def loss(p: Parameters, images: Tensor, labels: Tensor, *how: Tensor) -> Tensor:
        return cross_entropy(logits(p, contestant.keep, images, *how), labels)

    gradients = vmap(grad(loss))
    generator = torch.Generator().manual_seed(0)
    for step in range(1, STEPS + 1):
        batch = torch.randint(labels.shape[1], (BATCH,), generator=generator)
        factor = torch.full_like(softness, contestant.last_softness ** (step / STEPS))
        found = gradients(parameters, images[:, batch][seed], labels[:, batch][seed], k, factor * softness, factor)
        cosine = (1 + math.cos(math.pi * step / STEPS)) / 2
        for name, g in found.items():  # Adam, with a learning rate for each network
            mean[name].lerp_(g, 0.1)
            square[name].lerp_(g * g, 0.001)
            change = (mean[name] / (1 - 0.9**step)) / ((square[name] / (1 - 0.999**step)).sqrt() + 1e-8)
            parameters[name] -= cosine * rate.view(-1, *[1] * (g.ndim - 1)) * change

    def accuracy(keep: Keep, part: Part) -> Tensor:
        last = torch.full_like(softness, contestant.last_softness)
        digits = vmap(lambda p, images, *how: logits(p, keep, images, *how).argmax(-1))
        found = digits(parameters, part.images[seed], k, last * softness, last)
        return (found == part.labels[seed]).double().mean(-1).unflatten(0, [len(axis) for axis in axes])

    return Accuracies(accuracy(keep_torch, validation), accuracy(keep_torch, test), accuracy(contestant.keep, test))


def standard_error(x: Tensor) -> Tensor:
    """Of the mean over seeds."""
    return x.std(0) / len(x) ** 0.5 if len(x) > 1 else torch.full_like(x[0], torch.nan)


def draw(results: dict[str, Accuracies], path: Path) -> None:
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for place, c in enumerate(CONTESTANTS):
        _, exact, as_trained = results[c.name].chosen()
        for i, (k, marker) in enumerate(zip(KEPT, "os", strict=True)):
            x = i + 0.16 * (place - 1.5)
            left.plot([x] * len(exact), exact[:, i], marker, color=c.colour, alpha=0.4, markersize=5, linewidth=0)
            left.errorbar(x, exact[:, i].mean(), standard_error(exact)[i], color=c.colour, fmt="_", markersize=16, capsize=3, label=c.name if i == 0 else None)
            right.plot(as_trained[:, i], exact[:, i], marker, color=c.colour, alpha=0.7, linewidth=0, label=f"{c.name}, {k} kept")
    left.set_xticks(range(len(KEPT)), [f"{k} of {UNITS} units kept" for k in KEPT])
    left.set(ylabel="test accuracy", title="Exactly k units kept: seeds, their mean and its standard error")
    ends = [results[c.name].chosen()[1].min().item() for c in CONTESTANTS]
    right.axline((0.9, 0.9), slope=1, color="grey", linewidth=1)
    right.set(xlabel="test accuracy, with the units kept as in training", ylabel="test accuracy, exactly k units kept")
    right.set(title="What is lost where training and use differ")
    for axes in (left, right):
        axes.grid(axis="y", alpha=0.3)
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def main() -> int:
    parser = argparse.ArgumentParser(description="A layer that keeps its best units, by rank.")
    parser.add_argument("--output", type=Path, default=Path("ranking.png"), help="where to write the picture")
    parser.add_argument("--seeds", type=int, default=5, help="how many seeds to train from")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # tensors this small are not worth the coordination of a second thread
    parts = load(arguments.seeds)
    results: dict[str, Accuracies] = {}
    for c in CONTESTANTS:
        results[c.name] = train(c, parts)
    draw(results, arguments.output)
    table = Table(title=f"Digits, best of {UNITS} units kept: test accuracy over {arguments.seeds} seeds")
    table.add_column("trained by")
    for k in KEPT:
        table.add_column(f"k = {k}", justify="right")
        table.add_column("worst", justify="right")
    for name, a in results.items():
        test = a.chosen()[1]
        columns = zip(test.mean(0).tolist(), standard_error(test).tolist(), test.amin(0).tolist(), strict=True)
        table.add_row(name, *[cell for m, se, worst in columns for cell in (f"{m:.3f} ± {se:.3f}", f"{worst:.3f}")])
    Console().print(table)
    print(f"wrote {arguments.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
