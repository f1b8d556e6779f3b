"""The picture of the landing page: ``python docs/hero.py``, a minute on one core.

The network of ``examples/digits.py``, 4 bits in every layer, learns with torch's rounding and with ours, and without rounding.
"""

import importlib.util
import sys
from pathlib import Path

import torch
from matplotlib import rc_context
from matplotlib.figure import Figure

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext")]

from pictures import COLORS, GRAY, STYLE  # noqa: E402

SEEDS = 3
LINES = {"full precision": (GRAY, "--"), "fullgrad": (COLORS["smooth"], "-"), "torch.round": (COLORS["c0"], "-")}
HEIGHTS = {"full precision": 76, "fullgrad": 88, "torch.round": 20}
WORDS = {"full precision": "32 bits", "fullgrad": "4 bits, fullgrad.round", "torch.round": "4 bits, torch.round"}


def accuracies() -> dict[str, torch.Tensor]:
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


def draw(found: dict[str, torch.Tensor], path: Path) -> None:
    """The curves, with their words beside them: small enough to be read on a phone."""
    with rc_context({**STYLE, "font.size": 10}):
        figure = Figure(figsize=(5.6, 2.6), layout="constrained")
        axes = figure.subplots()
        for name, (color, dashes) in LINES.items():
            rows = found[name]
            epochs = torch.arange(1, rows.shape[1] + 1)
            axes.plot(epochs, rows.mean(0), dashes, color=color, linewidth=2.5 if name == "fullgrad" else 1.8)
            axes.fill_between(epochs, rows.amin(0), rows.amax(0), color=color, alpha=0.2, linewidth=0)
            last = rows[:, -1].mean().item()
            axes.annotate(f"{WORDS[name]}: {last:.1f}%", (len(epochs) - 1, HEIGHTS[name]), color=color, ha="right", va="center")
        axes.set(
            xlim=(1, len(epochs)),
            ylim=(0, 103),
            xlabel="epoch",
            title="Accuracy on handwritten digits, mean and range of three seeds",
        )
        axes.set_yticks([0, 25, 50, 75, 100], ["0", "", "50%", "", "100%"])
        figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    draw(accuracies(), HERE / "pictures" / "digits.svg")
