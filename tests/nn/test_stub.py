"""The types of the modules, which docs/stubs.py writes."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("stubs", ROOT / "docs" / "stubs.py")
stubs = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(stubs)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python writes types in other words from 3.14 on")
@pytest.mark.parametrize("path", stubs.STUBS, ids=lambda path: path.name)
def test_each_class_has_the_types_of_its_function(path):
    """``python docs/stubs.py`` writes them anew."""
    written = path.read_text()
    assert [name for name in stubs.names(stubs.STUBS[path]) if stubs.stub_of(stubs.STUBS[path], name) not in written] == []


@pytest.mark.parametrize("path", stubs.STUBS, ids=lambda path: path.name)
def test_the_classes_that_are_written_are_those_that_exist(path):
    """So that a checker finds a name that does not exist."""
    lines = path.read_text().splitlines()
    written = [line.split("(")[0].removeprefix("class ") for line in lines if line.startswith("class ")]
    assert written == stubs.names(stubs.STUBS[path])
    assert not any("def __getattr__" in line for line in lines)
