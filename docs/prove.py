"""Runs every check on the default cases, and keeps the results for docs/proof.md: ``python docs/prove.py``.

It takes half an hour on one core; with ``--quick``, which leaves out the slow checks, a few minutes. Operators may be named.
"""

import datetime
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
    groups = {group: [check for check in members if check in ran] for group, members in GROUPS.items()}
    where = {"devices": ", ".join(float64_devices()).upper(), "date": str(datetime.date.today())}
    TARGET.write_text(dumps({**found, **where, "groups": groups}, cases))
    return status


if __name__ == "__main__":
    given = sys.argv[1:]
    raise SystemExit(prove([v for v in given if not v.startswith("--")], [v for v in given if v.startswith("--")]))
