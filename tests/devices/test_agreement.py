"""Every case computes on an accelerator what it computes on the CPU, in every precision, eager and compiled."""

import pytest
import torch
from torch.func import grad, jvp, vmap

from fullgrad._suite.cases import CASES
from fullgrad.testing._subject import close, like, scalar
from tests.devices import accelerator, is_registered
from tests.devices.test_every_case import tensors_in

pytestmark = pytest.mark.skipif(accelerator() is None, reason="needs a GPU, or -p tests.devices.plugin")

ALL = [pytest.param(c, marks=[pytest.mark.exhaustive] * c.exhaustive, id=c.name) for c in CASES if not c.draws]
FUSED = [pytest.param(c, id=c.name) for c in CASES if c.of == "elements" and c.elementwise and not c.exhaustive and not c.draws]


def results(case, device, dtype):
    """Value, gradients, per-sample gradients and tangent in a precision, on the CPU."""
    case = case.to(device)
    tensors = tuple(t.to(dtype) for t in case.tensors)
    yield case.op(*tensors)
    yield grad(scalar(case.op), case.argnums)(*tensors)
    yield vmap(grad(scalar(case.op), case.argnums), randomness="different")(*[torch.stack([t, 0.5 * t]) for t in tensors])
    if case.has_tangent:
        yield jvp(case.op, tensors, tuple(like(t, i) for i, t in enumerate(tensors)))[1]


def agrees(case, dtype, rtol, atol):
    for ours, there in zip(results(case, accelerator(), dtype), results(case, "cpu", dtype), strict=True):
        for v, w in zip(tensors_in(ours), tensors_in(there), strict=True):
            assert v.device.type == accelerator()
            assert v.dtype == w.dtype
            finite = w.isfinite()
            close(v.cpu().isfinite(), finite)
            scale = w[finite].abs().amax().item() if finite.any() and w.is_floating_point() else 1.0
            close(v.cpu()[finite], w[finite], rtol=rtol, atol=atol * max(scale, 1.0))


@pytest.mark.short
@pytest.mark.parametrize("case", ALL)
def test_in_double_precision(case):
    """Values, gradients, per-sample gradients and tangents differ by rounding."""
    agrees(case, torch.float64, 1e-9, 1e-9)


@pytest.mark.short
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", ALL)
def test_in_the_precisions_of_training(case, dtype):
    """The same by a few units of the dtype."""
    eps = torch.finfo(dtype).eps
    agrees(case, dtype, 16 * eps, 16 * eps)


@pytest.mark.short
@pytest.mark.skipif(is_registered(), reason="test_compiled_kernels.py compiles for the second device")
@pytest.mark.parametrize("case", FUSED)
def test_compiled_for_the_accelerator(case):
    """The kernels of ``torch.compile`` compute the values and gradients of eager code."""
    case = case.to(accelerator())
    tensors = tuple(t.float() for t in case.tensors)

    def both(function):
        leaves = [t.clone().requires_grad_() for t in tensors]
        y = function(*leaves)
        return tensors_in((y, torch.autograd.grad(y, leaves, torch.ones_like(y), allow_unused=True)))

    for v, w in zip(both(torch.compile(case.op, fullgraph=True)), both(case.op), strict=True):
        close(v, w, rtol=1e-5, atol=1e-5 * max(w.abs().amax().item(), 1e-30))
