"""The host never waits for the device: no operator looks at numbers, or uploads some, to decide what to compute."""

import pytest
import torch
from torch.func import grad, jvp, vmap

from fullgrad._suite.bench._operators import tensors
from fullgrad._suite.cases import clamping, functions, gradients, quantizers, rounding, sampling, soft, spikes, tracking
from tests import devices
from tests.devices.test_second_device import pytestmark as with_the_plugin

pytestmark = [with_the_plugin, pytest.mark.short]

FAMILIES = (clamping, functions, gradients, quantizers, rounding, sampling, soft, spikes, tracking)
# Operators whose algorithm looks at numbers, as their docstrings say, and torch's gradient of a product, which counts zeros.
WAITING = {
    "quantizers.vector_quantize, identity",
    "quantizers.vector_quantize, rotation",
    "sampling.poisson_st",
    "sampling.gumbel_sinkhorn",
    "soft.all",
    "soft.any",
}
CASES = [c for family in FAMILIES for c in family.CASES if not c.exhaustive and c.name not in WAITING]


def runs(case):
    """Forward and backward, per-sample gradients and a tangent of a case on the device, by name."""
    inputs = [v.to(devices.NAME) if isinstance(v, torch.Tensor) else v for v in case.inputs]
    positions, leaves = [i for i, v in enumerate(inputs) if tensors([v])], tensors(inputs)

    def total(*values):
        args = list(inputs)
        for i, v in zip(positions, values, strict=True):
            args[i] = v
        y = case.operator(*args)
        return sum(v.sum() for v in tensors(y if isinstance(y, (tuple, list)) else [y]))

    def backward():
        recorded = [v.clone().requires_grad_() for v in leaves]
        torch.autograd.grad(total(*recorded), recorded, allow_unused=True)

    yield backward
    yield lambda: vmap(grad(total), randomness="different")(*[torch.stack([v, v]) for v in leaves])
    if case.name != "sampling.imle_topk":  # which has no tangent
        yield lambda: jvp(total, tuple(leaves), tuple(map(torch.ones_like, leaves)))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_the_host_never_waits(case):
    """Forward, backward, per-sample gradients and tangents are launches alone."""
    for run in runs(case):
        run()  # tables are made once
        with devices.no_waiting():
            run()


def test_waiting_is_seen():
    """Operators that do wait raise."""
    (case,) = [c for c in sampling.CASES if c.name == "sampling.poisson_st"]
    run = next(runs(case))
    run()
    with devices.no_waiting(), pytest.raises(RuntimeError, match="the host waits for the device"):
        run()
