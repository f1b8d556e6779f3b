"""The benchmark suite: it measures every operator, and the costs that do not depend on the machine are kept."""

import contextlib
import importlib.util
import json
import signal
import sys
from pathlib import Path

import pytest
import torch

import fullgrad
from fullgrad._core.fast import ENABLED, ENTRIES
from fullgrad._suite.bench import _fast, _growth, _report, _rivals, _softtorch
from fullgrad._suite.bench._comparison import Comparison, Result, run
from fullgrad._suite.bench._limits import TooMuch, limited
from fullgrad._suite.bench._measure import Ratio, Statement, Times, allocations, measure, peak_bytes, saved_bytes
from fullgrad._suite.bench._operators import COMPILED, WAYS, chosen, comparisons, enlarged, tensors
from fullgrad._suite.bench._targets import targets
from fullgrad._suite.cases import CASES
from fullgrad.blackbox import _finite_difference
from fullgrad.cli import main

ROOT = Path(__file__).parents[2]
EVERYDAY = [pytest.param(case, id=case.name) for case in chosen((), variants=False)]


def statement(function, n, **names) -> Statement:
    """The forward and backward of one row."""
    x = torch.linspace(-2, 2, n).sin().requires_grad_()
    return Statement("grad(f(x), x, g)", {"f": function, "x": x, "g": torch.ones(n), "grad": torch.autograd.grad, **names})


@pytest.mark.parametrize("case", EVERYDAY)
def test_every_operator_can_be_measured_in_every_way(case):
    """Every operator runs at two sizes, on inputs in the range of the case's own; ours never fails."""
    for n in (16, 4096 if case.of == "elements" else 64):
        inputs = enlarged(case, n, n, torch.float32, "cpu")
        assert tensors(inputs)[0].numel() == n
        for drawn, own in zip(inputs, case.inputs, strict=True):
            if isinstance(own, torch.Tensor):
                assert own.min() - 1e-6 <= drawn.min() <= drawn.max() <= own.max() + 1e-6
        for comparison in comparisons(case, n, torch.float32, "cpu", [w for w in WAYS if w != COMPILED]):
            exec(comparison.ours.code, dict(comparison.ours.names))


COMPOSITES = [
    pytest.param(case, id=case.name)
    for case in CASES
    if case.of == "rows" and case.name.endswith("smooth") and any(m in case.name for m in ("softsort", "neuralsort", "sigmoid"))
]


@pytest.mark.parametrize("case", COMPOSITES)
def test_a_composite_with_matrices_computes_the_same(case):
    """Values and gradients of a composite agree with ours, as a rival that did less would not be one."""
    (comparison,) = comparisons(case, 12, torch.float64, "cpu", ["forward+backward"], one_row=True)
    ours, rival = comparison.ours, comparison.rivals["composite"]
    torch.testing.assert_close(rival.names["f"](rival.names["x0"]), ours.names["f"](ours.names["x0"]))
    (expected,), (gradient,) = (eval(c.code, {**c.names, "g": ours.names["g"]}) for c in (ours, rival))
    torch.testing.assert_close(gradient, expected)


def test_times_of_something_twice_as_long_are_twice_as_long():
    """The measured ratio is the true ratio, within a wide margin."""
    once, twice = (Statement("for _ in range(k): sin(x)", {"x": torch.randn(20_000), "sin": torch.sin, "k": k}) for k in (5, 10))
    times = measure([once, twice], seconds=0.05)
    assert 1.5 < times[twice].minimum / times[once].minimum < 2.7


def test_a_rival_that_raises_is_left_out_and_ours_is_not():
    """A rival that torch cannot run is left out; an operator of ours that fails is a failure."""
    good, bad = Statement("x + 1", {"x": torch.ones(3)}), Statement("1 / 0", {})
    made = {"operator": "add", "what": "forward", "n": 3, "dtype": "float32"}
    (result,) = run([Comparison(**made, ours=good, rivals={"bad": bad, "same": good})], 0.001)
    assert list(result.rivals) == ["same"]
    with pytest.raises(RuntimeError, match="add, forward, n = 3, float32 raises"):
        run([Comparison(**made, ours=bad, rivals={})], 0.001)


def test_a_line_that_takes_too_much_ends():
    """A context of limits ends code that takes longer or more memory, leaves other code alone, and restores the limits."""

    def endless(swallowed):
        while True:
            with contextlib.suppress(swallowed):
                torch.ones(3).sum()

    def call(f, seconds, gib):
        with limited(seconds, gib):
            return f()

    for swallowed in (ZeroDivisionError, Exception):
        with pytest.raises(TooMuch, match=r"takes more than 0.05 s"):
            call(lambda e=swallowed: endless(e), 0.05, 4.0)
    if sys.platform == "linux":
        with pytest.raises(TooMuch, match=r"takes more than 0.25 GiB"):
            call(lambda: torch.zeros(2**29, dtype=torch.uint8), 60.0, 0.25)
    with pytest.raises(ZeroDivisionError):
        call(lambda: 1 / 0, 60.0, 0.25)
    assert call(lambda: torch.zeros(2**20).sum(), 60.0, 0.25) == 0
    torch.zeros(2**29, dtype=torch.uint8)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_the_command_says_what_it_skips(tmp_path, capsys):
    """A line that would take longer than it may is skipped and named, and the lines beside it are measured."""
    numbers = tmp_path / "n.json"
    names, sizes = ["blackbox.finite_difference", "round"], ["16", "65536"]
    command = ["bench", *names, "--sizes", *sizes, "--ways", "forward+backward", "--seconds", "0.001", "--most-seconds", "1.5"]
    assert main([*command, "--json", str(numbers)]) == 0
    report = json.loads(numbers.read_text())
    assert report["failures"] == []
    (line,) = report["skipped"]
    assert line.startswith("blackbox.finite_difference, n = 65,536, float32: takes more than 1.5 s")
    assert "skipped blackbox.finite_difference, n = 65,536" in capsys.readouterr().out
    assert [r["n"] for r in report["operators"] if r["operator"] == "round"] == [16, 65_536]
    assert [r["n"] for r in report["operators"] if r["operator"] == names[0]] == [16]


def test_what_softtorch_cannot_do_is_told(monkeypatch):
    """A way in which softtorch raises has a row with our time only, which says so; other ways have both."""

    def max_without_vmap(x, dim):
        assert not x.isnan().any()  # which vmap cannot tell
        return torch.max(x, dim)

    monkeypatch.setattr(_softtorch, "load", lambda path: max_without_vmap)
    monkeypatch.setattr(_softtorch, "ROWS", ((2, 3),))
    both, ours = _softtorch.softtorch("soft.max", ["forward+backward", "vmap(grad)"])
    assert (both.what, list(both.rivals)) == ("forward+backward (2, 3)", ["peer"])
    assert (ours.what, list(ours.rivals)) == ("vmap(grad) (2, 3): softtorch raises", [])
    assert _report.as_dict(run([ours], 0.001)[0])["rivals"] == {}


@pytest.mark.parametrize(
    ("minima", "medians", "doubt", "target", "verdict"),
    [
        (0.9, 0.92, 0.01, 1.0, True),
        (0.9, 0.99, 0.05, 1.0, None),
        (1.1, 1.2, 0.05, 1.0, False),
        (1.02, 1.2, 0.05, 1.0, None),
        (0.1, 0.5, 0.01, 1.0, None),
    ],
)
def test_verdicts_allow_for_noise(minima, medians, doubt, target, verdict):
    """A target holds or not only where both ratios say so beyond their doubt; contradictory ones say nothing."""
    assert Ratio(minima, medians, 0.05, doubt).at_most(target) is verdict


def test_reports_mark_what_is_noisy_and_contradictory():
    """The tables carry the marks, the warnings count them, and the file can be read back."""
    times = Times(1e-3, 1e-3, 0.5, 0.1), Times(1e-3, 4e-3, 0.5, 0.1)
    case = Statement("pass", {})
    comparison = Comparison(
        operator="f", what="forward", n=8, dtype="float32", ours=case, rivals={"composite": case}, targets={"composite": 0.5}
    )
    row = json.loads(json.dumps(_report.as_dict(Result(comparison, times[0], {"composite": times[1]}, {}))))
    assert row["rivals"]["composite"]["holds"] is None
    _, line = _report.targets_table([row])
    assert line == ["f", "forward", "8", "1 ms", "composite", "1 ms", "1.00 / 0.25?", "0.5", "unclear"]
    noisy, contradictory = _report.noise([row])
    assert "1 of 1 ratios" in noisy
    assert "1 ratios (?)" in contradictory


def test_times_that_spread_are_not_noisy_if_their_median_is_certain():
    """Only a doubt of the ratio is marked: many calls of different times have a certain median."""
    statement = Statement("pass", {})
    comparison = Comparison(operator="f", what="forward", n=8, dtype="float32", ours=statement, rivals={"composite": statement})
    marks = []
    for doubt in (0.02, 0.2):
        times = Times(1e-3, 1.1e-3, 0.4, doubt)
        row = _report.as_dict(Result(comparison, times, {"composite": times}, {}))
        marks.append((_report.ratio(row["rivals"]["composite"]["ratio"])[-1], len(list(_report.noise([row])))))
    assert marks == [("0", 0), ("~", 1)]


def test_the_pages_of_the_benchmarks_show_the_committed_runs():
    """The tables hold what the files in benchmarks/ hold; ``python benchmarks/page.py`` writes both."""
    spec = importlib.util.spec_from_file_location("page", ROOT / "benchmarks" / "page.py")
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    texts = {file: file.read_text() for file in page.PAGES}
    assert sum(text.count("<!-- end -->") for text in texts.values()) == len(page.TABLES)
    runs = page.runs()
    assert {file: page.page(text, runs) for file, text in texts.items()} == texts
    picture = page.GROWTH.read_text()
    assert page.on_any_background(picture) == picture
    assert {name: page.dumps(page.summary(run, name)) for name, run in runs.items()} == {
        file.stem: file.read_text() for file in (ROOT / "benchmarks").glob("*.json")
    }


def test_exponents_are_fitted_over_the_larger_sizes():
    """A constant cost of small calls does not hide the growth."""
    sizes = [10, 100, 1000, 10_000]
    results = [
        {
            "operator": "f",
            "what": "forward",
            "n": n,
            "dtype": "float32",
            "ours": {"minimum": 1e-3 + 1e-6 * n**2},
            "rivals": {},
            "peaks": {"ours": 4.0},
        }
        for n in sizes
    ]
    (fit,) = _growth.exponents(results)
    assert fit["time"] == pytest.approx(2, abs=0.01)
    assert fit["memory"] == pytest.approx(1)


@pytest.mark.skipif(not ENABLED, reason="no entry runs")
def test_every_entry_has_a_gain_and_one_that_gains_nothing_is_marked(monkeypatch):
    """The arguments are those of the cases, every entry has a row, and an entry that is its formula is marked."""
    name = "fullgrad.spikes._atan.HeavyTailedStep.slope_times"
    case = next(c for c in CASES if c.name == "spikes.atan")
    monkeypatch.setitem(ENTRIES, name, ENTRIES[name]._replace(version=ENTRIES[name].formula))
    rows = _fast.gains(16, torch.float32, "cpu", 0.001, [case])
    assert [row["entry"] for row in rows] == list(ENTRIES)
    (found,) = [row for row in rows if row["entry"] == name]
    assert (found["size"], found["case"]) == (16, "spikes.atan")
    assert any(row["gain"] is None for row in rows)
    head, line = _fast.fast_table([found | {"gain": 1.01}])
    assert head == ["entry", "dtype", "16", "1.3 reached"]
    assert line == ["spikes._atan.HeavyTailedStep.slope_times", "float32", "1.01", "NO"]
    (_, line) = _fast.fast_table([found | {"gain": 2.5, "n": 4_000_000, "size": 65_536}])
    assert line[2:] == ["2.50 of 65,536", ""]


@pytest.mark.long
def test_the_command(tmp_path, capsys):
    """The command takes names, sizes and dtypes, prints a table, writes numbers and a picture, and reports a wrong name."""
    numbers, picture = tmp_path / "n.json", tmp_path / "p.png"
    command = ["bench", "round", "sort_st", "--sizes", "16", "64", "--ways", "forward+backward", "--seconds", "0.001", "--memory"]
    assert main([*command, "--json", str(numbers), "--plot", str(picture)]) == 0
    printed = capsys.readouterr().out
    assert "round" in printed
    assert "could not" not in printed
    report = json.loads(numbers.read_text())
    assert {r["operator"] for r in report["operators"]} >= {"round", "sort_st softsort smooth"}
    assert report["environment"]["torch"] == torch.__version__
    assert report["failures"] == []
    assert picture.stat().st_size > 10_000
    assert main(["bench", "nothing"]) == 2
    assert "nothing is no public operator, nor one of targets, " in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*compares all pairs:UserWarning", "ignore:Numba could not be imported:UserWarning")
def test_targets_can_be_measured():
    """Every statement that has a number to keep runs, the large ones aside."""
    small = [c for c in targets() if c.n < 100_000]
    assert sum(len(c.targets) for c in small) > 10
    for comparison in small:
        for case in (comparison.ours, *comparison.rivals.values()):
            exec(case.code, dict(case.names))


@pytest.mark.long
def test_times_below_a_number_are_measured_without_other_packages(monkeypatch):
    """They are of ours alone; what compares with a package is left out where it is not installed."""
    monkeypatch.setattr(_rivals, "load", lambda path: None)
    found = [*_rivals.facts(0.001)]
    assert [rival for _, _, rival, _, _ in found] == ["at most", "at most"]
    assert all(milliseconds > 0 for _, milliseconds, _, _, _ in found)
    assert not [*_rivals.rivals()]


def test_a_size_counts_as_slower_beyond_the_uncertainty():
    """By both ratios, as in the tables."""
    slower = [Ratio(1.2, 1.1, 0.05, 0.01), Ratio(1.2, 0.9, 0.05, 0.01), Ratio(1.02, 1.02, 0.5, 0.1), Ratio(0.5, 0.5, 0.05, 0.01)]
    assert [_rivals.is_slower(r) for r in slower] == [True, False, False, False]


# --- What is kept, whatever the machine -------------------------------------------------------------------------------


def test_bytes_are_counted():
    """A composite that saves a float and a mask is caught, and so is one that holds a matrix."""
    x = torch.randn(1000, requires_grad=True)
    assert saved_bytes(lambda x: x.sin().sigmoid().cos(), (x,)) == 4 * 1000  # x and the value are not counted
    assert saved_bytes(fullgrad.round, (x,)) == 0
    square = statement(lambda x: (x[:, None] * x).sum(0), 500)
    assert 4 * 500**2 <= peak_bytes(square) < 3 * 4 * 500**2


LINEAR = {
    **{f"sort_st softsort {mode}": {"method": "softsort", "mode": mode} for mode in ("smooth", "c0", "c1", "c2")},
    "sort_st fast_soft_sort": {"method": "fast_soft_sort"},
    "sort_st neuralsort": {"method": "neuralsort"},
}


@pytest.mark.long(but=1)
@pytest.mark.parametrize("method", ["broadcast", "map", "sequential"])
def test_memory_of_a_gradient_by_differences(monkeypatch, method):
    """The gradient of n inputs by differences is computed in pieces, whose memory grows with n and not with its square."""
    monkeypatch.setattr(_finite_difference, "_PIECE", 2**18, raising=False)
    sizes = [128, 256, 512]
    operator = lambda x: fullgrad.blackbox.finite_difference(torch.square, x, vmap_method=method)  # noqa: E731
    assert _growth.exponent(sizes, [peak_bytes(statement(operator, n)) for n in sizes]) < 1.3


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:.*compares all pairs:UserWarning")
@pytest.mark.parametrize("name", [*LINEAR, "rank_st neuralsort", "rank_st sigmoid"])
def test_memory_grows_with_n_and_not_with_its_square(name):
    """The exponent of the peak of memory of a sort or rank, there and back, is about 1; that of a matrix would be 2."""
    if name in LINEAR:
        operator = lambda x: fullgrad.sort_st(x, **LINEAR[name]).values  # noqa: E731
    else:
        operator = lambda x: fullgrad.rank_st(x, method=name.split()[1])  # noqa: E731
    sizes = [2048, 4096, 8192]
    assert _growth.exponent(sizes, [peak_bytes(statement(operator, n)) for n in sizes]) < 1.3


def test_memory_that_grows_with_the_square_is_seen():
    """The check of memory catches n by n weights."""
    sizes = [256, 512, 1024]
    peaks = [peak_bytes(statement(lambda x: torch.softmax(-(x[:, None] - x).abs(), -1) @ x, n)) for n in sizes]
    assert _growth.exponent(sizes, peaks) > 1.8


@pytest.mark.long(but=1)
@pytest.mark.parametrize("mode", ["smooth", "c0", "c1", "c2"])
def test_work_of_a_sort_grows_like_n_log_n(mode):
    """The total of allocations, which grows like the numbers computed, has an exponent little above 1."""
    sizes = [4096, 16_384, 65_536]
    operator = lambda x: fullgrad.sort_st(x, method="softsort", mode=mode).values  # noqa: E731
    work = [sum(change for change in allocations(statement(operator, n)) if change > 0) for n in sizes]
    assert _growth.exponent(sizes, work) < 1.25


def test_no_case_is_forgotten():
    """Every public operator is measured by default."""
    measured = {name for case in chosen((), variants=False) for name in case.covers}
    assert measured == {name for case in CASES for name in case.covers}
