"""The table of versions in docs/proof.md: ``python docs/versions.py [ROW…] [--list] [--environments DIR] [--suite everyday]``.

A row is an environment, such as ``torch2.11-python3.12-fallback``; by default all run, which takes hours. Each environment is
made once, in a folder that is kept; the tests of this checkout run in it, and the row is written to docs/data at once. pip's own
settings, such as ``PIP_EXTRA_INDEX_URL``, say where to find torch. A version that is not available is named in its row.
"""

import argparse
import datetime
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
DATA = ROOT / "docs" / "data" / "versions.json"
TABLE = ROOT / "docs" / "data" / "versions.txt"
TORCH = ("2.11", "2.12", "2.13", "2.14", "2.15")
PYTHON = ("3.10", "3.11", "3.12", "3.13", "3.14")
DEVELOPED_ON = "2.13", "3.11"
TODAY = str(datetime.date.today())
DISPATCHES = "functorch", "fallback"
# pytest's arguments for a suite: the README's command, the short and long tests, or those of the base class and torch's defects.
SUITES = {
    "short": [],
    "everyday": ["--everyday"],
    "base class": ["--everyday", "tests/dispatch", "tests/test_upstream_issues.py"],
}


class Row(NamedTuple):
    """An environment, and the dispatch that the tests run in."""

    torch: str
    python: str
    dispatch: str

    def __str__(self) -> str:
        return f"torch{self.torch}-python{self.python}-{self.dispatch}"


def known_rows() -> dict[str, Row]:
    """The rows by name, one axis at a time: every torch in both dispatches, every Python."""
    torch, python = DEVELOPED_ON
    versions = [Row(t, python, d) for t, d in itertools.product(TORCH, DISPATCHES)]
    others = [Row(torch, p, "functorch") for p in PYTHON if p != python]
    return {str(row): row for row in (*versions, *others)}


def environment(row: Row, folder: Path) -> Path:
    """The Python of an environment with the row's versions, made if it is not there yet."""
    home = folder / f"torch{row.torch}-python{row.python}"
    python = home / "bin" / "python"
    if not (home / "ready").exists():
        found = shutil.which(f"python{row.python}")
        if found is None:
            raise LookupError(f"no python{row.python} here")
        packages = [f"torch=={row.torch}.*", "-e", f"{ROOT}[test]"]
        for command in ([found, "-m", "venv", "--clear", str(home)], [str(python), "-m", "pip", "install", "-q", *packages]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise LookupError(done.stderr.strip().splitlines()[-1])
        (home / "ready").touch()
    return python


def run(row: Row, folder: Path, suite: str, log: Path) -> dict[str, Any]:
    """Run the tests of a suite, and return the counts that pytest prints."""
    python = environment(row, folder)
    versions = "import platform, torch; print(torch.__version__.split('+')[0], platform.python_version())"
    torch, exact = subprocess.run([str(python), "-c", versions], capture_output=True, text=True, check=True).stdout.split()
    with log.open("w") as file:
        variables = {**os.environ, "FULLGRAD_DISPATCH": row.dispatch, "PYTHONPATH": str(ROOT)}
        subprocess.run([str(python), "-m", "pytest", *SUITES[suite]], cwd=ROOT, env=variables, stdout=file, check=False)
    last = log.read_text().rstrip().splitlines()[-1]
    counts = {what: int(n) for n, what in re.findall(r"(\d+) (passed|failed|skipped|errors?)", last)}
    if "passed" not in counts:
        raise RuntimeError(f"{row}: pytest ended with {last!r}; see {log}.")
    return {"torch": torch, "python": exact, "suite": suite, "date": TODAY, "commit": commit(), **counts}


def commit() -> str:
    """The commit of the checkout."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def write(found: dict[str, dict[str, Any]]) -> None:
    """Write the numbers, and the table of them."""
    found, known = dict(sorted(found.items())), known_rows()
    DATA.write_text(json.dumps(found, indent=1) + "\n")
    heads = ("torch", "Python", "dispatch", "tests", "passed", "failed", "skipped", "date", "commit")
    lines: list[Sequence[Any]] = [heads, ["---"] * len(heads)]
    for name, r in found.items():
        row = known[name]
        if "unavailable" in r:
            lines.append([row.torch, row.python, row.dispatch, f"none: {r['unavailable']}", "", "", "", r["date"], ""])
        else:
            failed = r.get("failed", 0) + r.get("error", 0) + r.get("errors", 0)
            counts = [f"{n:,}" for n in (r.get("passed", 0), failed, r.get("skipped", 0))]
            lines.append([r["torch"], r["python"], row.dispatch, r["suite"], *counts, r["date"], r["commit"]])
    TABLE.write_text("".join(f"| {' | '.join(line)} |\n" for line in lines))


def main() -> int:
    """Run the rows that are named, one after the other."""
    parser = argparse.ArgumentParser(prog="python docs/versions.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help="as --list prints them (default: all)")
    parser.add_argument("--list", action="store_true", help="print the rows, and run nothing")
    parser.add_argument("--suite", choices=SUITES, default="short", help="which tests (default: those of the README's command)")
    parser.add_argument("--environments", type=Path, default=Path(tempfile.gettempdir()) / "fullgrad-versions", metavar="DIR")
    given = parser.parse_args()
    known = known_rows()
    if given.list:
        sys.stdout.write("\n".join(known) + "\n")
        return 0
    unknown = set(given.rows) - set(known)
    if unknown:
        parser.error(f"no row {', '.join(sorted(unknown))}; --list prints them")
    given.environments.mkdir(parents=True, exist_ok=True)
    status = 0
    for name in given.rows or known:
        sys.stdout.write(f"{name} … ")
        sys.stdout.flush()
        try:
            result = run(known[name], given.environments, given.suite, given.environments / f"{name}.log")
        except LookupError as error:
            result = {"unavailable": str(error), "date": TODAY}
        status = status or int(bool({"failed", "error", "errors"} & {*result}))
        sys.stdout.write(f"{result}\n")
        # Another run may have written in the meantime.
        write({**(json.loads(DATA.read_text()) if DATA.exists() else {}), name: result})
    return status


if __name__ == "__main__":
    raise SystemExit(main())
