"""The table of variances in docs/families/blackbox.md."""

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def script():
    spec = importlib.util.spec_from_file_location("variances", DOCS / "variances.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.long
def test_the_table_of_variances_is_current():
    """The page has the rows of ``docs/variances.py``, and numbers that fewer trials reproduce."""
    variances, page = script(), (DOCS / "families" / "blackbox.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    rows = {row[0]: [float(v) for v in row[1:]] for row in rows if row[0] in variances.ROWS}
    assert [*rows] == [*variances.ROWS]
    for name, numbers in rows.items():
        for shift, number in zip((0.0, 10.0), numbers, strict=True):
            assert variances.relative_variance(variances.ROWS[name], shift, 2_000) == pytest.approx(number, rel=0.25), name
