"""Every example runs as its page says."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_digits(tmp_path):
    """Trains, keeps its promises (it exits with an error otherwise), compares with a loop, and writes a picture."""
    command = [sys.executable, str(ROOT / "examples" / "digits.py"), "--seeds", "1", "--output", str(tmp_path / "digits.png")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "equal a loop over its samples" in done.stdout
    assert (tmp_path / "digits.png").stat().st_size > 10_000


def test_scales(tmp_path):
    """Measures, keeps its promises (it exits with an error otherwise), compares with a loop, and writes a picture."""
    command = [sys.executable, str(ROOT / "examples" / "scales.py"), "--output", str(tmp_path / "scales.png")]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "equal a loop over 8 samples" in done.stdout
    assert (tmp_path / "scales.png").stat().st_size > 10_000


def test_ranking(tmp_path):
    """Trains, keeps its promise (it exits with an error otherwise), prints a table, and writes a picture."""
    command = [sys.executable, str(ROOT / "examples" / "ranking.py"), "--seeds", "2", "--output", str(tmp_path / "ranking.png")]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "straight-through" in done.stdout
    assert (tmp_path / "ranking.png").stat().st_size > 10_000
