"""Draws the pictures of docs/relaxations.md from the cases: ``python docs/draw.py``."""

import dataclasses
from pathlib import Path

import torch
from matplotlib.figure import Figure

from fullgrad._cases.soft import RELAXATIONS
from fullgrad._cli._plot import curves

HERE = Path(__file__).parent / "pictures"
COLOURS = {"smooth": "#0072B2", "c0": "#D55E00", "c1": "#009E73", "c2": "#CC79A7"}
SOFTNESS = 0.1
X = torch.linspace(-2.5, 2.5, 2001, dtype=torch.float64)


def main() -> None:
    """One picture per relaxation: value and two derivatives, in every mode."""
    variants = {}
    for case in RELAXATIONS:
        name, mode, *label = case.name.split(" ", 2)
        if name.startswith("soft.") and label in ([], ["gated"]):
            variants.setdefault("_".join([name.removeprefix("soft."), *label]), {})[mode] = case
    for name, modes in variants.items():
        figure = Figure(figsize=(10, 2.6), layout="constrained")
        panels = figure.subplots(1, 3)
        for mode, case in modes.items():
            case = dataclasses.replace(case, inputs=(*case.inputs[:-1], SOFTNESS))
            for axes, curve in zip(panels, curves(case, X), strict=True):
                axes.plot(X, curve, color=COLOURS[mode], linewidth=1.4, label=mode)
        for axes, title in zip(panels, ("value", "derivative", "second derivative"), strict=True):
            axes.set_title(title, fontsize="medium")
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
        panels[0].legend(frameon=False, fontsize="small")
        figure.savefig(HERE / f"{name}.png", dpi=80)


if __name__ == "__main__":
    main()
