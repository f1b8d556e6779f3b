"""The host never waits for the device: no operator looks at numbers, or uploads some, to decide what to compute."""

import contextlib

import pytest
import torch
from torch.func import grad, jvp, vmap

import fullgrad
from fullgrad._suite.bench._operators import tensors
from fullgrad._suite.cases import clamping, functions, gradients, quantizers, rounding, safe, sampling, soft, spikes, tracking
from tests import devices
from tests.devices import accelerator

pytestmark = [pytest.mark.skipif(accelerator() is None, reason="needs a GPU, or -p tests.devices.plugin"), pytest.mark.short]

FAMILIES = (clamping, functions, gradients, quantizers, rounding, safe, sampling, soft, spikes, tracking)
# Operators whose algorithm looks at numbers, as their docstrings say, and torch's gradient of a product, which counts zeros.
WAITING = {
    "quantizers.vector_quantize, identity",
    "quantizers.vector_quantize, rotation",
    "quantizers.vector_quantize, given",
    "sampling.poisson_st",
    "sampling.gumbel_sinkhorn",
    "soft.all",
    "soft.any",
}
CASES = [c for family in FAMILIES for c in family.CASES if not c.exhaustive and c.name not in WAITING]


def runs(case):
    """Forward and backward, per-sample gradients and a tangent of a case on the device, by name."""
    inputs = [v.to(accelerator()) if isinstance(v, torch.Tensor) else v for v in case.inputs]
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
    with devices.no_waiting(), pytest.raises(RuntimeError, match=r"the host waits for the device|synchronizing CUDA operation"):
        run()


def test_numbers_on_the_cpu():
    """A number on the CPU is a parameter in every derivative, as in torch's own kernels; or it is refused at once."""
    x, number = torch.linspace(-1, 1, 12).reshape(3, 4), torch.tensor(0.25)
    on_device = x.to(accelerator())
    operators = {
        "eq": lambda x: fullgrad.soft.eq(x, number),
        "softness of eq": lambda x: fullgrad.soft.eq(x, 0.3 * x.detach(), softness=number),
        "greater": lambda x: fullgrad.soft.greater(x, number),
        "rect": lambda x: fullgrad.spikes.rect(x, threshold=number),
        "leaky_k_relu": lambda x: fullgrad.spikes.leaky_k_relu(x, threshold=number),
        "topk_mask_st": lambda x: fullgrad.topk_mask_st(x, 2, softness=number),
        **{m: lambda x, m=m: fullgrad.soft.sort(x, softness=number, method=m)[0] for m in ("softsort", "neuralsort", "ot")},
    }
    for name, f in operators.items():
        for how in (lambda x: jvp(f, (x,), (x,))[1], torch.func.hessian(lambda x: f(x).sin().sum()), grad(lambda x: f(x).sum())):  # noqa: B023
            torch.testing.assert_close(how(on_device).cpu(), how(x), rtol=1e-4, atol=1e-4, msg=name)
    mask = torch.ones(3, 4, dtype=torch.bool)
    for f, argument in (
        (lambda: fullgrad.clip_grad(on_device, number), "max_value"),
        (lambda: fullgrad.mask_grad(on_device, mask), "mask"),
        (lambda: fullgrad.scale(on_device, 1.0, x), "backward"),
        (lambda: fullgrad.scale_bwd(on_device, x), "scale"),
        (lambda: fullgrad.replace_grad(on_device, x), "surrogate"),
    ):
        with pytest.raises(RuntimeError, match=f"`{argument}` must be on"):
            f()


def test_a_wait_in_a_trial_is_not_lost():
    """Where a rule is tried, and waiting is an error, it raises; afterwards the rule is tried again."""

    @fullgrad.custom_vjp
    def clipped(x):
        return x.sin()

    clipped.defvjp(lambda x: (x.sin(), x), lambda x, g: ((g * x.cos()).clamp(-0.1, 0.1),))
    x = torch.ones(3).to(accelerator())
    for context, error in (
        (devices.no_waiting(), r"the host waits|synchronizing"),
        (contextlib.nullcontext(), "no forward mode"),
    ):
        with context, pytest.raises((RuntimeError, NotImplementedError), match=error):
            jvp(clipped, (x,), (x,))
