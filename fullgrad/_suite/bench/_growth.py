"""Growth of time and memory with n: the exponent of the power law that fits, and the picture."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """The slope of the line through the points on a log-log plot, by least squares.

    Example:
        >>> round(exponent([10, 100, 1000], [2.0, 200.0, 20000.0]), 6)
        2.0
    """
    x, y = [math.log(n) for n in sizes], [math.log(c) for c in costs]
    a, b = sum(x) / len(x), sum(y) / len(y)
    return sum((u - a) * (v - b) for u, v in zip(x, y, strict=True)) / sum((u - a) ** 2 for u in x)


Row = dict[str, Any]


def curves(rows: Sequence[Row]) -> dict[tuple[str, str, str], tuple[list[int], list[float], list[float]]]:
    """Sizes, seconds, and peaks in bytes if measured, by operator, kind of measurement and author."""
    found: dict[tuple[str, str, str], tuple[list[int], list[float], list[float]]] = {}
    for r in rows:
        for who, times in {"ours": r["ours"], **r["rivals"]}.items():
            sizes, seconds, peaks = found.setdefault((r["operator"], f"{r['what']} {r['dtype']}", who), ([], [], []))
            sizes.append(r["n"])
            seconds.append(times["minimum"])
            if who in r["peaks"]:
                peaks.append(r["peaks"][who] * r["n"])
    return {key: curve for key, curve in found.items() if len(set(curve[0])) > 1}


def exponents(rows: Sequence[Row]) -> list[Row]:
    """The fitted exponents of every curve, over the larger half of the sizes: below it calls cost the same whatever n is."""
    fits = []
    for (operator, what, who), (sizes, seconds, peaks) in curves(rows).items():
        k = min(len(sizes) // 2, len(sizes) - 2)
        memory = exponent(sizes[k:], peaks[k:]) if len(peaks) == len(sizes) and min(peaks[k:]) > 0 else None
        fits.append({"operator": operator, "what": what, "who": who, "time": exponent(sizes[k:], seconds[k:]), "memory": memory})
    return fits


def draw(rows: Sequence[Row], file: Path, pyplot: Any) -> None:
    """Plot time, and memory if measured, against n on log-log axes, with the fitted exponents in the legend."""
    found, fitted = curves(rows), {(e["operator"], e["what"], e["who"]): e for e in exponents(rows)}
    both = any(peaks for _, _, peaks in found.values())
    figure, axes = pyplot.subplots(1, 1 + both, figsize=(5.2 * (1 + both), 5.4), layout="constrained", squeeze=False)
    styles = {"ours": "-", "composite": "--", "plain torch": ":", "floor": "-."}
    colors: dict[tuple[str, str], Any] = {}
    several = len({what for _, what, _ in found}) > 1
    for (operator, what, who), (sizes, seconds, peaks) in found.items():
        color = colors.setdefault((operator, what), f"C{len(colors) % 10}")
        fit = fitted[operator, what, who]
        for axis, costs, slope in zip(axes[0], (seconds, peaks), (fit["time"], fit["memory"]), strict=False):
            if len(costs) == len(sizes):
                power = "" if slope is None else f", $n^{{{slope:.2f}}}$"
                label = f"{operator}{f' {what}' * several}, {who}{power}"
                axis.plot(sizes, costs, styles.get(who, "--"), color=color, marker="o", markersize=3, label=label)
    for axis, title in zip(axes[0], ("seconds", "peak bytes"), strict=False):
        axis.set(xscale="log", yscale="log", xlabel="n", title=title)
        axis.grid(alpha=0.3)
        axis.legend(fontsize="x-small", loc="upper center", bbox_to_anchor=(0.5, -0.2), frameon=False)
    figure.savefig(file, dpi=120, bbox_inches="tight")
    pyplot.close(figure)
