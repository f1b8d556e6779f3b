"""Forward mode while something traces, one input at a time.

There ``add`` and ``sub`` of torch 2.13 with ``alpha=`` end the process by a segmentation fault where the second of two tensors
has no tangent, so each list of cases has a process of its own.
"""

import subprocess
import sys

import pytest

from fullgrad._suite.cases import CASES
from tests.traced import NAMES

TRACES = """
import sys
import torch
from torch.func import grad, jvp
from torch.fx.experimental.proxy_tensor import make_fx
from fullgrad._suite.cases import CASES
from fullgrad.testing._subject import close, like, scalar

for case in [c for c in CASES if c.name in sys.argv[1:]]:
    tensors = case.tensors
    for i, x in enumerate(tensors):
        print(case.name, i, flush=True)
        f = lambda v: case.op(*tensors[:i], v, *tensors[i + 1 :])
        tangent = lambda v, t: jvp(grad(scalar(f)), (v,), (t,))[1]
        t = like(x, 1)
        close(make_fx(tangent)(x, t)(x, t), tangent(x, t))
print("done")
"""
SEVERAL = [c for c in CASES if len(c.diff_argnums) > 1 and c.has_tangent]


def names(chosen):
    return [c.name for c in SEVERAL if chosen(c)]


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(names(lambda c: c.name in NAMES[:3]), id="a few"),
        pytest.param(
            names(lambda c: not c.exhaustive and c.name not in NAMES[:3]),
            id="every operator",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(names(lambda c: c.exhaustive), id="every mode", marks=pytest.mark.exhaustive),
    ],
)
def test_tangents_of_each_input_alone_are_traced(names):
    """The tangent of the gradient along each input is the same traced as not traced."""
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", TRACES, *names], capture_output=True, text=True)
    printed = run.stdout.splitlines() or [""]
    assert printed[-1] == "done", f"ended with {run.returncode} after {printed[-1]}: {run.stderr[-1500:]}"
