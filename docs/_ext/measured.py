"""The picture of the benchmarks, drawn from the runs in ``benchmarks/``."""

import importlib.util
import statistics
from pathlib import Path

from matplotlib import pyplot
from pictures import COLORS, GRAY

ROOT = Path(__file__).parents[2]


def draw() -> None:
    """Draw the ratios of the overview as the current figure of pyplot: a row of dots for each comparison."""
    spec = importlib.util.spec_from_file_location("page", ROOT / "benchmarks" / "page.py")
    assert spec is not None
    assert spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    rows = page.overview_ratios(page.runs())
    _, axes = pyplot.subplots(figsize=(7.6, 3.6), layout="constrained")
    for i, (title, ratios) in enumerate(rows.items()):
        medians = sorted(ratio["of_medians"] for ratio in ratios)
        heights = [i + 0.22 * ((7 * j) % 11 - 5) / 5 for j in range(len(medians))]  # apart, the same in every build
        color = COLORS["smooth" if title.endswith("composite") else "c0"]
        axes.plot(medians, heights, "o", color=color, markersize=3.5, alpha=0.5, markeredgewidth=0)
        axes.plot([statistics.median(medians)] * 2, [i - 0.36, i + 0.36], color=color, linewidth=2.5)
    axes.axvline(1, color=GRAY, linewidth=1)
    axes.set_xscale("log")
    axes.set_xlim(0.01, 6)
    axes.set_xticks([0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 4], ["0.01", "0.05", "0.1", "0.25", "0.5", "1", "2", "4"])
    axes.set_xticks([], minor=True)
    axes.set_yticks(range(len(rows)), [*rows])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("time of fullgrad / time of the other way")
