"""The changes are those that are wanted, and a file whose operator has no spare line has no survivor."""

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
    """Operators, sides, signs, constants, branches, arguments, dropped terms; not errors, assertions, names or documentation."""
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
def test_mutants_are_caught():
    """Of one small file, each in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.mutants", "fullgrad/clamping/_clamp_by_linear.py", "--sample", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "caught 3 of 3" in done.stdout, done.stdout + done.stderr
