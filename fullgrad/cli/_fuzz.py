"""``python -m fullgrad fuzz``: random calls of operators, each with a law that must hold."""

import argparse
import time
from dataclasses import asdict

import torch

from fullgrad._suite.fuzz import LAWS
from fullgrad.cli._errors import check_names, extra
from fullgrad.cli._output import Stoppable, write_json


def run(options: argparse.Namespace) -> int:
    """Draw and check programs with a progress bar, and print failures; the exit status is 1 if there are any."""
    extra("hypothesis", "fuzz")
    progress_module, console_module = extra("rich.progress", "fuzz"), extra("rich.console", "fuzz")
    from fullgrad._suite.fuzz._draw import names as known
    from fullgrad._suite.fuzz._program import BY_NAME
    from fullgrad._suite.fuzz._search import Found, search

    check_names(options.names, [name for n in known() for name in (*BY_NAME[n].covers, n)], "operator that fuzz draws")
    check_names(options.laws or (), LAWS, "law", f"the laws are {', '.join(LAWS)}")
    chosen = [n for n in known() if not options.names or {n, *BY_NAME[n].covers} & {*options.names}]
    laws = options.laws or list(LAWS)
    seed = int(time.strftime("%Y%m%d")) if options.seed is None else options.seed
    minutes: float = 1.0 if options.minutes is None else options.minutes
    torch.set_num_threads(1)
    start = time.monotonic()
    columns = ("{task.percentage:>3.0f}%", progress_module.BarColumn(), "{task.description}")
    found = Found()
    with progress_module.Progress(*columns, console=console_module.Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=options.cases or 60 * minutes)

        def advance(found: Found) -> None:
            done = found.count if options.cases else time.monotonic() - start
            progress.update(task, completed=done, description=f"{found.count} programs, {len(found.failures)} failures")

        with Stoppable(options.cases or 0, "programs") as work:
            search(
                chosen,
                laws,
                first_seed=seed,
                count=options.cases,
                minutes=None if options.cases else minutes,
                device=options.device,
                advance=advance,
                found=found,
            )
        work.done = found.count
    for program, error in found.failures:
        print(f"{program.text()}\n# {error.splitlines()[0]}\n")
    by_law = ", ".join(f"{law} {n} ({found.rejected[law]} said nothing)" for law, n in sorted(found.laws.items()))
    print(f"seed {seed}: {found.count} programs, {len(found.failures)} failures; {by_law}")
    failures = [{"program": asdict(program), "error": error} for program, error in found.failures]
    counts = {"laws": found.laws, "cases": found.cases, "rejected": found.rejected}
    write_json(options, {"seed": seed, "torch": torch.__version__, **counts, "failures": failures})
    return work.status(int(bool(found.failures)))
