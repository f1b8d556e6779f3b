"""``python -m fullgrad torch``: it finds what is wrong and what raises, in torch alone and inside the context."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from fullgrad._suite.torch_samples import operators
from fullgrad.cli import main
from fullgrad.cli._torch import counted, is_wrong

pytest.importorskip("expecttest")
pytestmark = pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="torch is too old for it")
DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.long
def test_wrong_and_missing_operators(tmp_path, capsys):
    """A wrong one, one that raises, and a right one, with counts and a file."""
    file = tmp_path / "found.json"
    main(["torch", "cholesky_inverse", "nn.functional.glu", "sin", "--samples", "1", "--json", str(file)])
    report, told = json.loads(file.read_text()), capsys.readouterr().out
    assert report["operators"] == 3
    assert {*report["judged"]} == {"cholesky_inverse", "nn.functional.glu", "sin"}
    assert "sin" not in report["rows"]
    assert is_wrong(report["rows"]["cholesky_inverse"]["alone"])
    assert any("NotImplementedError" in v for v in report["rows"]["nn.functional.glu"]["alone"].values())
    assert not report["rows"]["nn.functional.glu"]["inside"]
    assert "torch alone 1 wrong without an error, 1 raise" in told
    assert "pytorch#198017" in told


def test_an_operator_that_is_wrong_inside_fails(monkeypatch, request):
    """The exit status says so."""
    from fullgrad.completion import _pointwise  # noqa: F401  it enters the operator
    from fullgrad.completion._completing import restore
    from fullgrad.completion._registry import COMPLETED

    wrong = COMPLETED["glu"]._replace(formula=lambda x, dim=-1: 2 * x.narrow(dim, 0, x.shape[dim] // 2))
    monkeypatch.setitem(COMPLETED, "glu", wrong)
    restore()  # kernels that an open context had made have the formula that was there
    request.addfinalizer(restore)
    assert main(["torch", "nn.functional.glu", "--samples", "1"]) == 1


def test_unknown_names():
    """They are usage errors."""
    assert main(["torch", "no_such_operator"]) == 2


def script():
    spec = importlib.util.spec_from_file_location("torch_operators", DOCS / "torch_operators.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_the_table_is_that_of_the_numbers():
    """The page includes what the script writes."""
    reports = json.loads(script().DATA.read_text())
    assert script().table(reports) == script().TABLE.read_text()
    assert len(reports) >= 3
    for report in reports.values():
        assert not any(is_wrong(row["inside"]) for row in report["rows"].values())


def test_every_operator_is_in_a_table():
    """Of the torch that the page is about, or on the list of those that are not judged; and no other."""
    report = json.loads(script().DATA.read_text()).get(torch.__version__.split("+")[0])
    if report is None or len(report["judged"]) < 400:
        pytest.skip("the page has no whole table of this torch")
    assert {*report["judged"]} == {op.name for op in operators()}


def test_reports_of_parts_are_put_together():
    """Later results take the place of earlier ones; what was not judged has an empty cell."""
    row = {"alone": {"reverse": "wrong: 1 for 2"}, "inside": {}, "issue": 7}
    first = counted({"torch": "2.0.0", "judged": {"a": 2, "b": 1}, "rows": {"a": row, "b": row}})
    second = counted({"torch": "2.0.0", "judged": {"b": 3, "c": 0}, "rows": {}})
    both = script().merged(first, second)
    assert (both["operators"], both["samples"], both["without"], [*both["rows"]]) == (2, 5, ["c"], ["a"])
    table = script().table({"2.0.0": both, "2.1.0": counted({"torch": "2.1.0", "judged": {"b": 1}, "rows": {}})})
    assert "| `a` | wrong |  | right | [#7](https://github.com/pytorch/pytorch/issues/7) |" in table
