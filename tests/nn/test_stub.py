"""The types of the modules, which docs/stubs.py writes."""

import importlib.util
import sys
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("stubs", Path(__file__).parents[2] / "docs" / "stubs.py")
stubs = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(stubs)
PATHS = pytest.mark.parametrize("path", stubs.STUBS, ids=lambda path: path.name)


def classes(path):
    """The names of the classes in a file, in their order."""
    lines = path.read_text().splitlines()
    return [line.split("(")[0].removeprefix("class ") for line in lines if line.startswith("class ")]


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python writes types in other words from 3.14 on")
@PATHS
def test_each_class_has_the_types_of_its_function(path):
    """Of those that are written; ``python docs/stubs.py`` writes them anew."""
    written = path.read_text()
    assert [name for name in classes(path) if stubs.stub_of(stubs.STUBS[path], name) not in written] == []


@PATHS
def test_no_class_is_written_that_does_not_exist(path):
    """So that a checker finds it; a new class need not be written before the release."""
    assert set(classes(path)) <= set(stubs.names(stubs.STUBS[path]))
    assert len(classes(path)) >= 40
    assert "def __getattr__" not in path.read_text()
