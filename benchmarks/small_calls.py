"""Running times of single operators next to those of their rivals: ``python -m benchmarks.small_calls``.

Each rival is written as its users write it, and runs the very statement that ours runs. Times do not gate: the exit status is 0
whatever they are, and the table says which targets hold. ``--json FILE`` keeps the numbers, ``--quick`` gives a first impression.
"""

import argparse
import datetime
import json
import pathlib
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import fullgrad
from benchmarks._measure import AGREEMENT_LIMIT, CLOCK, SPREAD_LIMIT, Case, Ratio, Times, measure, ratio, saved_bytes
from fullgrad._machinery import LANE

try:
    from spikingjelly.activation_based import quantize as spikingjelly
except ImportError:
    spikingjelly = None

SMALL = 16
BATCH = (64, 256)
LARGE = 4_000_000
FORWARD_BACKWARD = "forward+backward"

Operator = Callable[..., Any]


class _Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.round(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


def old_style_round(x: Tensor) -> Tensor:
    """The straight-through estimator as most people write it."""
    return _Round.apply(x)


@dataclass(frozen=True)
class Rival:
    """Another implementation. The target is the largest ratio of our time to its time; None where there is no target."""

    name: str
    function: Operator
    target: float | None = None


@dataclass(frozen=True)
class Row:
    """One comparison. The last two are bytes per element saved beyond input and output, where they were asked for."""

    operator: str
    what: str
    rival: str
    target: float | None
    ours: Case
    theirs: Case
    ours_saved: float | None = None
    theirs_saved: float | None = None


@dataclass(frozen=True)
class Result:
    """A comparison and what was measured."""

    row: Row
    ours: Times
    theirs: Times
    ratio: Ratio

    @property
    def holds(self) -> bool | None:
        """Whether the target holds; None where there is none, or where these times cannot tell."""
        return None if self.row.target is None else self.ratio.at_most(self.row.target)


def small_rows() -> list[Row]:
    """16 elements: what a call costs, whatever it computes. Without a gradient, with one, and there and back."""
    x, g = torch.randn(SMALL), torch.randn(SMALL)
    names = {"x": x.clone().requires_grad_(), "g": g, "grad": torch.autograd.grad}

    def rows(operator: str, call: str, ours: Operator, rivals: list[Rival]) -> list[Row]:
        untargeted = [Rival(rival.name, rival.function) for rival in rivals]
        return [
            *_compare(operator, f"n={SMALL} no gradient", call, {"x": x}, ours, untargeted),
            *_compare(operator, f"n={SMALL} forward", call, names, ours, untargeted),
            *_compare(operator, f"n={SMALL} {FORWARD_BACKWARD}", f"grad({call}, x, g)", names, ours, rivals),
        ]

    relu, old_style = Rival("torch.relu", torch.relu, 1.15), Rival("old-style Function", old_style_round, 1.0)
    clamp = Rival("torch.clamp", torch.clamp, 1.1)
    return [
        *rows("round", "f(x)", fullgrad.round, [relu, old_style, *_spikingjelly("round", 1.0)]),
        *rows("clamp", "f(x, -1.0, 1.0)", fullgrad.clamp, [clamp, *_spikingjelly("clamp", 0.75)]),
    ]


def transform_rows() -> list[Row]:
    """Under torch.func. The transform is made once, as for a training loop; gradients are those of a sum, per row under vmap."""
    names = {"x": torch.randn(BATCH), "t": torch.randn(BATCH), "jvp": torch.func.jvp}
    vmap, grad = torch.func.vmap, torch.func.grad

    def rows(operator: str, ours: Operator, name: str, rival: Operator, target: float) -> list[Row]:
        def compare(
            what: str, statement: str, transform: Callable[[Operator], Operator], target: float | None = None
        ) -> list[Row]:
            size = "x".join(map(str, BATCH))
            return _compare(
                operator, f"{what} {size}", statement, names, transform(ours), [Rival(name, transform(rival), target)]
            )

        return [
            *compare("vmap", "f(x)", vmap),
            *compare("grad", "f(x)", lambda f: grad(lambda x: f(x).sum())),
            *compare("vmap(grad)", "f(x)", lambda f: vmap(grad(lambda x: f(x).sum())), target),
            *compare("jvp", "jvp(f, (x,), (t,))", lambda f: f),
        ]

    def unit(f: Operator) -> Operator:
        return lambda x: f(x, -1.0, 1.0)

    return [
        *rows("round", fullgrad.round, "torch.relu", torch.relu, 1.25),
        *rows("clamp", unit(fullgrad.clamp), "torch.clamp", unit(torch.clamp), 1.05),
    ]


def large_rows() -> list[Row]:
    """4 million elements: passes over memory, and what is kept between forward and backward."""
    wide, g = torch.rand(LARGE).mul_(4).sub_(2).requires_grad_(), torch.randn(LARGE)
    unit = torch.rand(LARGE, requires_grad=True)

    def rows(operator: str, call: str, x: Tensor, ours: Operator, rivals: list[Rival]) -> list[Row]:
        names = {"x": x, "g": g, "grad": torch.autograd.grad}
        return _compare(operator, f"n=4M {FORWARD_BACKWARD}", f"grad({call}, x, g)", names, ours, rivals, saved_by=call)

    relu, clamp = Rival("torch.relu", torch.relu), Rival("torch.clamp", torch.clamp, 0.15)
    return [
        *rows("round", "f(x)", wide, fullgrad.round, [relu, *_spikingjelly("round")]),
        *rows("clamp", "f(x, -1.0, 1.0)", wide, fullgrad.clamp, [clamp, *_spikingjelly("clamp", 0.45)]),
        *rows("step_quantize", "f(x, 0.25)", wide, fullgrad.step_quantize, _spikingjelly("step_quantize", 0.75)),
        *rows("k_bit_quantize", "f(x, 4)", unit, fullgrad.k_bit_quantize, _spikingjelly("k_bit_quantize", 0.75)),
    ]


def _compare(
    operator: str,
    what: str,
    statement: str,
    names: dict[str, Any],
    ours: Operator,
    rivals: list[Rival],
    saved_by: str | None = None,
) -> list[Row]:
    """One row per rival. ``f`` in the statement is what is compared; ``saved_by`` is the forward whose saving is counted."""

    def saved(f: Operator) -> float | None:
        if saved_by is None:
            return None
        return saved_bytes(Case(saved_by, names | {"f": f}), [names["x"]]) / names["x"].numel()

    case, ours_saved = Case(statement, names | {"f": ours}), saved(ours)
    return [
        Row(operator, what, r.name, r.target, case, Case(statement, names | {"f": r.function}), ours_saved, saved(r.function))
        for r in rivals
    ]


def _spikingjelly(name: str, target: float | None = None) -> list[Rival]:
    """spikingjelly's operator of this name, where the package is installed."""
    return [] if spikingjelly is None else [Rival("spikingjelly", getattr(spikingjelly, name), target)]


def run(quick: bool) -> list[Result]:
    """Measure every row. Small and large calls take turns among themselves only: a large one empties the caches."""
    results: list[Result] = []
    for rows, rounds in ((small_rows(), 400), (transform_rows(), 400), (large_rows(), 80)):
        cases = list(dict.fromkeys(case for row in rows for case in (row.ours, row.theirs)))
        times = measure(cases, rounds // 8 if quick else rounds, block=1e-3)
        results += [Result(r, times[r.ours], times[r.theirs], ratio(times[r.ours], times[r.theirs])) for r in rows]
    return results


def show(results: list[Result], console: Console) -> None:
    """Print the table, the targets that do not hold, and a warning where the machine was too noisy."""
    table = Table(
        title=f"fullgrad {fullgrad.__version__} on torch {torch.__version__}, {_cpu()}, one thread",
        caption="us: least time of a call. ratio: of the least times / of the medians. saved: bytes per element, ours / rival",
    )
    for heading in ("operator", "what", "ours us", "rival", "rival us", "ratio", "target", "holds", "saved"):
        table.add_column(heading, no_wrap=True, justify="left" if heading in ("operator", "what", "rival", "holds") else "right")
    verdicts = {True: "[green]yes[/]", False: "[red]no[/]", None: "[yellow]unclear[/]"}
    above: Row | None = None
    for result in results:
        row, r = result.row, result.ratio
        same_operator = above is not None and row.operator == above.operator
        if above is not None and not same_operator:
            table.add_section()
        table.add_row(
            "" if same_operator else row.operator,
            "" if above is not None and same_operator and row.what == above.what else row.what,
            f"{result.ours.minimum * 1e6:.2f}",
            row.rival,
            f"{result.theirs.minimum * 1e6:.2f}",
            f"{r.of_minima:.2f} / {r.of_medians:.2f}{'?' if r.contradictory else '~' if r.noisy else ' '}",
            "" if row.target is None else f"{row.target:.2f}",
            "" if row.target is None else verdicts[result.holds],
            "" if row.ours_saved is None else f"{row.ours_saved:.0f} / {row.theirs_saved:.0f}",
        )
        above = row
    console.print(table)

    targets = [result for result in results if result.row.target is not None]
    console.print(f"{sum(result.holds is True for result in targets)} of {len(targets)} targets hold.", highlight=False)
    for word, verdict in (("Does not hold", False), ("Unclear", None)):
        for result in targets:
            if result.holds is verdict:
                row = result.row
                console.print(f"{word}: {row.operator}, {row.what}, at most {row.target} x {row.rival}.", highlight=False)
    noisy = sum(result.ratio.noisy for result in results)
    if noisy:
        console.print(
            f"[yellow]Noisy:[/] in {noisy} of {len(results)} rows (~) the interquartile range of the times is beyond "
            f"{SPREAD_LIMIT:.0%} of the median. The verdicts allow for it; run again when nothing else runs.",
            highlight=False,
        )
    contradictory = sum(result.ratio.contradictory for result in results)
    if contradictory:
        console.print(
            f"[red]Contradictory:[/] in {contradictory} rows (?) the two ratios differ by a factor beyond {AGREEMENT_LIMIT}: "
            "do not quote them, run again.",
            highlight=False,
        )
    if spikingjelly is None:
        console.print("spikingjelly is not installed: its rows are left out.")


def as_json(results: list[Result]) -> dict[str, Any]:
    """The numbers, times in seconds, and where they were measured."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
        "clock": CLOCK.__name__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fullgrad": fullgrad.__version__,
        "lane": LANE,
        "spread_limit": SPREAD_LIMIT,
        "rows": [
            {
                "operator": result.row.operator,
                "what": result.row.what,
                "rival": result.row.rival,
                "target": result.row.target,
                "holds": result.holds,
                "ratio": asdict(result.ratio),
                "ours": asdict(result.ours) | {"saved_bytes_per_element": result.row.ours_saved},
                "theirs": asdict(result.theirs) | {"saved_bytes_per_element": result.row.theirs_saved},
            }
            for result in results
        ],
    }


def _cpu() -> str:
    """The model's name, where the system tells it; Python knows the architecture only."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{models[0] if models else platform.processor()}, {torch.backends.cpu.get_cpu_capability()}"


def main() -> None:
    """Measure, print, and write the file that was asked for."""
    parser = argparse.ArgumentParser(description="Running times of single operators next to those of their rivals.")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the numbers to this file")
    parser.add_argument("--quick", action="store_true", help="an eighth of the repetitions")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    results = run(arguments.quick)
    # Where the output is kept, the table keeps its width.
    show(results, Console(width=None if sys.stdout.isatty() else 130))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(as_json(results), indent=1) + "\n")


if __name__ == "__main__":
    main()
