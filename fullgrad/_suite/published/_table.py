"""Checks that hold before and after, and the table of docs/adopt.md."""

import contextlib
import datetime
import importlib.metadata
import logging
import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

import fullgrad
from fullgrad._suite.published._functions import Fixed, Made, Published
from fullgrad.testing import CHECKS
from fullgrad.testing._check_operator import run_check
from fullgrad.testing._report import FAILED, PASSED
from fullgrad.testing._subject import Subject, by_cotangent_map

# Checks that take seconds and have a faster check of the same kind.
_SLOW = {"compile_forward_over_forward", "compile_hessian", "compile_dynamic_shapes", "three_mixed"}
# It compares the second derivative with differences of the first, which an adopted class need not match.
_OTHERS = {"gradient_by_differences"}
# Other threads are outside the scope of `adopting`, by which functions that make their class at each call are adopted.
_NOT_IN_A_SCOPE = {"threads"}

Counts = dict[str, Any]


def results_of(published: Published, checks: Iterable[str] | None = None) -> Counts:
    """The numbers of checks that apply, hold before and hold after, and those that are silently wrong before or fail after."""
    logging.getLogger("torch").setLevel(logging.ERROR)
    loaded = published.load()
    own = loaded if published.method else loaded.apply
    after = own if published.needs_context else fullgrad.adopt(loaded)
    names = [name for name in checks or CHECKS if name not in _SLOW | _OTHERS]
    if published.needs_context:
        names = [name for name in names if name not in _NOT_IN_A_SCOPE]
    before = {name: run_check(name, _subject(published, own, own)) for name in names}
    with fullgrad.adopting() if published.needs_context else contextlib.nullcontext():
        found = {name: run_check(name, _subject(published, after, own)) for name in names}
    applies = [name for name in names if PASSED in (before[name].status, found[name].status) or found[name].status == FAILED]
    return {
        "package": published.package,
        "version": _version(published.package),
        "checks": len(applies),
        "before": sum(before[name].status == PASSED for name in applies),
        # An error is noticed; a wrong number is silent.
        "wrong": [name for name in applies if before[name].status == FAILED and before[name].message.startswith("expected")],
        "after": sum(found[name].status == PASSED for name in applies),
        "fails": {name: _short(found[name].message) for name in applies if found[name].status != PASSED},
        # Adoption does not do what eager autograd of the class itself, or torch's compiler, does not do.
        "own": [name for name in applies if found[name].status != PASSED and before[name].message == found[name].message],
    }


def _subject(published: Published, operator: Callable[..., Any], own: Callable[..., Any]) -> Subject:
    """A subject with the class itself in eager autograd as the oracle, except for what it saves."""
    inputs = tuple(a.to(published.dtype) if isinstance(a, Tensor) and a.is_floating_point() else a for a in published.arguments)

    def call(function: Callable[..., Any]) -> Callable[..., Any]:
        if not any(isinstance(a, (Fixed, Made)) for a in inputs):
            return function
        made = {i: a() for i, a in enumerate(inputs) if isinstance(a, (Fixed, Made))}
        return lambda *args: function(*[made.get(i, a) for i, a in enumerate(args)])

    mapped = published.cotangent_map
    surrogate = None if mapped is None else by_cotangent_map(mapped)
    return Subject(call(operator), inputs, surrogate, call(own), max_saved_bytes=None, linear=mapped is None)


def _version(package: str) -> str:
    for name in (package, package.replace("_", "-")):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def page_table(results: dict[str, Counts]) -> str:
    """Two tables in Markdown: by package, and what fails after."""
    packages: dict[str, list[tuple[str, Counts]]] = {}
    for path, counts in results.items():
        packages.setdefault(counts["package"], []).append((path, counts))
    lines = [
        "| package | Functions | checks | hold before | silently wrong before | hold after | fail alike | complete |",
        "|---|---|---|---|---|---|---|---|",
    ]
    total = [0] * 7
    for package, entries in packages.items():
        numbers = [
            len(entries),
            *[sum(counts[key] for _, counts in entries) for key in ("checks", "before")],
            sum(len(counts["wrong"]) for _, counts in entries),
            sum(counts["after"] for _, counts in entries),
            sum(len(counts["own"]) for _, counts in entries),
            sum(counts["after"] == counts["checks"] for _, counts in entries),
        ]
        total = [a + b for a, b in zip(total, numbers, strict=True)]
        lines.append(f"| {package} {entries[0][1]['version']} | " + " | ".join(f"{n:,}" for n in numbers) + " |")
    lines.append("| all | " + " | ".join(f"{n:,}" for n in total) + " |")
    lines += ["", "What still fails:", "", "| Function | checks | reason |", "|---|---|---|"]
    for path, counts in results.items():
        if counts["fails"]:
            reasons = sorted({message.replace("|", "\\|") for message in counts["fails"].values()})
            own = "; the class itself fails in the same words" if set(counts["own"]) == set(counts["fails"]) else ""
            lines.append(f"| `{path.partition(':')[2]}` | {', '.join(counts['fails'])} | {'; '.join(reasons)}{own} |")
    lines += ["", f"Made on {datetime.date.today()} with torch {torch.__version__}, CPU."]
    return "\n".join(lines)


def _short(message: str) -> str:
    """The beginning of a message, without places in files of this machine."""
    text = re.sub(r'(?<![\w.])"?/[^\s"]+"?', "…", message.partition(" Greatest")[0]).replace("\n", " ")
    return text[:140] + ("…" if len(text) > 140 else "")


warnings.filterwarnings("ignore", message=".*sample by sample.*")
