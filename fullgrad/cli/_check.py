"""``python -m fullgrad check``: every public operator by every check, on this machine."""

import argparse
import dataclasses
import functools
import importlib
import inspect
import logging
import platform
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

import fullgrad
from fullgrad._dispatch import DISPATCH
from fullgrad._suite.cases import CASES
from fullgrad.cli._arguments import shape
from fullgrad.cli._errors import UsageError, check_names, extra
from fullgrad.cli._output import Stoppable, console, write_json
from fullgrad.testing import CHECKS, GROUPS, Report, Result, Subject
from fullgrad.testing._check_operator import choose, make_subject, not_checked, run_check
from fullgrad.testing._report import FAILED, NOT_APPLICABLE, PASSED
from fullgrad.testing._subject import float64_devices

# The checks that take a second or more, except one of each kind; the quick run leaves them out.
_SLOW = {"compile_hessian", "compile_forward_over_forward", "compile_vmap", "compile_vmap_of_grad", "compile_dynamic_shapes"}
_SLOW |= {
    "compile_grad",
    "compile_jvp",
    "compile_changing_numbers",
    "compile_the_operator_itself",
    "export_value",
    "make_fx_of_transforms",
    "vmap_of_hessian",
    "gradcheck",
    "gradgradcheck",
}


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
    logging.getLogger("torch").setLevel(logging.ERROR if options.verbose else logging.CRITICAL)
    start, reports = time.perf_counter(), []
    columns = (
        "{task.percentage:>3.0f}%",
        progress_module.BarColumn(),
        progress_module.TimeRemainingColumn(),
        "{task.description}",
    )
    total = len(subjects) * len(checks)
    with progress_module.Progress(*columns, console=console_module.Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        with Stoppable(total, "checks") as work:
            for name, subject in subjects:
                results: dict[str, Result] = {}
                # The cases of the package themselves say what they leave out.
                left_out = not_checked(subject, checks) if ":" in name else None
                try:
                    for check in checks:
                        progress.update(task, description=f"{name}: {check}")
                        results[check] = run_check(check, subject)
                        work.count()
                        progress.advance(task)
                finally:
                    if results:
                        reports.append(Report(name, results, left_out))
    _print(reports, checks, time.perf_counter() - start, options.verbose)
    write_json(options, _as_dict(reports, options))
    return work.status(int(any(report.failures for report in reports)))


def _subjects(options: argparse.Namespace) -> Iterator[tuple[str, Subject]]:
    """The cases of the given names, and users' own callables, on every device."""
    known = [name for case in CASES for name in (*case.covers, case.name)]
    check_names([name for name in options.names if ":" not in name], known, "public operator, nor MODULE:CALLABLE")
    found = options.device or float64_devices()
    # The first case of each name: a quick run of all operators has no other.
    firsts = {name: case.name for case in reversed(CASES) for name in case.covers}
    for device in found:
        suffix = f" on {device}" if len(found) > 1 or device != "cpu" else ""
        for case in CASES:
            chosen = (
                {*case.covers, case.name} & set(options.names)
                if options.names
                else not options.quick or case.name in firsts.values()
            )
            if chosen:
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
    """A user's operator of tensors with the given shapes, or of the given inputs."""
    operator, surrogate = _load(name), _load(options.surrogate) if options.surrogate else None
    if options.inputs:
        found = _load(options.inputs)()
        inputs = tuple(found) if isinstance(found, (tuple, list)) else (found,)
    else:
        generator = torch.Generator().manual_seed(0)
        shapes = [shape(text) for text in options.shape or ["4,3"]]
        inputs = tuple(torch.randn(sizes, generator=generator, dtype=torch.float64) for sizes in shapes)
    for path, function in ((name, operator), (options.surrogate, surrogate)):
        try:
            inspect.signature(function).bind(*inputs)  # pyright: ignore[reportArgumentType]
        except ValueError:  # of a built-in function
            pass
        except TypeError as error:
            if function is not None:
                given = f"{len(inputs)} input{'s' * (len(inputs) > 1)}"
                told = f"{path} does not take {given}: {error}; repeat --shape for each tensor, or give --inputs."
                raise UsageError(told) from None
    try:
        return make_subject(operator, inputs, surrogate=surrogate, backend=options.backend)
    except ValueError as error:
        raise UsageError(str(error)) from None


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
        raise UsageError(f"{path} is of type {type(found).__name__}, not something to call.")
    return found


def _print(reports: list[Report], checks: list[str], seconds: float, verbose: bool) -> None:
    """Print operators down and groups of checks across, and a line for each failure."""
    table_module, shown = extra("rich.table", "cli"), console()
    groups = [g for g in GROUPS if set(GROUPS[g]) & set(checks)]
    table = table_module.Table("operator", *groups, box=extra("rich.box", "cli").SIMPLE)
    for report in reports:
        row = [_cell(report, group) for group in groups]
        table.add_row(report.name, *row)
    shown.print(table)
    # Plain prints leave it to the terminal where lines break.
    for report in reports:
        for line in report.explanations(verbose):
            print(f"{report.name}: {line}")
    if any(report.failures for report in reports) and not verbose:
        print("--verbose prints the errors in full; --checks NAME runs one check alone.")
    for report in reports:
        for line in report.gaps:
            print(f"{report.name}: {line}")
    if any(report.not_checked for report in reports):
        print("--surrogate MODULE:CALLABLE is called like the operator; fullgrad.testing.check_operator takes the others.")
    counts = ", ".join(f"{sum(r.count(status) for r in reports)} {status}" for status in (PASSED, FAILED, NOT_APPLICABLE))
    where = f"torch {torch.__version__}, python {platform.python_version()}, dispatch {DISPATCH!r}"
    cases = "1 case" if len(reports) == 1 else f"{len(reports)} cases"
    summary = f"{cases}, {len(checks)} of {len(CHECKS)} checks: {counts}; {seconds:.0f} s on {where}"
    shown.print(summary, highlight=False, soft_wrap=True)


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
