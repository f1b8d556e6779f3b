"""The table of torch's own operators in docs/completing.md: ``python docs/torch_operators.py [FILE …]``.

The files are what ``python -m fullgrad torch --json FILE`` wrote, or ``python -m fullgrad torch NAME … --json FILE`` for some
operators, whose results take the place of earlier ones of that version of torch. They are kept in docs/data, with one wrong
number and one error of each operator.
"""

import json
import sys
from pathlib import Path
from typing import Any

from fullgrad.cli._torch import counted, counts, is_wrong

DATA = Path(__file__).parent / "data" / "torch-operators.json"
TABLE = Path(__file__).parent / "data" / "torch-operators.txt"


def said(report: dict[str, Any], name: str, where: str) -> str:
    """Wrong, else raises, else right; nothing of what was not judged."""
    results = report["rows"].get(name, {}).get(where, {})
    return "wrong" if is_wrong(results) else "raises" if results else "right" if name in report["judged"] else ""


def table(reports: dict[str, Any]) -> str:
    """The counts of each version, and a row for each operator of which something is wrong or missing in one of them."""
    versions = sorted(reports, key=lambda v: [int(n) for n in v.split(".")])
    lines = [counts(reports[version]) + "\n" for version in versions]
    lines += [f"| operator | {' | '.join(f'torch {v}' for v in versions)} | inside | issue |", "|---" * (len(versions) + 3) + "|"]
    for name in sorted({name for report in reports.values() for name in report["rows"]}, key=str.lower):
        issue = next((row["issue"] for version in versions if (row := reports[version]["rows"].get(name)) and row["issue"]), None)
        link = f"[#{issue}](https://github.com/pytorch/pytorch/issues/{issue})" if issue else ""
        cells = [said(reports[version], name, "alone") for version in versions]
        inside = {said(reports[version], name, "inside") for version in versions} - {"right", ""}
        lines.append(f"| `{name}` | {' | '.join(cells)} | {', '.join(sorted(inside)) or 'right'} | {link} |")
    return "\n".join(lines) + "\n"


def merged(earlier: dict[str, Any], report: dict[str, Any]) -> dict[str, Any]:
    """A report with the results of another one in place of its own."""
    rows = {name: row for name, row in earlier["rows"].items() if name not in report["judged"]}
    return counted({**report, "judged": earlier["judged"] | report["judged"], "rows": rows | report["rows"]})


def short(results: dict[str, str]) -> dict[str, str]:
    """The first wrong number and the first error."""
    firsts = {is_wrong({k: v}): (k, v) for k, v in reversed(results.items())}
    return dict(firsts.values())


def main() -> None:
    """Take in new files, and write the table."""
    reports = json.loads(DATA.read_text()) if DATA.exists() else {}
    for file in sys.argv[1:]:
        report = json.loads(Path(file).read_text())
        for row in report["rows"].values():
            row.update({where: short(row[where]) for where in ("alone", "inside")})
        earlier = reports.get(report["torch"])
        reports[report["torch"]] = report if earlier is None else merged(earlier, report)
    DATA.write_text(json.dumps(reports, indent=1) + "\n")
    TABLE.write_text(table(reports))


if __name__ == "__main__":
    main()
