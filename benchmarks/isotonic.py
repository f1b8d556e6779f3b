"""Isotonic regression next to torchsort's C++ kernels: ``python -m benchmarks.isotonic``.

Both get the same sorted rows, (256, 1024) in float32: the regression alone, forward, one thread. torchsort is built when it is
installed and wants ``pip install torchsort --no-build-isolation``. The target is 10 times its time at most. Times do not gate:
the exit status is 0.
"""

import argparse
import sys
from collections.abc import Iterator

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks._measure import Case, measure, ratio
from fullgrad.soft.order._isotonic import isotonic, solve
from fullgrad.soft.order._numbers import wide

ROWS, N = 256, 1024
TARGET = 10.0


def inputs(softness: float) -> Iterator[tuple[str, Tensor, Tensor]]:
    """What soft sorts and soft ranks of normal and of uniform data regress on."""
    generator = torch.Generator().manual_seed(0)
    places = torch.linspace(1, 0, N).expand(ROWS, N).contiguous()
    normal = torch.randn(ROWS, N, generator=generator).sort(descending=True).values
    uniform = torch.rand(ROWS, N, generator=generator).sort(descending=True).values
    yield "sort, normal", places / softness, normal
    yield "sort, uniform", places / softness, uniform
    yield "rank, normal", normal / softness, places * (N - 1) + 1
    yield "rank, uniform", uniform / softness, places


def main() -> int:
    """Measure, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--modes", nargs="+", default=["c0", "smooth"], help="c1 and c2 have no rival")
    parser.add_argument("--softness", nargs="+", type=float, default=[0.001, 0.01, 0.1, 1.0, 10.0])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        import torchsort.isotonic_cpu as kernels  # type: ignore[import-not-found]
    except ImportError:
        kernels = None
        print("torchsort is not installed: no ratios.", file=sys.stderr)
    heads = ["rows", "softness", "mode", "rounds", "ours ms", "torchsort ms", "ratio", f"at most {TARGET:g}"]
    table, lines = Table(*heads), ["| " + " | ".join(heads) + " |", "| " + " | ".join("---" for _ in heads) + " |"]
    for softness in options.softness:
        for label, u, w in inputs(softness):
            for mode in options.modes:
                ours = Case("f(u, w, mode)", {"f": isotonic, "u": u, "w": w, "mode": mode})
                rival = None
                if kernels is not None and mode == "c0":
                    rival = Case("f(u - w)", {"f": kernels.isotonic_l2, "u": u, "w": w})
                if kernels is not None and mode == "smooth":
                    rival = Case("f(u, w)", {"f": kernels.isotonic_kl, "u": u, "w": w})
                times = measure([ours] if rival is None else [ours, rival], options.rounds, 0.02)
                row = [
                    label,
                    f"{softness:g}",
                    mode,
                    str(solve(wide(u), wide(w), mode).rounds),
                    f"{times[ours].minimum * 1e3:.1f}",
                ]
                if rival is None:
                    row += ["", "", ""]
                else:
                    r = ratio(times[ours], times[rival])
                    verdict = {True: "yes", False: "no", None: "unclear"}[r.at_most(TARGET)]
                    row += [f"{times[rival].minimum * 1e3:.1f}", f"{r.of_minima:.1f} / {r.of_medians:.1f}", verdict]
                table.add_row(*row)
                lines.append("| " + " | ".join(row) + " |")
    Console(stderr=True).print(table)
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
