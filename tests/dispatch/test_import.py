"""``import fullgrad`` does not wait for torch's compilers, and compiled code is right whenever they are imported."""

import os
import subprocess
import sys

import pytest

HEAVY = ("torch._dynamo", "torch._inductor", "torch.distributed.tensor", "sympy")
# The declared derivatives in compiled code, and what Dynamo would make of the plain forward: 0.
COMPILED = """
import torch, fullgrad
class Twice(fullgrad.Elementwise):
    reads = {0: ()}
    @staticmethod
    def forward(x):
        return x.floor()
    @staticmethod
    def vjp_term(i, v, x):
        return 2 * v
x = torch.tensor([0.3, 1.7])
def tangents(x):
    both = lambda x: fullgrad.round(x) + Twice.apply(x)
    return torch.func.jvp(both, (x,), (torch.ones(2),))[1], torch.func.grad(lambda x: both(x).sum())(x)
for found in torch.compile(tangents, backend="aot_eager", fullgraph=True)(x):
    assert found.tolist() == [3.0, 3.0], found
pair = fullgrad.ScalePair()
torch.compile(lambda x: fullgrad.ScaleTracker.apply(x, pair, torch.std), backend="aot_eager", fullgraph=True)(x)
print("right")
"""


def run(code):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    return subprocess.run(
        [sys.executable, "-W", "error::ImportWarning", "-c", code], env=environment, capture_output=True, text=True
    )


def test_the_compilers_are_not_imported():
    """Nor what they import: a fresh process has none of it that torch itself has not loaded."""
    done = run(f"import torch, sys; before = {{*sys.modules}}; import fullgrad; print(*{{*{HEAVY}}} & {{*sys.modules}} - before)")
    assert done.stdout.strip() == "", done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    "order",
    [
        "import torch._dynamo",
        "import fullgrad; import torch._dynamo",
        "import torch, fullgrad; torch._dynamo",
        "import fullgrad",
        "import torch; torch.compile(lambda x: x); import fullgrad",
    ],
)
def test_compiled_code_is_right(order):
    """With Dynamo before, after, or by the first ``torch.compile``; for operators of the package and of users."""
    done = run(order + COMPILED)
    assert done.stdout.strip() == "right", done.stderr[-1500:]


@pytest.mark.long
def test_operators_that_are_gone_are_forgotten():
    """What waits for Dynamo keeps no class alive."""
    code = """
import gc, weakref, fullgrad
def define():
    class Gone(fullgrad.Round):
        pass
    return weakref.ref(Gone)
found = define()
gc.collect()
print(found() is None)
import torch._dynamo
"""
    done = run(code)
    assert done.stdout.strip() == "True", done.stdout + done.stderr[-1500:]
