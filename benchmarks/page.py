"""Fill the tables of docs/benchmarks.md and docs/benchmarks/ with the runs in this folder: ``python benchmarks/page.py``.

A run is what ``python -m fullgrad bench … --json benchmarks/NAME.json`` wrote, reduced to what the tables show; it records its
command. A table of a page stands between ``<!-- NAME -->`` and ``<!-- end -->``.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fullgrad._suite.bench._measure import Ratio
from fullgrad._suite.bench._report import facts_table, markdown, ratio, seconds, targets_table
from fullgrad._suite.bench._softtorch import is_of_rows

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
PAGES = [DOCS / "benchmarks.md", *sorted(DOCS.glob("benchmarks/*.md"))]
GROWTH = DOCS / "pictures" / "growth.svg"

Row = dict[str, Any]


def runs() -> dict[str, Any]:
    """The runs by name."""
    return {file.stem: _expand(json.loads(file.read_text())) for file in sorted(HERE.glob("*.json"))}


# The rows and the rivals that the tables of a run show.
SHOWN: dict[str, tuple[tuple[Any, ...], tuple[str, ...]]] = {
    "small": (
        (*((16, what) for what in ("no gradient", "forward+backward")), *((16_384, what) for what in ("vmap(grad)", "jvp"))),
        ("plain torch", "composite", "peer"),
    ),
    "large": ((), ("composite", "peer", "floor")),
    "compiled": ((), ("plain torch", "composite", "peer")),
    "softtorch": ((), ("peer",)),
    "gpu": ((), ("plain torch", "composite", "floor")),
}
ROW = ("operator", "what", "n", "dtype", "ours", "rivals")


def summary(run: Any, name: str) -> Any:
    """The part of a run that the tables show."""
    kinds = {"targets": ("targets", "facts"), "growth": ("growth",)}.get(name, ("operators",))
    rows, rivals = SHOWN.get(name, ((), ()))
    return {
        "environment": run["environment"],
        **{kind: [_reduce(row, rivals) for row in run[kind] if not rows or (row["n"], row["what"]) in rows] for kind in kinds},
    }


def _reduce(row: Row, shown: tuple[str, ...]) -> Row:
    if "rivals" not in row:
        return _digits(row)
    rivals = {who: dict(rival) for who, rival in row["rivals"].items() if who in shown or not shown}
    for rival in rivals.values():
        ratio = rival["ratio"]
        rival["ratio"] = [ratio["of_minima"], ratio["of_medians"], round(ratio["spread"], 3), round(ratio["doubt"], 4)]
    kept = ("ratio",) if shown else ("minimum", "ratio", "target", "holds")
    rivals = {who: {key: rival[key] for key in kept if key in rival} for who, rival in rivals.items()}
    saved = {"saved": row["saved"]} if "floor" in shown else {}
    return _digits({key: row[key] for key in ROW} | saved | {"ours": {"minimum": row["ours"]["minimum"]}, "rivals": rivals})


def _digits(row: Row) -> Row:
    """The row with seven digits of each number; the tables show three."""
    return json.loads(json.dumps(row), parse_float=lambda digits: float(f"{float(digits):.7g}"))


def _expand(run: Any) -> Any:
    """Make the ratios of a run from the numbers of a summary."""
    for rival in [rival for kind in ("targets", "operators") for row in run.get(kind, ()) for rival in row["rivals"].values()]:
        if isinstance(rival["ratio"], list):
            ratio = Ratio(*rival["ratio"])
            rival["ratio"] = asdict(ratio) | {"contradictory": ratio.contradictory}
    return run


def dumps(run: Any) -> str:
    """The JSON of a run, with a line per row."""
    kinds = []
    for kind, rows in run.items():
        lines = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in rows) if isinstance(rows, list) else None
        kinds.append(f' "{kind}": ' + (f"[\n{lines}\n ]" if lines is not None else json.dumps(rows, ensure_ascii=False)))
    return "{\n" + ",\n".join(kinds) + "\n}\n"


def _lookup(rows: list[Row]) -> dict[tuple[str, int, str, str], Row]:
    return {(r["operator"], r["n"], r["dtype"], r["what"]): r for r in rows}


def _to(row: Row | None, rival: str) -> str:
    """The ratio to a rival, where there is one."""
    return ratio(row["rivals"][rival]["ratio"]) if row and rival in row["rivals"] else ""


def _operators(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(r["operator"] for r in rows))


def where(run: Any) -> str:
    """The command, date and machine of a run."""
    e = run["environment"]
    command = re.sub(r"(?<= bench )(?:'[^']*'|[^- ']+)(?: (?:'[^']*'|[^- ']+)){7,}", "NAMES", e["command"])  # a long list
    return f"`{command}`: {e['date']}, {e['device']}, one thread, torch {e['torch']}, Python {e['python']}.\n\n"


def small(run: Any) -> Iterator[list[str]]:
    """The cost of a call of 16 elements."""
    yield ["operator", "no gradient", "/ plain torch", "/ composite", "forward+backward", "/ composite", "/ peer"]
    found = _lookup(run["operators"])
    for name in _operators(run["operators"]):
        alone, there = (found.get((name, 16, "float32", what)) for what in ("no gradient", "forward+backward"))
        yield [
            name,
            seconds(alone["ours"]["minimum"]) if alone else "",
            _to(alone, "plain torch"),
            _to(alone, "composite"),
            seconds(there["ours"]["minimum"]) if there else "",
            _to(there, "composite"),
            _to(there, "peer"),
        ]


def transforms(run: Any) -> Iterator[list[str]]:
    """The times of per-sample gradients and forward mode."""
    yield ["operator", "vmap(grad)", "/ composite", "jvp", "/ composite"]
    found = _lookup(run["operators"])
    for name in _operators(run["operators"]):
        pair = [found.get((name, 16_384, "float32", what)) for what in ("vmap(grad)", "jvp")]
        yield [name, *[cell for r in pair for cell in (seconds(r["ours"]["minimum"]) if r else "", _to(r, "composite"))]]


def large(run: Any) -> Iterator[list[str]]:
    """The times of four million elements, forward and backward, in three precisions."""
    dtypes = list(dict.fromkeys(r["dtype"] for r in run["operators"]))
    yield ["operator", *[head for d in dtypes for head in (d, "/ composite", "/ floor")], "saved", "composite's"]
    found = _lookup(run["operators"])
    for name in _operators(run["operators"]):
        rows = [found.get((name, 4_000_000, d, "forward+backward")) for d in dtypes]
        cells = [
            cell
            for r in rows
            for cell in ((seconds(r["ours"]["minimum"]), _to(r, "composite"), _to(r, "floor")) if r else ("", "", ""))
        ]
        kept = rows[0]["saved"] if rows[0] else {}
        yield [name, *cells, *[f"{kept[who]:.3g}" if who in kept else "" for who in ("ours", "composite")]]


def compiled(run: Any) -> Iterator[list[str]]:
    """The times of compiled forward and backward."""
    yield ["operator", "n", "dtype", "ours", "/ composite, or plain torch where that is the same"]
    for r in run["operators"]:
        rival = _to(r, "composite") or _to(r, "plain torch")
        yield [r["operator"], f"{r['n']:,}", r["dtype"], seconds(r["ours"]["minimum"]), rival]


def gpu(run: Any) -> Iterator[list[str]]:
    """The times of four million elements on a GPU, forward and backward, in two precisions."""
    dtypes, rivals = ("float32", "bfloat16"), ("plain torch", "composite", "floor")
    yield ["operator", *[head for d in dtypes for head in (d, *[f"/ {who}" for who in rivals])]]
    found = _lookup(run["operators"])
    for name in _operators(run["operators"]):
        rows = [found.get((name, 4_000_000, d, "forward+backward")) for d in dtypes]
        cells = [(seconds(r["ours"]["minimum"]), *[_to(r, who) for who in rivals]) if r else ("",) * 4 for r in rows]
        yield [name, *[cell for part in cells for cell in part]]


def slower(run: Any) -> Iterator[list[str]]:
    """The rows in which a rival is faster at large sizes, by both ratios and more than their uncertainty."""
    yield ["operator", "what", "n", "dtype", "rival", "ratio"]
    for r in run["operators"]:
        for who, rival in r["rivals"].items():
            found = rival["ratio"]
            least = min(found["of_minima"], found["of_medians"]) * (1 - found["doubt"])
            if who in ("composite", "peer") and least > 1:
                yield [r["operator"], r["what"], f"{r['n']:,}", r["dtype"], who, ratio(found)]


def softtorch(of_rows: bool) -> Callable[[Any], Iterator[list[str]]]:
    """A table of forward and backward at everyday sizes, with the geometric mean over the sizes for each other way."""

    def table(run: Any) -> Iterator[list[str]]:
        rows = [r for r in _compared(run) if is_of_rows(r["operator"]) == of_rows]
        calls = {(r["operator"], *_way(r)): r["rivals"]["peer"]["ratio"] for r in rows}
        main, *others = sorted(dict.fromkeys(way for _, way, _ in calls), key=lambda way: way != "forward+backward")
        shapes = list(dict.fromkeys(shape for _, _, shape in calls))
        yield [f"{main}, / softtorch", *shapes, *others]
        for name in _operators(rows):
            cells = [calls.get((name, main, shape)) for shape in shapes]
            means = [_mean([v for (n, w, _), v in calls.items() if (n, w) == (name, way)]) for way in others]
            yield [name, *[f"{c['of_medians']:.2f}" if c else "" for c in cells], *means]

    return table


def softtorch_summary(run: Any) -> Iterator[list[str]]:
    """The geometric mean for each way, and the count of ratios by which ours is slower, beyond their uncertainty."""
    yield ["way", "geometric mean", "slower"]
    rows = _compared(run)
    for way in dict.fromkeys(_way(r)[0] for r in rows):
        ratios = [r["rivals"]["peer"]["ratio"] for r in rows if _way(r)[0] == way]
        slower = sum(min(v["of_minima"], v["of_medians"]) * (1 - v["doubt"]) > 1 for v in ratios)
        yield [way, _mean(ratios), f"{slower} of {len(ratios)}"]


def _compared(run: Any) -> list[Row]:
    """The rows that have a softtorch time."""
    return [r for r in run["operators"] if "peer" in r["rivals"]]


def _way(row: Row) -> tuple[str, str]:
    """The way and the shape of a row."""
    way, _, shape = row["what"].partition(" (")
    return way, f"({shape}"


def _mean(ratios: list[Any]) -> str:
    """The geometric mean of the ratios."""
    return f"{math.exp(sum(math.log(v['of_medians']) for v in ratios) / len(ratios)):.2f}" if ratios else ""


# The rows of the overview and of its picture: what is measured, next to what; and the run, size, way, dtype and rival.
OVERVIEW = {
    "16 elements, forward and backward / composite": ("small", 16, "forward+backward", "float32", "composite"),
    "64 samples of 256, vmap(grad) / composite": ("small", 16_384, "vmap(grad)", "float32", "composite"),
    "64 samples of 256, jvp / composite": ("small", 16_384, "jvp", "float32", "composite"),
    "4 million, float32 / composite": ("large", 4_000_000, "forward+backward", "float32", "composite"),
    "4 million, bfloat16 / composite": ("large", 4_000_000, "forward+backward", "bfloat16", "composite"),
    "4 million, compiled / composite": ("compiled", 4_000_000, "compiled", "float32", "composite"),
    "4 million, float32 / other packages": ("large", 4_000_000, "forward+backward", "float32", "peer"),
    "everyday sizes, forward and backward / softtorch": ("softtorch", None, "forward+backward", "float32", "peer"),
}


def overview_ratios(found: dict[str, Any]) -> dict[str, list[Any]]:
    """The ratios of each row of the overview."""

    def shown(row: Row, n: int | None, *rest: str) -> bool:
        return (row["n"] if n else None, row["what"].partition(" (")[0], row["dtype"]) == (n, *rest)

    return {
        title: [
            row["rivals"][who]["ratio"] for row in found[run]["operators"] if shown(row, n, what, dtype) and who in row["rivals"]
        ]
        for title, (run, n, what, dtype, who) in OVERVIEW.items()
        if run in found
    }


def overview(found: dict[str, Any]) -> Iterator[list[str]]:
    """The mean and the extremes of the ratios of all operators."""
    yield ["what / next to what", "ratios", "geometric mean", "smallest", "largest", "faster", "slower"]
    for title, ratios in overview_ratios(found).items():
        medians = [v["of_medians"] for v in ratios]
        faster = sum(max(v["of_minima"], v["of_medians"]) * (1 + v["doubt"]) < 1 for v in ratios)
        slower = sum(min(v["of_minima"], v["of_medians"]) * (1 - v["doubt"]) > 1 for v in ratios)
        extremes = [f"{v:.2g}" for v in (min(medians), max(medians))]
        yield [title, str(len(ratios)), _mean(ratios), *extremes, str(faster), str(slower)]


def growth(run: Any) -> Iterator[list[str]]:
    """The fitted exponents of growth."""
    yield ["operator", "who", "time", "peak of memory"]
    for e in run["growth"]:
        yield [
            e["operator"],
            e["who"],
            f"n^{e['time']:.2f}",
            "" if e["memory"] is None else f"n^{e['memory']:.2f}",
        ]


# The tables of the pages: the run of each, or none where it is of all, and the function that makes it.
TABLES: dict[str, tuple[str | None, Callable[[Any], Iterator[list[str]]]]] = {
    "overview": (None, overview),
    "targets": ("targets", lambda run: targets_table(run["targets"])),
    "facts": ("targets", lambda run: facts_table(run["facts"])),
    "small": ("small", small),
    "transforms": ("small", transforms),
    "large": ("large", large),
    "compiled": ("compiled", compiled),
    "slower": ("large", slower),
    "slower_compiled": ("compiled", slower),
    "softtorch_rows": ("softtorch", softtorch(True)),
    "softtorch_elements": ("softtorch", softtorch(False)),
    "softtorch_summary": ("softtorch", softtorch_summary),
    "growth": ("growth", growth),
    "gpu": ("gpu", gpu),
}


def page(text: str, found: dict[str, Any]) -> str:
    """The text with its tables filled."""

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        run, make = TABLES[name]
        if run is None:
            return f"<!-- {name} -->\n\n{markdown(make(found))}\n<!-- end -->"
        body = where(found[run]) + markdown(make(found[run])) if run in found else f"`benchmarks/{run}.json` is not there.\n"
        return f"<!-- {name} -->\n\n{body}\n<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", fill, text, flags=re.DOTALL)


def on_any_background(svg: str) -> str:
    """A picture of matplotlib without its white background, and with gray in place of black, legible in dark mode too."""
    grays = {"fill: #ffffff": "fill: none", "stroke: #000000": "stroke: #7d8288", "fill: #000000": "fill: #7d8288"}
    for before, after in grays.items():
        svg = svg.replace(before, after)
    return svg if 'fill="#7d8288"' in svg else svg.replace("<svg ", '<svg fill="#7d8288" ', 1)


if __name__ == "__main__":
    for name, run in runs().items():
        (HERE / f"{name}.json").write_text(dumps(summary(run, name)))
    for file in PAGES:
        file.write_text(page(file.read_text(), runs()))
    GROWTH.write_text(on_any_background(GROWTH.read_text()))
