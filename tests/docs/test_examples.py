"""Every example runs as its page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

# What an example is given besides a file for its picture.
ARGUMENTS = {
    "digits": ["--seeds", "1", "--output"],
    "ranking": ["--seeds", "2", "--output"],
    "scales": ["--output"],
    "spiking": ["--output"],
}
# What it says, besides ending without an error.
OUTPUT = {
    "adopting": r"^snntorch.*: gradients of \d+ samples in one call equal a loop",
    "choosing": "equal a loop over 8 samples",
    "clamp_range": "learned is ahead of fixed",
    "deploy": r"first weight is \d+ integers(.|\n)*(the digit of torch for|no ONNX file is written)",
    "digits": "equal a loop over its samples",
    "distributed": r"^2 processes(.|\n)*tensor parallel +\d\.\de-1\d\nsum of clipped gradients",
    "equilibrium": r"gradients of 8 samples equal those(.|\n)*Hessian-vector product",
    "hyperparameters": r"from finite differences(.|\n)*closed form(.|\n)*1,000 draws",
    "forward_mode": "slopes equal the gradient",
    "quantization": r"mixed bits: loss .* uniform (.|\n)*torch\.export: equal outputs(.|\n)*ONNX: (equal|not installed)",
    "ranking": "straight-through",
    "scales": "equal a loop over 8 samples",
    "spiking": r"loop over 8 samples(.|\n)*snntorch: (the spikes|not installed)(.|\n)*sinabs: (the spikes|not installed)",
    "spectrum": r"autograd\.Function +forward over forward",
    # Of every package either, in the order of the page: what it found, or that it is not there.
    "plugins": r"^snntorch: (test accuracy|not installed, skipped)(.|\n)*"
    r"^opacus: (per-sample gradients|not installed, skipped)(.|\n)*"
    r"^curvlinops: (Hessian|not installed, skipped)",
}
WITHOUT_PICTURE = {"deploy", "distributed", "plugins"}


@pytest.mark.exhaustive  # CI builds the gallery, which runs each
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, tmp_path):
    """Each example asserts its promises, prints its results, and writes its picture."""
    picture = tmp_path / "picture.png"
    command = [sys.executable, str(path), *ARGUMENTS.get(path.stem, []), str(picture)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "agg", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert re.search(OUTPUT.get(path.stem, ""), done.stdout, re.MULTILINE), done.stdout
    assert path.stem in WITHOUT_PICTURE or picture.stat().st_size > 10_000


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_page(path):
    """Each example is a page of the gallery: a title, and cells."""
    title, underline = path.read_text(encoding="utf-8").removeprefix("r").removeprefix('"""\n').splitlines()[:2]
    assert title
    assert underline == "=" * len(title)
    assert "\n# %%\n" in path.read_text(encoding="utf-8")
