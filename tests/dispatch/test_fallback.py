"""The choice of the dispatch, and what is lost when it is the fallback."""

import os
import subprocess
import sys
import types

import pytest
import torch

from fullgrad._dispatch import DISPATCH, LOST, MISSING, torch_private


def test_functorch_dispatch_is_in_use():
    """A private name that torch renamed or removed shows here. The fallback takes over: slower, not wrong."""
    assert not MISSING, (
        f"torch {torch.__version__} has no {', '.join(MISSING)}, so the fallback is in use and every call is slower. Each "
        "stands in fullgrad/_dispatch/torch_private.py with its purpose: find the new name."
    )
    chosen = os.environ.get("FULLGRAD_DISPATCH", "functorch")
    assert chosen == DISPATCH, f"FULLGRAD_DISPATCH={chosen}, and the dispatch in use is {DISPATCH}"


def test_names_with_a_default_are_found():
    """Names that have a default are found; each says what is lost without it."""
    broken = "; ".join(f"{name} is gone: {what}" for name, what in LOST.items())
    assert not LOST, f"torch {torch.__version__} changed, see fullgrad/_dispatch/torch_private.py. {broken}."


def test_a_name_or_a_method_that_is_gone_is_missing(monkeypatch):
    """A class that torch has may have lost a method."""
    monkeypatch.setattr(torch_private, "MISSING", [])
    torch_private._functorch("nn.Linear", "forward", "gone")
    torch_private._functorch("gone", "forward")
    assert torch_private.MISSING == ["torch.nn.Linear.gone", "torch.gone"]


def test_where_inductor_is_not_in_use_there_is_nothing_to_tell(monkeypatch):
    """The dict stays as it is where inductor is not in use, or where it knows all names."""
    monkeypatch.setitem(sys.modules, "torch._inductor.config", None)
    torch_private.mark_cacheable({"f": "key"})
    config = types.SimpleNamespace(unsafe_marked_cacheable_functions={"f": "key", "g": "other"})
    monkeypatch.setitem(sys.modules, "torch._inductor.config", config)
    known = config.unsafe_marked_cacheable_functions
    for functions in ({"f": "key"}, dict(known)):
        torch_private.mark_cacheable(functions)
        assert config.unsafe_marked_cacheable_functions is known
    torch_private.mark_cacheable({"f": "new"})
    assert known == {"f": "key", "g": "other"}
    assert config.unsafe_marked_cacheable_functions == {"f": "new", "g": "other"}


def test_a_private_name_stands_in_the_table_alone():
    """Only `torch_private` spells torch's private names."""
    folder = os.path.dirname(torch_private.__file__)
    private = ("torch._C", "torch._VF", "torch._subclasses", "torch.utils._", "_functorch.", "._backward_cls", "unsafe_marked")
    for root, _, files in os.walk(os.path.dirname(folder)):
        for file in files:
            path = os.path.join(root, file)
            if file.endswith(".py") and path != torch_private.__file__:
                with open(path, encoding="utf-8") as text:
                    found = [name for name in private if name in text.read()]
                assert not found, f"{path} has {found}"


def _run(code: str, **environment: str) -> str:
    """The output of a new interpreter."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], env=os.environ | environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.long
# torch itself uses the names, so the import alone is tried here; FULLGRAD_DISPATCH=fallback runs the whole suite.
@pytest.mark.parametrize("name", ["unwrap_if_dead", "CGradInterpreterPtr.prevGradMode"])
def test_a_missing_name_leads_to_the_fallback(name):
    """Without a name of the functorch dispatch the operators use the public autograd.Function, and say which name is missing."""
    code = f"""
import torch
del torch._C._functorch.{name}
import fullgrad
from fullgrad._dispatch import DISPATCH, MISSING
assert (DISPATCH, MISSING) == ("fallback", ["torch._C._functorch.{name}"]), (DISPATCH, MISSING)
"""
    assert _run(code) == ""


@pytest.mark.long
def test_a_missing_name_with_a_default_is_told():
    """Without such a name the operators work as before, and a message says what is lost."""
    code = """
import torch
from torch.func import hessian
del torch._C._ForceDispatchKeyGuard
import fullgrad
from fullgrad._dispatch import LOST
hessian(lambda x: fullgrad.soft_round(x).sum())(torch.ones(3))
print(LOST)
"""
    lost = _run(code)
    assert "torch._C._ForceDispatchKeyGuard" in lost
    assert "an operator inside a composite torch.library operator raises under nested transforms" in lost


def test_a_missing_name_that_both_dispatches_need_is_an_error():
    """Without it forward mode would be silently zero, so the first use of a name fails and says what is gone."""
    code = """
import torch
del torch._C._set_fwd_grad_enabled
import fullgrad
try:
    fullgrad.Function
except ImportError as error:
    print(error)
"""
    assert "torch._C._set_fwd_grad_enabled is gone" in _run(code)


@pytest.mark.long
@pytest.mark.parametrize("dispatch", ["functorch", "fallback"])
def test_the_dispatch_can_be_chosen(dispatch):
    """FULLGRAD_DISPATCH chooses it."""
    code = "from fullgrad._dispatch import DISPATCH; print(DISPATCH)"
    assert _run(code, FULLGRAD_DISPATCH=dispatch) == ("fallback" if MISSING else dispatch)


TRANSFORMS = """
import torch, fullgrad
from torch.func import grad, hessian, jacfwd, jvp, vmap
x = torch.tensor([-1.3, 0.4, 2.6], dtype=torch.float64)
f = lambda x: (fullgrad.soft_round(x) ** 2 * fullgrad.clamp(x, -1.0, 1.0)).sum()
print([t.tolist() for t in (grad(f)(x), hessian(f)(x), jacfwd(jacfwd(f))(x), vmap(grad(f))(x[:, None]), jvp(f, (x,), (x,))[1])])
print(torch.compile(grad(f), backend="aot_eager", fullgraph=True)(x).tolist())
"""


@pytest.mark.long
def test_both_dispatches_agree():
    """The same numbers come out of both, to the last bit."""
    assert _run(TRANSFORMS, FULLGRAD_DISPATCH="functorch") == _run(TRANSFORMS, FULLGRAD_DISPATCH="fallback")
