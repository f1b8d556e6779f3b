"""The Triton code of an H100 for every elementwise operator, run by Triton's interpreter on the memory of the second device."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys

import pytest
import torch

SLICES = 12

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(shutil.which("g++") is None, reason="the second device is not built without g++"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(torch.accelerator.is_available(), reason="inductor takes one kind of accelerator"),
]

# Inductor's private names that `tests.devices.inductor` uses.
GONE = ("ImportError", "ModuleNotFoundError", "AttributeError")


@pytest.mark.parametrize("first", range(SLICES))
def test_one_kernel_each_way_computes_what_eager_code_does(first):
    """One kernel forward, and one backward with one more for the sum of each parameter's gradient."""
    command = [sys.executable, "-m", "tests.devices.inductor", str(first), str(SLICES)]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False)
    if done.returncode and not done.stdout and done.stderr.strip().splitlines()[-1].startswith(GONE):
        pytest.skip(f"inductor has changed: {done.stderr.strip().splitlines()[-1]}")
    assert not done.returncode, done.stderr[-2000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) > 5
    assert not [e["name"] for e in found if not e["equal"]]
    assert not [(e["name"], e["kernels"]) for e in found if e["kernels"][0] != 1 or sum(e["kernels"][1:]) > 1 + e["parameters"]]
