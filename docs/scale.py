"""The table of what ranks send and hold, in docs/guides/distributed.md: ``python docs/scale.py`` from the root of a checkout.

The costs of two and four ranks are counted, in processes on gloo; others come from the model of tests/distributed/scale.py, which
the tests compare with the counts.
"""

import json
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.distributed.ranks import in_processes  # noqa: E402
from tests.distributed.scale import FAMILIES, counted  # noqa: E402

COUNTED, MODEL = (2, 4), (64, 1024)
ELEMENTS = 2**20


def write(rank: int, ranks: int, file: str) -> None:
    """Write the costs that the first rank counts to a file."""
    costs = [counted(family, ELEMENTS, ranks) for family in FAMILIES]
    if rank == 0:
        pathlib.Path(file).write_text(json.dumps(costs))


def main() -> None:
    """Count the costs, and write the table: in units of the whole tensor, or bytes for single numbers."""
    found = {}
    for ranks in COUNTED:
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            in_processes(write, ranks, file.name)
            found[ranks] = json.loads(pathlib.Path(file.name).read_text())
    heads = [f"{n} ranks" for n in COUNTED] + [f"{n:,}" for n in MODEL]
    columns = ["operator", "computes", *(f"sends: {n}" for n in heads), *(f"holds: {n}" for n in heads)]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for i, family in enumerate(FAMILIES):
        costs = [found[n][i] for n in COUNTED] + [family.cost(ELEMENTS, n) for n in MODEL]
        sent = [f"{cost[0]:.0f} B" if family.numbers else _share(cost[0]) for cost in costs]
        lines.append(f"| {family.name} | {family.computes} | {' | '.join([*sent, *(_share(cost[1]) for cost in costs)])} |")
    text = "\n".join(lines) + "\n"
    (ROOT / "docs" / "data" / "scale.txt").write_text(text)
    sys.stdout.write(text)


def _share(size: float) -> str:
    share = size / (4 * ELEMENTS)
    return "0" if share == 0 else f"{share:.3g}"


if __name__ == "__main__":
    main()
