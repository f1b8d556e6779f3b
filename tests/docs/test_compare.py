"""The landing page."""

import importlib.util
import pathlib
import sys

import pytest
import torch

DOCS = pathlib.Path(__file__).parents[2] / "docs"


@pytest.mark.long
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the table is of torch 2.13")
def test_table_of_the_landing_page_is_current():
    """What the three ways give, when they run."""
    spec = importlib.util.spec_from_file_location("compare", DOCS / "compare.py")
    compare = importlib.util.module_from_spec(spec)
    sys.modules["compare"] = compare  # for Dynamo
    spec.loader.exec_module(compare)
    assert compare.markdown() in (DOCS / "index.md").read_text()
