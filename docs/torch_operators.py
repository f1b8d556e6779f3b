"""The table of torch's own operators in docs/completing.md: ``python docs/torch_operators.py [FILE …]``.

The files are what ``python -m fullgrad torch --json FILE`` wrote, one for each version of torch. They are kept in docs/data.
"""

import json
import sys
from pathlib import Path
from typing import Any

from fullgrad.cli._torch import counts, is_wrong

DATA = Path(__file__).parent / "data" / "torch-operators.json"
TABLE = Path(__file__).parent / "data" / "torch-operators.txt"


def said(results: dict[str, str]) -> str:
    """Wrong, else raises, else right."""
    return "wrong" if is_wrong(results) else "raises" if results else "right"


def table(reports: dict[str, Any]) -> str:
    """The counts of each version, and a row for each operator of which something is wrong or missing in one of them."""
    versions = sorted(reports, key=lambda v: [int(n) for n in v.split(".")])
    lines = [counts(reports[version]) + "\n" for version in versions]
    lines += [f"| operator | {' | '.join(f'torch {v}' for v in versions)} | inside | issue |", "|---" * (len(versions) + 3) + "|"]
    for name in sorted({name for report in reports.values() for name in report["rows"]}, key=str.lower):
        rows = [reports[version]["rows"].get(name, {"alone": {}, "inside": {}, "issue": None}) for version in versions]
        issue = next((row["issue"] for row in rows if row["issue"]), None)
        link = f"[#{issue}](https://github.com/pytorch/pytorch/issues/{issue})" if issue else ""
        inside = {said(row["inside"]) for row in rows} - {"right"}
        cells = [said(row["alone"]) for row in rows]
        lines.append(f"| `{name}` | {' | '.join(cells)} | {', '.join(sorted(inside)) or 'right'} | {link} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Take in new files, and write the table."""
    reports = json.loads(DATA.read_text()) if DATA.exists() else {}
    for file in sys.argv[1:]:
        report = json.loads(Path(file).read_text())
        reports[report["torch"]] = report
    DATA.write_text(json.dumps(reports, indent=1) + "\n")
    TABLE.write_text(table(reports))


if __name__ == "__main__":
    main()
