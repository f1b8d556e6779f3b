"""The gain of every faster version over its formula, on the arguments that the operators give it: ``bench fast``."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._core.fast import ENTRIES, Entry, gated
from fullgrad._suite.bench._measure import Statement, measure, ratio
from fullgrad._suite.bench._operators import SHORT_ROW, bound, enlarged, tensors
from fullgrad._suite.cases import CASES
from fullgrad._suite.cases._case import Case

SIZES = (16, 100, 16_384, 4_000_000)
# An entry that reaches this gain at no size is not worth its lines.
WORTH = 1.3
# Kinds of arguments of an entry that are measured at a size, and the size from which on few cases are run.
KINDS = 3
MANY = 2**12

Arguments = tuple[Any, ...]
Calls = dict[str, dict[Arguments, tuple[str, Arguments]]]


def gains(n: int, dtype: torch.dtype, device: str, seconds: float, cases: Sequence[Case] = CASES) -> list[dict[str, Any]]:
    """A row for each entry: its gain at ``n`` elements, the largest of the kinds of arguments that the operators give it, with
    the elements of that call. Large tensors are given in pieces. The gain is None where no call reaches the entry.
    """
    calls = captured(cases, n, dtype, device)
    return [
        {"entry": name, "n": n, "dtype": str(dtype).removeprefix("torch."), **_best(ENTRIES[name], found, seconds, device)}
        for name, found in calls.items()
    ]


def captured(cases: Sequence[Case], n: int, dtype: torch.dtype, device: str) -> Calls:
    """The arguments of the first calls of each entry, one of each kind, with the case that makes the call."""
    calls: Calls = {name: {} for name in ENTRIES}
    if n > MANY:  # a few cases for each entry, found where they cost little
        few = captured(cases, MANY, dtype, device)
        names = {case for found in few.values() for case, _ in found.values()}
        cases = [case for case in cases if case.name in names]
    with _recorded(calls) as current:
        # The variants are run for those entries only that nothing else reaches.
        for case in sorted(cases, key=lambda c: c.exhaustive):
            if case.exhaustive and all(calls.values()):
                break
            current[0] = case.name
            _run(case, n, dtype, device)
    return calls


@contextlib.contextmanager
def _recorded(calls: Calls) -> Iterator[list[str]]:
    """Where every entry notes the arguments that it computes with; the list holds the name of the case."""
    current = [""]

    def noting(name: str, entry: Entry) -> Any:
        def run(*args: Any) -> Any:
            kind = tuple(map(_kind, args))
            if not torch.is_grad_enabled() and kind not in calls[name] and len(calls[name]) < KINDS:
                found = entry.version(*args)
                if found is not NotImplemented:
                    calls[name][kind] = current[0], args
                    return found
            return entry.formula(*args)

        return run

    replaced = {name: noting(name, entry) for name, entry in ENTRIES.items()}
    for name, function in replaced.items():
        ENTRIES[name].put(function)
    try:
        yield current
    finally:
        for entry in ENTRIES.values():
            entry.restore()


def _kind(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return argument.dtype, argument.ndim > 0, argument.is_contiguous()
    return argument.__class__


def _run(case: Case, n: int, dtype: torch.dtype, device: str) -> None:
    """The operator without a gradient, and there and back."""
    row = n if n <= 128 else SHORT_ROW
    inputs = enlarged(case, n, row, dtype, device)
    function, leaves = bound(case.operator, inputs), [v.requires_grad_() for v in tensors(inputs)]
    with torch.no_grad():
        function(*leaves)
    y = function(*leaves)
    if y.requires_grad:
        torch.autograd.grad(y, leaves, torch.randn_like(y, memory_format=torch.contiguous_format), allow_unused=True)


@torch.no_grad()
def _best(entry: Entry, calls: dict[Arguments, tuple[str, Arguments]], seconds: float, device: str) -> dict[str, Any]:
    """The call of the largest gain. An operator without the entry would have no gate, whose time counts, therefore."""
    found: list[dict[str, Any]] = []
    for case, args in calls.values():
        behind_gate = gated(entry.formula)
        behind_gate.put(entry.version)
        pair = [Statement("f(*args)", {"f": f, "args": args}) for f in (entry.formula, behind_gate)]
        times = measure(pair, seconds, device)
        formula, version = times[pair[0]], times[pair[1]]
        size = max([a.numel() for a in args if isinstance(a, Tensor)], default=0)
        # The smaller of both: noise makes no entry worth its lines.
        gain = min(ratio(formula, version).of_minima, ratio(formula, version).of_medians)
        found.append({"gain": gain, "size": size, "case": case, "formula": formula.minimum, "version": version.minimum})
    return max(found, key=lambda row: row["gain"], default={"gain": None})


def fast_table(rows: Sequence[dict[str, Any]]) -> Iterator[list[str]]:
    """A header, and a row for each entry: the gain at each size, with the elements of a piece, and whether any is worth it."""
    sizes = list(dict.fromkeys(row["n"] for row in rows))
    yield ["entry", "dtype", *[f"{n:,}" for n in sizes], f"{WORTH} reached"]
    entries: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for row in rows:
        entries.setdefault((row["entry"].removeprefix("fullgrad."), row["dtype"]), {})[row["n"]] = row
    for (entry, dtype), found in entries.items():
        worth = any((row["gain"] or 0) >= WORTH for row in found.values())
        yield [entry, dtype, *[_cell(found[n]) if n in found else "" for n in sizes], "" if worth else "NO"]


def _cell(row: dict[str, Any]) -> str:
    if row["gain"] is None:
        return "-"
    return f"{row['gain']:.2f}" + (f" of {row['size']:,}" if row["size"] < row["n"] else "")
