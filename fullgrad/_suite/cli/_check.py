"""``python -m fullgrad check``: every public operator by every check, on this machine."""

import argparse
import dataclasses
import functools
import importlib
import json
import logging
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import fullgrad
from fullgrad._dispatch import DISPATCH
from fullgrad._suite.cases import CASES
from fullgrad._suite.cli._errors import UsageError, extra
from fullgrad.testing import CHECKS, GROUPS, Report, Subject
from fullgrad.testing._check_operator import choose, not_checked, run_check
from fullgrad.testing._report import FAILED, NOT_APPLICABLE, PASSED
from fullgrad.testing._subject import float64_devices

# The checks that take a second or more, except one of each kind; the quick run leaves them out.
_SLOW = {"compile_hessian", "compile_forward_over_forward", "compile_vmap", "compile_vmap_of_grad", "compile_dynamic_shapes"}
_SLOW |= {"compile_the_operator_itself", "export_value", "make_fx_of_transforms", "vmap_of_hessian", "gradcheck", "gradgradcheck"}


def register(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("check", help="prove operators: every check, on this machine's torch and devices")
    parser.add_argument("names", nargs="*", metavar="NAME", help="operators, or module:callable of your own; by default all")
    parser.add_argument("--device", action="append", help="a device; may be repeated; by default the CPU, and CUDA where present")
    parser.add_argument("--backend", default="aot_eager", help="the backend of torch.compile (default: %(default)s)")
    parser.add_argument("--checks", action="append", metavar="CHECK", help="a check or a group of checks; may be repeated")
    parser.add_argument("--quick", action="store_true", help="under a minute: leaves out the slow checks")
    parser.add_argument("--surrogate", metavar="MODULE:CALLABLE", help="for your own: plain torch code with its derivative")
    parser.add_argument("--shape", default="4,3", help="for your own: the shape of its input (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every result to a file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the checks with a progress bar, and print a table; the exit status is 1 if a check fails."""
    progress_module, console_module = extra("rich.progress", "cli"), extra("rich.console", "cli")
    try:
        checks = choose(options.checks)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if options.quick:
        checks = [name for name in checks if name not in _SLOW]
    subjects = list(_subjects(options))
    logging.getLogger("torch").setLevel(logging.ERROR)
    console = console_module.Console(stderr=True)
    start, reports = time.perf_counter(), []
    columns = (
        "{task.percentage:>3.0f}%",
        progress_module.BarColumn(),
        progress_module.TimeRemainingColumn(),
        "{task.description}",
    )
    with progress_module.Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(subjects) * len(checks))
        for name, subject in subjects:
            results = {}
            for check in checks:
                progress.update(task, description=f"{name}: {check}")
                results[check] = run_check(check, subject)
                progress.advance(task)
            # The cases of the package themselves say what they leave out.
            reports.append(Report(name, results, not_checked(subject, checks) if ":" in name else None))
    _print(reports, checks, time.perf_counter() - start)
    if options.json:
        options.json.write_text(json.dumps(_as_dict(reports, options), indent=1))
    return int(any(report.failures for report in reports))


def _subjects(options: argparse.Namespace) -> Iterator[tuple[str, Subject]]:
    """The cases of the given names, and users' own callables, on every device."""
    known = {name for case in CASES for name in (*case.covers, case.name)}
    for name in options.names:
        if ":" not in name and name not in known:
            raise UsageError(f"{name} is neither a public operator nor MODULE:CALLABLE; `python -m fullgrad list` has the names.")
    found = options.device or float64_devices()
    for device in found:
        suffix = f" on {device}" if len(found) > 1 or device != "cpu" else ""
        for case in CASES:
            if not options.names or {*case.covers, case.name} & set(options.names):
                yield case.name + suffix, dataclasses.replace(_on(case, device), options={"backend": options.backend})
        for name in options.names:
            if ":" in name:
                yield name + suffix, _on(_own(name, options), device)


def _on(subject: Subject, device: str) -> Subject:
    """The subject with its tensors on a device. MPS has no float64, in which the checks compute."""
    if device.startswith("mps"):
        raise UsageError("the checks compute in float64, which MPS does not have; the test suite checks values there.")
    try:
        return subject.to(device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"the device {device} cannot be used: {error}") from None


def _own(name: str, options: argparse.Namespace) -> Subject:
    """A user's operator of one tensor."""
    try:
        shape = [int(n) for n in options.shape.split(",")]
    except ValueError:
        raise UsageError(f"--shape must be sizes with commas between, got {options.shape!r}.") from None
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    surrogate = _load(options.surrogate) if options.surrogate else None
    return Subject(
        operator=_load(name), inputs=(x,), surrogate=surrogate, max_saved_bytes=None, options={"backend": options.backend}
    )


def _load(path: str) -> Callable[..., Any]:
    """The callable that MODULE:CALLABLE names; the current directory counts."""
    module, _, attribute = path.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{path} cannot be loaded: {error}") from None
    found = getattr(found, "apply", found) if isinstance(found, type) else found
    if not callable(found):
        raise UsageError(f"{path} is a {type(found).__name__}, not something to call.")
    return found


def _print(reports: list[Report], checks: list[str], seconds: float) -> None:
    """Print operators down and groups of checks across, and a line for each failure."""
    table_module, console_module = extra("rich.table", "cli"), extra("rich.console", "cli")
    groups = [g for g in GROUPS if set(GROUPS[g]) & set(checks)]
    table = table_module.Table("operator", *groups, box=extra("rich.box", "cli").SIMPLE)
    for report in reports:
        row = [_cell(report, group) for group in groups]
        table.add_row(report.name, *row)
    console = console_module.Console(width=None if sys.stdout.isatty() else 140)
    console.print(table)
    for report in reports:
        for name in report.failures:
            console.print(f"{report.name}: {report.explain(name)}", markup=False, highlight=False)
    for report in reports:
        for line in report.gaps:
            console.print(f"{report.name}: {line}", markup=False, highlight=False)
    if any(report.not_checked for report in reports):
        told = "--surrogate MODULE:CALLABLE is a `surrogate`; fullgrad.testing.check_operator takes the others."
        console.print(told, markup=False, highlight=False)
    counts = ", ".join(f"{sum(r.count(status) for r in reports)} {status}" for status in (PASSED, FAILED, NOT_APPLICABLE))
    where = f"torch {torch.__version__}, python {platform.python_version()}, dispatch {DISPATCH!r}"
    summary = f"{len(reports)} cases, {len(checks)} of {len(CHECKS)} checks: {counts}; {seconds:.0f} s on {where}"
    console.print(summary, highlight=False)


def _cell(report: Report, group: str) -> str:
    passed, failed = report.count(PASSED, group), report.count(FAILED, group)
    if not passed + failed:
        return "-"
    return f"[bold red]{passed}/{passed + failed}[/]" if failed else f"{passed}/{passed}"


def _as_dict(reports: list[Report], options: argparse.Namespace) -> dict[str, Any]:
    return {
        "fullgrad": fullgrad.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "dispatch": DISPATCH,
        "backend": options.backend,
        "not_checked": {r.name: r.not_checked for r in reports if r.not_checked},
        "results": {r.name: {name: dataclasses.asdict(result) for name, result in r.items()} for r in reports},
    }
