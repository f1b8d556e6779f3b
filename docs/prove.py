"""Runs every check on the default cases, and keeps the results for docs/proof.md: ``python docs/prove.py``.

It takes half an hour on one core; with ``--quick``, which leaves out the slow checks, a few minutes. Operators may be named. With
``--checks NAME``, which may be repeated, only these checks run, and the results of others stay as they were.
"""

import datetime
import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from fullgrad._suite.cases import CASES
from fullgrad.cli import main
from fullgrad.testing import GROUPS
from fullgrad.testing._subject import float64_devices

TARGET = Path(__file__).parent / "data" / "check.json"


def dumps(found: dict[str, Any], cases: dict[str, Any]) -> str:
    """JSON with a line for each case."""
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(rest)}" for name, rest in cases.items())
    return json.dumps({**found, "cases": {}}, indent=1).replace('"cases": {}', f'"cases": {{\n{lines}\n }}') + "\n"


def prove(operators: list[str], options: list[str]) -> int:
    """Run ``python -m fullgrad check`` on the cases of the operators, and return its exit status."""
    everyday = [case.name for case in CASES if not case.exhaustive and (not operators or {*case.covers} & {*operators})]
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "check.json"
        status = main(["check", *everyday, *options, "--json", str(written)])
        found: dict[str, Any] = json.loads(written.read_text())
    # The name of a case may be that of an operator with more cases: keep the default cases, and their results that did not pass.
    # Each device has its own results.
    results = {name: checks for name, checks in found.pop("results").items() if name.partition(" on ")[0] in everyday}
    cases = {
        name: {
            check: {"status": result["status"], "message": result["message"]}
            for check, result in checks.items()
            if result["status"] != "passed"
        }
        for name, checks in results.items()
    }
    ran = {check for checks in results.values() for check in checks}
    where = {"devices": ", ".join(float64_devices()).upper(), "date": str(datetime.date.today())}
    if "--checks" in options:
        before = json.loads(TARGET.read_text())
        others = {name: {k: v for k, v in rest.items() if k not in ran} for name, rest in before["cases"].items()}
        cases = {name: {**others[name], **cases[name]} if name in cases else rest for name, rest in before["cases"].items()}
        ran |= {check for members in before["groups"].values() for check in members}
        found, where = {name: value for name, value in before.items() if name not in ("groups", "cases")}, {}
    groups = {group: [check for check in members if check in ran] for group, members in GROUPS.items()}
    TARGET.write_text(dumps({**found, **where, "groups": groups}, cases))
    return status


if __name__ == "__main__":
    given, checks = sys.argv[1:], [v for pair in itertools.pairwise(sys.argv) if pair[0] == "--checks" for v in pair]
    options = [v for v in given if v.startswith("--") and v != "--checks"]
    raise SystemExit(prove([v for v in given if v not in [*checks, *options]], [*options, *checks]))
