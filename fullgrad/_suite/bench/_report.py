"""The results as a dictionary for a file, and as tables in Markdown."""

import datetime
import pathlib
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch

import fullgrad
from fullgrad._dispatch import DISPATCH
from fullgrad._suite.bench._comparison import COMPOSITE, FLOOR, PEER, PLAIN, Result
from fullgrad._suite.bench._measure import AGREEMENT_LIMIT, DOUBT_LIMIT

RIVALS = (PLAIN, COMPOSITE, PEER, FLOOR)
VERDICTS = {True: "yes", False: "no", None: "unclear"}


def environment(device: str, command: str) -> dict[str, Any]:
    """The machine and the software of a measurement."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "command": command,
        "device": _cpu() if device == "cpu" else torch.cuda.get_device_name(device),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fullgrad": fullgrad.__version__,
        "dispatch": DISPATCH,
    }


def as_dict(result: Result) -> dict[str, Any]:
    """Times in seconds, memory in bytes per element."""
    c, verdicts = result.comparison, result.verdicts()
    return {
        "operator": c.operator,
        "what": c.what,
        "n": c.n,
        "dtype": c.dtype,
        "ours": asdict(result.ours),
        "rivals": {
            who: asdict(times)
            | {"ratio": asdict(result.ratio(who)) | {"contradictory": result.ratio(who).contradictory}}
            | ({"target": c.targets[who], "holds": verdicts[who]} if who in c.targets else {})
            for who, times in result.rivals.items()
        },
        "saved": dict(c.saved),
        "peaks": dict(result.peaks),
    }


def operators_table(rows: Sequence[dict[str, Any]]) -> Iterator[list[str]]:
    """A header, and a row for each measured call: our time, and its ratio to each rival's, of minima and of medians."""
    targets = [r for r in rows if any("target" in v for v in r["rivals"].values())]
    rows = [r for r in rows if r not in targets]
    found = [who for who in RIVALS if any(who in r["rivals"] for r in rows)]
    saves, peaks = any(r["saved"] for r in rows), any(r["peaks"] for r in rows)
    yield ["operator", "n", "dtype", "what", "ours", *[f"/ {who}" for who in found], *["saved"] * saves, *["peak"] * peaks]
    for r in rows:
        cells = [r["operator"], f"{r['n']:,}", r["dtype"], r["what"], seconds(r["ours"]["minimum"])]
        cells += [ratio(r["rivals"][who]["ratio"]) if who in r["rivals"] else "" for who in found]
        for wanted, kept in ((saves, r["saved"]), (peaks, r["peaks"])):
            if wanted:
                numbers = [f"{kept[who]:.3g}" for who in ("ours", COMPOSITE) if who in kept]
                cells.append(" / ".join(numbers))
        yield cells


def targets_table(rows: Sequence[dict[str, Any]]) -> Iterator[list[str]]:
    """A header, and a row for each comparison with a single rival: the target, and whether it holds."""
    yield ["operator", "what", "n", "ours", "rival", "theirs", "ratio", "target", "holds"]
    for r in rows:
        for who, rival in r["rivals"].items():
            target = rival.get("target")
            yield [
                r["operator"],
                r["what"],
                f"{r['n']:,}",
                seconds(r["ours"]["minimum"]),
                who,
                seconds(rival["minimum"]),
                ratio(rival["ratio"]),
                "" if target is None else f"{target:.3g}",
                "" if target is None else VERDICTS[rival["holds"]],
            ]


def facts_table(rows: Sequence[dict[str, Any]]) -> Iterator[list[str]]:
    """A header, and a row for each fact."""
    yield ["what", "ours", "rival", "theirs", "ratio", "target", "holds"]
    for r in rows:
        numbers = [f"{r[who]:,.0f}" if r[who] >= 1000 else f"{r[who]:.3g}" for who in ("ours", "theirs")]
        ratio = f"{r['ours'] / r['theirs']:.2g}"
        yield [r["what"], numbers[0], r["rival"], numbers[1], ratio, f"{r['target']:.3g}", VERDICTS[r["holds"]]]


def markdown(table: Iterator[list[str]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(cells) + " |" for cells in table]
    return "\n".join([lines[0], "|" + "---|" * (lines[0].count("|") - 1), *lines[1:]]) + "\n"


def noise(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Warnings for the reader about noisy times."""
    ratios = [v["ratio"] for r in rows for v in r.get("rivals", {}).values()]
    noisy = sum(r["doubt"] > DOUBT_LIMIT for r in ratios)
    if noisy:
        yield (
            f"Noisy: {noisy} of {len(ratios)} ratios of medians (~) may be wrong by more than {DOUBT_LIMIT:.0%}, as the times of "
            "some calls differ. The verdicts allow for it; `--seconds` measures longer."
        )
    contradictory = sum(r["contradictory"] for r in ratios)
    if contradictory:
        yield (
            f"Contradictory: {contradictory} ratios (?) of minimal times and of medians differ by a factor beyond "
            f"{AGREEMENT_LIMIT}: the machine is too noisy to tell."
        )


def seconds(value: float) -> str:
    """A time in a suitable unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"


def ratio(r: dict[str, Any]) -> str:
    """The ratios of minima and of medians, marked if they are noisy or contradict each other."""
    mark = "?" if r["contradictory"] else "~" if r["doubt"] > DOUBT_LIMIT else ""
    digits = ".2f" if r["of_minima"] >= 0.1 else ".2g"
    return f"{r['of_minima']:{digits}} / {r['of_medians']:{digits}}{mark}"


def _cpu() -> str:
    """The name of the processor's model, if the system reports it; Python reports the architecture only."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{models[0] if models else platform.processor()}, {torch.backends.cpu.get_cpu_capability()}"
