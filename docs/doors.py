"""The pictures of the README and the landing page, one for each door: ``python docs/doors.py``, a minute on one core.

``digits``: the network of ``examples/digits.py``, 4 bits in every layer, with torch's rounding, with ours, and without rounding.
``norm``: the second derivative of a layer norm in forward mode, by torch alone and inside `completing`.
``solver``: the solution of Kepler's equation by scipy, and its derivatives. ``python docs/doors.py solver`` draws one of them.
"""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from torch.func import grad, jvp, vmap

import fullgrad

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext")]

from pictures import COLORS, GRAY, STYLE  # noqa: E402

SEEDS = 3
LINES = {"full precision": (GRAY, "--"), "fullgrad": (COLORS["smooth"], "-"), "torch.round": (COLORS["c0"], "-")}
HEIGHTS = {"full precision": 76, "fullgrad": 88, "torch.round": 20}
WORDS = {"full precision": "32 bits", "fullgrad": "4 bits, fullgrad.round", "torch.round": "4 bits, torch.round"}


def accuracies() -> dict[str, Tensor]:
    """The accuracy on test images by epoch, for each seed."""
    spec = importlib.util.spec_from_file_location("digits", HERE.parent / "examples" / "digits.py")
    digits = sys.modules["digits"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(digits)
    torch.set_num_threads(1)
    variants = [variant for variant in digits.VARIANTS if variant.name in LINES]
    found = {
        variant.name: [digits.train(variant, seed, digits.load(seed), lambda: None).accuracies for seed in range(SEEDS)]
        for variant in variants
    }
    return {name: 100 * torch.tensor(rows, dtype=torch.float64) for name, rows in found.items()}


def digits(found: dict[str, Tensor] | None = None) -> Figure:
    """Accuracies by epoch, with their words beside them."""
    found = accuracies() if found is None else found
    figure, axes = panel("Accuracy on handwritten digits, mean and range of three seeds", xlabel="epoch")
    for name, (color, dashes) in LINES.items():
        rows = found[name]
        epochs = torch.arange(1, rows.shape[1] + 1)
        axes.plot(epochs, rows.mean(0), dashes, color=color, linewidth=2.5 if name == "fullgrad" else 1.8)
        axes.fill_between(epochs, rows.amin(0), rows.amax(0), color=color, alpha=0.2, linewidth=0)
        last = rows[:, -1].mean().item()
        axes.annotate(f"{WORDS[name]}: {last:.1f}%", (len(epochs) - 1, HEIGHTS[name]), color=color, ha="right", va="center")
    axes.set(xlim=(1, len(epochs)), ylim=(0, 103))
    axes.set_yticks([0, 25, 50, 75, 100], ["0", "", "50%", "", "100%"])
    return figure


def second_derivatives(t: Tensor) -> dict[str, Tensor]:
    """The second derivative of a layer norm along a line: by torch in forward mode, inside `completing`, and by differences."""
    layer = torch.nn.LayerNorm(4, dtype=torch.float64)
    start = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)
    direction = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)

    def f(t: Tensor) -> Tensor:
        return layer(start + t * direction)[0]

    def second(t: Tensor) -> Tensor:
        one = torch.ones_like(t)
        return jvp(lambda t: jvp(f, (t,), (one,))[1], (t,), (one,))[1].detach()

    torch_alone = vmap(second)(t)
    with fullgrad.completing():
        inside = vmap(second)(t)
    step = 1e-4
    differences = vmap(lambda t: (f(t + step) - 2 * f(t) + f(t - step)) / step**2)(t).detach()
    return {"torch": torch_alone, "fullgrad": inside, "differences": differences}


def norm() -> Figure:
    """Two curves, and the dots on which the right one lies."""
    t = torch.linspace(-8, 12, 201, dtype=torch.float64)
    found = second_derivatives(t)
    figure, axes = panel("Second derivative of a layer norm along a line, jvp of jvp", xlabel="distance along the line")
    axes.plot(t, found["torch"], color=COLORS["c0"])
    axes.plot(t, found["fullgrad"], color=COLORS["smooth"], linewidth=2.5)
    axes.plot(t[::10], found["differences"][::10], "o", color=GRAY, markersize=3.5)
    axes.annotate("torch alone", (-8, 0.05), color=COLORS["c0"])
    axes.annotate("fullgrad.completing()", (-8, -0.02), color=COLORS["smooth"])
    axes.annotate("differences of values", (-8, -0.04), color=GRAY)
    axes.set_yticks([-0.05, 0, 0.05])
    axes.set_xticks([-5, 0, 5, 10])
    return figure


def solutions(mean: Tensor, eccentricity: float = 0.5) -> tuple[Tensor, Tensor, Tensor]:
    """The eccentric anomaly by scipy, and its first and second derivative with respect to the mean anomaly."""
    from scipy.optimize import brentq

    def kepler(anomaly: Tensor, mean: Tensor) -> Tensor:
        return anomaly - eccentricity * torch.sin(anomaly) - mean

    @fullgrad.implicit.root(kepler)
    def solve(init: Tensor, mean: Tensor) -> float:
        return brentq(lambda z: kepler(torch.tensor(z, dtype=init.dtype), mean).item(), -4.0, 4.0, xtol=1e-14)

    init = mean.new_zeros(())
    first = grad(solve, 1)
    return tuple(vmap(f, (None, 0))(init, mean) for f in (solve, first, grad(first, 1)))


def solver() -> Figure:
    """The solution and its two derivatives."""
    mean = torch.linspace(-3, 3, 80, dtype=torch.float64)
    figure, axes = panel("Kepler's equation, solved by scipy: brentq inside implicit.root", xlabel="mean anomaly")
    value, first, second = solutions(mean)
    axes.plot(mean, value, color=GRAY, linestyle="--")
    axes.plot(mean, first, color=COLORS["smooth"], linewidth=2.5)
    axes.plot(mean, second, color=COLORS["c1"])
    axes.annotate("solution", (-2.9, -1.9), color=GRAY)
    axes.annotate("first derivative", (-2.9, 1.15), color=COLORS["smooth"])
    axes.annotate("second derivative", (2.9, -1.1), color=COLORS["c1"], ha="right")
    return figure


def panel(title: str, xlabel: str) -> tuple[Figure, Axes]:
    """A figure of one panel, small enough to be read on a phone."""
    figure = Figure(figsize=(5.6, 2.6), layout="constrained")
    axes = figure.subplots()
    axes.set(title=title, xlabel=xlabel)
    return figure, axes


PICTURES: dict[str, Callable[[], Figure]] = {"digits": digits, "norm": norm, "solver": solver}


def draw(name: str, *found: dict[str, Tensor]) -> Figure:
    """One of the pictures, in the style of all."""
    with rc_context({**STYLE, "font.size": 10}):
        figure = PICTURES[name](*found)
        figure.draw_without_rendering()
    return figure


if __name__ == "__main__":
    for name in sys.argv[1:] or PICTURES:
        with rc_context({**STYLE, "font.size": 10}):
            PICTURES[name]().savefig(HERE / "pictures" / f"{name}.svg", metadata={"Date": None})
