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
    """A fresh process has no compiler of torch, nor its imports, that torch itself has not loaded."""
    # Something else that is imported later does not bring them either.
    imports = "import torch, sys; before = {*sys.modules}; import fullgrad; fullgrad.round(torch.ones(2)); import ftplib"
    done = run(f"{imports}; print(*{{*{HEAVY}}} & {{*sys.modules}} - before)")
    assert done.stdout.strip() == "", done.stdout + done.stderr


def test_families_wait_until_they_are_asked_for():
    """A name at the top imports what it needs; ``import *`` and ``dir`` have all; a wrong name is an AttributeError."""
    code = """
import sys, fullgrad
loaded = lambda: {name.split(".")[1] for name in sys.modules if name.startswith("fullgrad.") and name.split(".")[1][0] != "_"}
assert loaded() == set(), loaded()
fullgrad.clamp
assert loaded() == {"clamping"}, loaded()
assert {"round_st", "spikes", "nn", "Function"} <= {*dir(fullgrad)}
names = {}
exec("from fullgrad import *", names)
assert {*fullgrad.__all__} <= {*names} and "nn" not in names
assert names["clamp"] is fullgrad.clamp is fullgrad.clamping.clamp and fullgrad.clamp.__module__ == "fullgrad"
assert not hasattr(fullgrad, "clamq") and not hasattr(fullgrad, "_clamp")
print("right")
"""
    done = run(code)
    assert done.stdout.strip() == "right", done.stderr[-1500:]


# Operators of four families, none of which has been imported.
FIRST_USE = """
import sys, torch, fullgrad
from torch.fx.experimental.proxy_tensor import make_fx
from torch._subclasses import FakeTensorMode
torch.manual_seed(0)
x = torch.randn(5, 4, dtype=torch.float64)
def first(x):
    y = fullgrad.rank_st(x, 0) + fullgrad.soft.round(x) + fullgrad.spikes.atan(x)
    return y + fullgrad.quantizers.fake_quantize(x, 0.5, 0.0, -8, 7)
class First(torch.nn.Module):
    def forward(self, x):
        return first(x)
slope = torch.func.grad(lambda x: first(x).sum())
found = INSIDE
compiled = torch.compile(slope, backend="aot_eager") if "torch._dynamo" in sys.modules else slope
again = first(x), slope(x), torch.func.vmap(first, in_dims=1, out_dims=1)(x), compiled(x)
torch.testing.assert_close(again[::2], (first(x), first(x)))
torch.testing.assert_close(again[1::2], (slope(x), slope(x)))
if found is not None:
    torch.testing.assert_close(found, first(x))
print("right")
"""


@pytest.mark.sampled(of=3)
@pytest.mark.long
@pytest.mark.parametrize(
    "inside",
    [
        "torch.func.vmap(first, in_dims=1, out_dims=1)(x)",
        "torch.func.jvp(first, (x,), (x,))[0]",
        "slope(x) * 0 + first(x)",
        "torch.compile(first, backend='aot_eager', fullgraph=True)(x)",
        "make_fx(first)(x)(x)",
        "make_fx(first, tracing_mode='symbolic')(x)(x)",
        "torch.export.export(First(), (x,)).module()(x)",
        "torch.jit.trace(first, (x,), check_trace=False)(x)",
        "torch.inference_mode()(first)(x).clone()",
        "[FakeTensorMode().__enter__(), first(torch.ones(5, 4)), torch.utils._python_dispatch._pop_mode()].clear()",
        "[torch.set_default_device('meta'), first(torch.ones(5, 4)), torch.set_default_device('cpu')].clear()",
    ],
)
def test_first_use_inside_a_transform(inside):
    """A first import in the middle of a transform works as any other."""
    done = run("import warnings; warnings.simplefilter('ignore')" + FIRST_USE.replace("INSIDE", inside))
    assert done.stdout.strip() == "right", done.stderr[-1500:]


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
@pytest.mark.sampled(of=2)
def test_compiled_code_is_right(order):
    """Compiled code is right with Dynamo imported before, after, or by ``torch.compile``; for our operators and users'."""
    done = run(order + COMPILED)
    assert done.stdout.strip() == "right", done.stderr[-1500:]


TWICE = """
import sys, torch
def use():
    import fullgrad
    f = fullgrad.custom_jvp(torch.sin)
    f.defjvp(lambda p, t: (f(*p), p[0].cos() * t[0]))
    def run(x):
        return fullgrad.round(f(x) * 3) + fullgrad.soft.relu(x) + fullgrad.checkpoint(torch.tanh, x)
    x, found = torch.linspace(-1, 1, 5, requires_grad=True), []
    for g in (run, torch.compile(run, backend='aot_eager')):
        with fullgrad.adopting(), fullgrad.completing():
            found += torch.autograd.grad(g(x).sum(), x)
    assert torch.allclose(*found)
    return found[0]
first = use()
for name in [n for n in sys.modules if n.partition('.')[0] == 'fullgrad']:
    del sys.modules[name]
print("right" if torch.equal(use(), first) else "wrong")
"""


@pytest.mark.long
def test_a_second_import_is_right():
    """Where a notebook or a test runner drops the modules of the package and imports it anew, in compiled code, too."""
    done = run(TWICE)
    assert done.stdout.strip() == "right", done.stderr[-1500:]


@pytest.mark.long
def test_operators_that_are_gone_are_forgotten():
    """Callbacks that wait for Dynamo keep no class alive."""
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


def test_operators_made_of_functions_load_no_relaxation():
    """A family that takes functions of any code stands on the engine alone."""
    imports = "import sys, fullgrad.adoption, fullgrad.blackbox, fullgrad.completion, fullgrad.functions, fullgrad.implicit; "
    done = run(imports + "print(*[name for name in sys.modules if name.startswith('fullgrad.soft')])")
    assert done.stdout.strip() == "", done.stdout + done.stderr
