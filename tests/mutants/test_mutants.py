"""The mutation tool makes the changes that it should, and a file whose operator has no spare line has no survivor."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.changes import mutants, mutated

ROOT = Path(__file__).parents[2]
SOURCE = '''"""A module."""

LIMIT = 3


def f(x: float, y: float) -> float:
    """Of x."""
    if x < 2:
        raise ValueError("x" + "y")
    return g(x, -y, strict=True) + x
'''


def test_changes():
    """Changes concern operators, sides, signs, constants, branches, arguments and terms; not errors, assertions or names."""
    found = mutants(SOURCE)
    assert [(mutant.line, mutant.kind) for mutant in found] == [
        (8, "opposite"),
        (8, "other branch"),
        (8, "other constant"),
        (8, "other side"),
        (10, "only the left"),
        (10, "other operator"),
        (10, "swapped arguments"),
        (10, "without its sign"),
    ]
    sources = [mutated(SOURCE, mutant) for mutant in found]
    assert any("g(-y, x, strict=True) + x" in s for s in sources)
    assert any("return g(x, -y, strict=True)\n" in s + "\n" for s in sources)
    assert any("g(x, y, strict=True) + x" in s for s in sources)
    assert all("LIMIT = 3" in s for s in sources)


@pytest.mark.long
@pytest.mark.in_turn(12)
def test_mutants_are_caught():
    """The mutants of one small file are caught, each in its own process."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.mutants", "fullgrad/clamping/_clamp_by_linear.py", "--sample", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "caught 3 of 3" in done.stdout, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.in_turn(12)
def test_what_changes_nothing_survives():
    """The checks and tests of a mutant pass, one after the other, on the unchanged file."""
    path = ROOT / "fullgrad/clamping/_clamp_by_linear.py"
    code = f"""
import functools, pathlib
from tests.mutants.__main__ import _cases_of_files, _in_child, _is_caught, _stages
path = pathlib.Path({str(path)!r})
cases = [c.get(str(path), []) for c in _in_child(lambda connection: connection.send(_cases_of_files()))]
print("caught" if _is_caught(path, path.read_text(), functools.partial(_stages, path, *cases, True), set()) else "survives")
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "survives\n", done.stdout + done.stderr
