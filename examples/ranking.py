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
import itertools
import sys
import time
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
KEPT = (1, 2, 4)  # k
SOFTNESSES = (0.03, 0.06, 0.12)  # of the rank, relative to the spread of the units
LEARNING_RATES = (0.01, 0.03, 0.1)  # Adam, then down to 0 by a cosine
STEPS, BATCH = 300, 32
METHOD = "sigmoid"  # each pair of units is compared softly
Parameters = dict[str, Tensor]
Keep = Callable[[Tensor, int, Tensor, Tensor], Tensor]  # of units, k, the softness of the rank, and that of the comparison


def keep_torch(units: Tensor, k: int, softness: Tensor, of_comparison: Tensor) -> Tensor:
    return units * (units.argsort(dim=-1, descending=True).argsort(dim=-1) < k)


def keep_soft(units: Tensor, k: int, softness: Tensor, of_comparison: Tensor) -> Tensor:
    rank = fullgrad.soft.rank(units, dim=-1, softness=softness, method=METHOD)
    return units * fullgrad.soft.less_equal(rank, k + 0.5, softness=of_comparison)


def keep_straight_through(units: Tensor, k: int, softness: Tensor, of_comparison: Tensor) -> Tensor:
    rank = fullgrad.rank_st(units, dim=-1, softness=softness, method=METHOD)
    return units * fullgrad.less_equal_st(rank, k + 0.5, softness=of_comparison)


class Contestant(NamedTuple):
    """A row of the table, a line of the picture."""

    name: str
    keep: Keep
    last_softness: float  # after the last step, as a multiple of the first
    colour: str  # of the Okabe-Ito palette
    dashes: str


TORCH = Contestant("torch", keep_torch, 1.0, "#000000", ":")
SOFT = Contestant("soft", keep_soft, 1.0, "#D55E00", "--")
ANNEALED = Contestant("soft, annealed", keep_soft, 0.01, "#E69F00", "-.")
STRAIGHT_THROUGH = Contestant("straight-through", keep_straight_through, 1.0, "#0072B2", "-")
CONTESTANTS = (TORCH, SOFT, ANNEALED, STRAIGHT_THROUGH)


def logits(p: Parameters, keep: Keep, k: int, images: Tensor, *softness: Tensor) -> Tensor:
    return keep(images @ p["inner"] + p["thresholds"], k, *softness) @ p["outer"] + p["bias"]


def initial(seed: int, k: int) -> Parameters:
    generator = torch.Generator().manual_seed(seed)
    inner = torch.randn(64, UNITS, generator=generator) / 8
    outer = torch.randn(UNITS, 10, generator=generator) / k**0.5
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

    def chosen(self, dims: int) -> tuple[Tensor, Tensor]:
        """On the test part, with exactly k and as trained: the choice, by validation, of the last ``dims`` dimensions."""
        flat = [a.flatten(-dims) for a in self]
        best = flat[0].argmax(-1, keepdim=True)
        return flat[1].gather(-1, best).squeeze(-1), flat[2].gather(-1, best).squeeze(-1)


def train(contestant: Contestant, k: int, rate: float, parts: list[Part]) -> list[Tensor]:
    """All networks of one k and one learning rate: the three accuracies, by seed and softness."""
    seeds = len(parts[0].labels)
    softnesses = SOFTNESSES if contestant is not TORCH else (1.0,)
    owner = torch.arange(seeds).repeat_interleave(len(softnesses))
    softness = torch.tensor(softnesses).repeat(seeds), torch.ones(len(owner))  # of the rank, and of the comparison: one rank
    starts = [initial(seed, k) for seed in owner.tolist()]
    parameters = {name: torch.stack([start[name] for start in starts]) for name in starts[0]}

    def loss(p: Parameters, images: Tensor, labels: Tensor, *softness: Tensor) -> Tensor:
        return cross_entropy(logits(p, contestant.keep, k, images, *softness), labels)

    gradients = vmap(grad(loss))
    optimizer = torch.optim.Adam(parameters.values(), rate)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    generator = torch.Generator().manual_seed(0)
    images, labels = parts[0]
    for step in range(STEPS):
        batch = torch.randint(labels.shape[1], (BATCH,), generator=generator)
        now = [s * contestant.last_softness ** (step / (STEPS - 1)) for s in softness]
        for name, g in gradients(parameters, images[:, batch][owner], labels[:, batch][owner], *now).items():
            parameters[name].grad = g
        optimizer.step()
        scheduler.step()

    def accuracy(keep: Keep, part: Part) -> Tensor:
        last = [s * contestant.last_softness for s in softness]
        digits = vmap(lambda p, images, *last: logits(p, keep, k, images, *last).argmax(-1))
        found = digits(parameters, part.images[owner], *last)
        return (found == part.labels[owner]).double().mean(-1).unflatten(0, (seeds, len(softnesses)))

    return [accuracy(keep_torch, parts[1]), accuracy(keep_torch, parts[2]), accuracy(contestant.keep, parts[2])]


def standard_error(x: Tensor) -> Tensor:
    """Of the mean over seeds."""
    return x.std(0) / len(x) ** 0.5 if len(x) > 1 else torch.full_like(x[0], torch.nan)


def draw(results: dict[str, Accuracies], path: Path) -> None:
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, _, _, colour, dashes in CONTESTANTS:
        curve(left, KEPT, results[name].chosen(2)[0], colour, dashes, name)
        if name != TORCH.name:
            exact, as_trained = (a[:, 0] for a in results[name].chosen(1))
            curve(right, SOFTNESSES, exact, colour, dashes, f"{name}, exactly {KEPT[0]} kept")
            if name == SOFT.name:
                curve(right, SOFTNESSES, as_trained, colour, ":", f"{name}, as trained")
    left.set(xscale="log", xlabel="units kept, of 32", ylabel="test accuracy", title="Exactly k units kept")
    left.set_xticks(KEPT, map(str, KEPT), minor=False)
    left.set_xticks([], minor=True)
    right.set(xscale="log", xlabel="softness of the rank", title=f"One unit kept, by softness")
    right.set_xticks(SOFTNESSES, map(str, SOFTNESSES), minor=False)
    right.set_xticks([], minor=True)
    for axes in (left, right):
        axes.grid(axis="y", alpha=0.3)
        axes.legend(frameon=False, loc="lower right")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def curve(axes: Axes, x: tuple[float, ...], y: Tensor, colour: str, dashes: str, label: str) -> None:
    """The mean over seeds, and its standard error."""
    axes.errorbar(x, y.mean(0), standard_error(y), color=colour, linestyle=dashes, linewidth=2, capsize=3, label=label)


def main() -> int:
    parser = argparse.ArgumentParser(description="A layer that keeps its best units, by rank.")
    parser.add_argument("--output", type=Path, default=Path("ranking.png"), help="where to write the picture")
    parser.add_argument("--seeds", type=int, default=5, help="how many seeds to train from")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # tensors this small are not worth the coordination of a second thread
    parts = load(arguments.seeds)
    results: dict[str, Accuracies] = {}
    for c in CONTESTANTS:
        t=time.time()
        runs = [torch.stack([torch.stack(train(c, k, rate, parts)) for rate in LEARNING_RATES], -1) for k in KEPT]
        results[c.name] = Accuracies(*torch.stack(runs, dim=2))
        print(c.name, time.time()-t, file=sys.stderr)
    draw(results, arguments.output)
    table = Table(title=f"Digits, best of {UNITS} units kept: test accuracy over {arguments.seeds} seeds")
    table.add_column("trained by")
    for k in KEPT:
        table.add_column(f"k = {k}", justify="right")
        table.add_column("worst", justify="right")
    for name, a in results.items():
        test = a.chosen(2)[0]
        columns = zip(test.mean(0).tolist(), standard_error(test).tolist(), test.amin(0).tolist(), strict=True)
        table.add_row(name, *[cell for m, se, worst in columns for cell in (f"{m:.3f} ± {se:.3f}", f"{worst:.3f}")])
    Console().print(table)
    print(f"wrote {arguments.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
