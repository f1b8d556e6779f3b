"""The page of the contract."""

import pathlib
import subprocess
import sys

import pytest
import torch

DOCS = pathlib.Path(__file__).parents[2] / "docs"


@pytest.mark.long
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the table is of torch 2.13")
def test_table_of_the_contract_is_current():
    """The table of the contract is what ``docs/compare.py`` prints."""
    table = subprocess.run([sys.executable, DOCS / "compare.py", "--table"], capture_output=True, text=True, check=True).stdout
    assert table in (DOCS / "contract.md").read_text()
