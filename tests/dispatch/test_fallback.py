"""Which lane is in use, and what broke when it is not the own one."""

import os
import subprocess
import sys

import pytest
import torch

from fullgrad._dispatch import DISPATCH, MISSING, torch_private


def test_own_lane_is_in_use():
    """A private name that torch renamed or removed shows here, by name. The fallback takes over: slower, not wrong."""
    if os.environ.get("FULLGRAD_DISPATCH") == "torch":
        assert DISPATCH == "torch"
    else:
        assert not MISSING, (
            f"torch changed: {', '.join(MISSING)} is gone, so the fallback is in use; see fullgrad/_dispatch/torch_private.py"
        )
        assert DISPATCH == "functorch"


def test_names_with_a_default_are_found():
    """Names without which something small is lost; each says what."""
    lost = {
        "forward_ad": "operators without a gradient take the slow path",
        "_interpreters": "torch.export of a vmap is refused",
        "_ordered": "scale tracking inside torch.compile raises",
        "_FakeTensor": "a pair may hold a tensor without data, whose reading fails with torch's words",
        "FakeTensorMode": "fullgrad.testing does not run",
        "TorchDispatchMode": "fullgrad.testing does not run",
    }
    gone = {name: what for name, what in lost.items() if getattr(torch_private, name) in (None, torch_private._LevelUnknown)}
    assert not gone, f"torch changed, see fullgrad/_dispatch/torch_private.py: {gone}"
    assert torch_private._is_legacy is torch._C._functorch.is_legacy_batchedtensor, "is_grads_batched cannot be tracked"
    assert torch_private._dispatch_modes is torch._C._len_torch_dispatch_stack, (
        "temporaries are not reused, and scales always take the graph's road"
    )


def _run(code: str, **environment: str) -> str:
    """What a new interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], env=os.environ | environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_missing_name_leads_to_the_torch_lane():
    """Without a name of the functorch dispatch the operators work through torch's public path, and say which name is missing."""
    code = """
import torch
del torch._C._functorch.unwrap_if_dead
import fullgrad
from fullgrad._dispatch import DISPATCH, MISSING
assert (DISPATCH, MISSING) == ("torch", ["torch._C._functorch.unwrap_if_dead"]), (DISPATCH, MISSING)
"""
    # torch itself uses the name, so the import alone is tried here; FULLGRAD_DISPATCH=fallback runs the whole suite in that lane.
    assert _run(code) == ""


def test_a_missing_name_that_both_lanes_need_is_an_error():
    """Without it forward mode would be silently zero, so the import fails and says what is gone."""
    code = """
import torch
del torch._C._set_fwd_grad_enabled
try:
    import fullgrad
except ImportError as error:
    print(error)
"""
    assert "torch._C._set_fwd_grad_enabled is gone" in _run(code)


@pytest.mark.parametrize("dispatch", ["functorch", "fallback"])
def test_the_dispatch_can_be_chosen(dispatch):
    """FULLGRAD_DISPATCH chooses the lane."""
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


def test_both_lanes_agree():
    """The same numbers come out of both, to the last bit."""
    assert _run(TRANSFORMS, FULLGRAD_DISPATCH="functorch") == _run(TRANSFORMS, FULLGRAD_DISPATCH="fallback")
