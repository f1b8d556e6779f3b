"""``python -m fullgrad torch``: it finds what is wrong and what raises, in torch alone and inside the context."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from fullgrad._suite.torch_operators import WRONG, measured, operators
from fullgrad.cli import main

pytest.importorskip("expecttest")
pytestmark = pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="torch is too old for it")
DOCS = Path(__file__).parents[2] / "docs"


def test_wrong_and_missing_operators(tmp_path, capsys):
    """A wrong one, one that raises, and a right one, with counts and a file."""
    file = tmp_path / "found.json"
    assert main(["torch", "cumprod", "nn.functional.glu", "sin", "--samples", "8", "--json", str(file)]) == 0
    report, told = json.loads(file.read_text()), capsys.readouterr().out
    assert report["operators"] == 3
    assert set(report["rows"]) == {"cumprod", "nn.functional.glu"}
    assert WRONG in report["rows"]["cumprod"]["alone"].values()
    assert any("NotImplementedError" in v for v in report["rows"]["nn.functional.glu"]["alone"].values())
    assert not any(row["inside"] for row in report["rows"].values())
    assert "torch alone 1 wrong without an error, 1 raise; inside completing 0 wrong" in told
    assert "pytorch#196701" in told


def test_an_operator_that_is_wrong_inside_fails(monkeypatch):
    """The exit status says so."""
    from fullgrad.completion import _products

    monkeypatch.setattr(_products, "_product", lambda x: 2 * x.sum(-1))
    assert main(["torch", "prod", "--samples", "2"]) == 1


def test_first_derivatives_are_compared():
    """A tangent that is lost is seen."""
    (op,) = [op for op in operators() if op.name == "exp"]
    wrong, right = op.op, measured(op, 1)
    assert right == (1, {}, {})
    try:
        op.op = lambda x: wrong(x.detach()) + x - x.detach()
        assert set(measured(op, 1).alone) >= {"reverse", "forward"}
    finally:
        op.op = wrong


def test_unknown_names():
    """They are usage errors."""
    assert main(["torch", "no_such_operator"]) == 2


def test_the_table_is_that_of_the_numbers():
    """The page includes what the script writes."""
    spec = importlib.util.spec_from_file_location("torch_operators", DOCS / "torch_operators.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    reports = json.loads(script.DATA.read_text())
    assert script.table(reports) == script.TABLE.read_text()
    assert len(reports) >= 3
    for report in reports.values():
        assert not any(WRONG in row["inside"].values() for row in report["rows"].values())
