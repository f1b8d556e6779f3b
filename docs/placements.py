"""The table of operators and placements in docs/guides/distributed.md: ``python docs/placements.py`` from the root of a checkout.

Every everyday and long case of the suite runs on two ranks, in threads, on each placement, and is compared with one process.
"""

import collections
import pathlib
import sys

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from fullgrad._suite import cases  # noqa: E402
from tests.distributed.ranks import PLACEMENTS  # noqa: E402
from tests.distributed.test_matrix import EVERYDAY, OTHERS, check, derivatives_of  # noqa: E402

FAMILIES = (
    "rounding",
    "clamping",
    "gradients",
    "tracking",
    "soft",
    "order",
    "spikes",
    "quantizers",
    "sampling",
    "simplex",
    "functions",
)


def main() -> None:
    """Run every case on every placement, and write the table."""
    torch.set_num_threads(1)
    family = {c.name: f for f in FAMILIES for c in getattr(cases, f).CASES}
    right: dict[tuple[str, str], int] = collections.Counter()
    total: dict[str, int] = collections.Counter()
    raised: list[str] = []
    for case in [*EVERYDAY, *OTHERS]:
        total[family[case.name]] += 1
        for name in PLACEMENTS:
            try:
                check(case, (name,), (2,), derivatives_of(case))
            except Exception as error:
                if isinstance(error, AssertionError) and "out variant" not in str(error):  # the latter is torch's
                    raise
                raised.append(f"- `{case.name}`, {name}: {type(error).__name__}: {str(error).splitlines()[0][:120]}")
            else:
                right[family[case.name], name] += 1
    lines = [f"| family | {' | '.join(PLACEMENTS)} |", "|---|" + "---|" * len(PLACEMENTS)]
    lines += [f"| {f} | " + " | ".join(f"{right[f, p]} of {total[f]}" for p in PLACEMENTS) + " |" for f in FAMILIES if total[f]]
    text = "\n".join(lines) + "\n"
    if raised:
        text += "\nThe others raise:\n\n" + "\n".join(raised) + "\n"
    (ROOT / "docs" / "data" / "placements.txt").write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
