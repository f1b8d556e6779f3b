"""The types of the modules, which docs/stubs.py writes."""

import importlib.util
import sys
from pathlib import Path

import pytest

from fullgrad import nn

ROOT = Path(__file__).parents[2]
STUB = ROOT / "fullgrad" / "nn" / "__init__.pyi"


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python writes types in other words from 3.14 on")
def test_each_class_has_the_types_of_its_function():
    """Written classes have the types of their functions; ``python docs/stubs.py`` writes them."""
    spec = importlib.util.spec_from_file_location("stubs", ROOT / "docs" / "stubs.py")
    stubs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stubs)
    written = STUB.read_text()
    names = [name for name in nn.__all__[1:] if f"class {name}(" in written]
    assert len(names) > 100
    assert [name for name in names if stubs.stub_of(name) not in written] == []


def test_no_class_is_written_that_does_not_exist():
    names = [line.split("(")[0].removeprefix("class ") for line in STUB.read_text().splitlines() if line.startswith("class ")]
    assert set(names) <= set(nn.__all__)
