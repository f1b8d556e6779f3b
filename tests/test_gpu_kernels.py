"""Kernels for GPUs where there is no GPU: when they run, and what happens if they cannot."""

import os
import subprocess
import sys

import pytest


def output_of(code, **variables):
    """What a process prints that runs some code."""
    kept = {k: v for k, v in os.environ.items() if k not in ("FULLGRAD_TRITON", "TRITON_INTERPRET")}
    done = subprocess.run([sys.executable, "-c", code], env={**kept, **variables}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_tensors_on_the_cpu_import_no_triton():
    """Nor does the package: Triton is imported at the first tensor that a kernel is for."""
    code = "import sys, torch, fullgrad\nfullgrad.soft.sparsemax(torch.randn(3)), fullgrad.soft.sort(torch.randn(3))"
    assert output_of(code + "\nprint('triton' in sys.modules)") == "False\n"


MISSING = """
import sys, warnings
import torch, fullgrad
from fullgrad._fast import gpu
sys.modules["triton"] = None
x = torch.randn(2, 5)
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    first, second = fullgrad.soft.sparsemax(x), fullgrad.soft.rank(x)
gpu.SWITCH = "0"
print([str(w.message).split(",")[0] for w in found], torch.equal(first, fullgrad.soft.sparsemax(x)))
"""


@pytest.mark.long
def test_without_triton_formulas_run_with_one_warning():
    """The warning says that rows take many kernels."""
    assert output_of(MISSING, FULLGRAD_TRITON="interpret") == "['fullgrad: Triton is not installed'] True\n"


FAILING = """
import types, sys, warnings
import torch, fullgrad
from fullgrad._fast import gpu

def run(*args, **options):
    raise RuntimeError("another world's PTX")

sys.modules["triton"] = types.ModuleType("triton")
for name in ("thresholds", "pairs"):
    sys.modules[f"fullgrad._fast.gpu.{name}"] = types.SimpleNamespace(run=run)
x = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
for f in (fullgrad.soft.sparsemax, lambda x: fullgrad.topk_mask_st(x, 2), fullgrad.soft.rank, lambda x: fullgrad.sort_st(x)[0]):
    gpu.SWITCH = "interpret"
    gpu._failed.clear()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        results = [torch.autograd.grad(f(x).square().sum(), x)[0] for _ in range(2)]
    gpu.SWITCH = "0"
    expected = torch.autograd.grad(f(x).square().sum(), x)[0]
    print([str(w.message)[:28] for w in found if "fullgrad" in str(w.message)], all(torch.allclose(v, expected) for v in results))
"""


@pytest.mark.long
def test_a_kernel_that_fails_gives_way_to_its_formula_with_one_warning():
    """Forward and backward, in that call and in later ones."""
    assert output_of(FAILING, FULLGRAD_TRITON="interpret") == "['fullgrad: the Triton kernels'] True\n" * 4


@pytest.mark.long
def test_the_switch():
    """A tensor on the CPU has a kernel by the interpreter alone."""
    code = (
        "import sys, torch\nfrom fullgrad._fast import gpu\nsys.modules['triton'] = sys\nprint(gpu.is_served(torch.ones(3), 3))"
    )
    assert [output_of(code, FULLGRAD_TRITON=v) for v in ("0", "1", "interpret")] == ["False\n", "False\n", "True\n"]
