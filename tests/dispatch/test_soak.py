"""Many steps with every family, with errors in between: memory and live objects stay as they were, and so do torch's modes.

``python tests/dispatch/test_soak.py 10000`` runs as many and prints what was measured; the test runs fewer.
"""

import gc
import resource
import sys
import warnings

import pytest
import torch
from torch.func import grad, jvp, vjp, vmap

import fullgrad
from fullgrad import quantizers, sampling, soft, spikes
from fullgrad._dispatch import active_transforms, is_forward_mode
from fullgrad.testing._subject import like, scalar

FUNCTIONS = {
    "rounding": fullgrad.round,
    "clamping": lambda x: fullgrad.clamp(x, -1.0, x.detach().abs() + 0.1),
    "gradients": lambda x: fullgrad.clip_grad(x, 0.5),
    "estimators": fullgrad.straight_through(torch.round, torch.tanh),
    "elementwise relaxations": soft.round,
    "order statistics": lambda x: soft.sort(x)[0],
    "order statistics, straight-through": fullgrad.rank_st,
    "simplex": soft.entmax,
    "spikes": spikes.atan,
    "quantizers": lambda x: quantizers.fake_quantize(x, x.detach().abs().mean() + 0.1, 0.0, -8, 7),
    "sampling": lambda x: sampling.gumbel_softmax(x, noise=torch.zeros_like(x)),
}
ERRORS = (
    lambda x: fullgrad.clamp(x, "a"),
    lambda x: soft.sort(x, 7),
    lambda x: quantizers.fake_quantize(x, -1.0),
    lambda x: grad(lambda x: fullgrad.round(x).sum().item())(x),
)


class Fails(fullgrad.Function):
    """Rules that raise, an interruption among what they raise."""

    error: type[BaseException] = ValueError

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vjp(ctx, g):
        raise Fails.error("vjp")

    @staticmethod
    def jvp(ctx, t):
        raise Fails.error("jvp")

    @staticmethod
    def vmap(info, in_dims, x):
        raise Fails.error("vmap")


def state():
    """What must be as it was after every step."""
    modes = torch.is_grad_enabled(), is_forward_mode(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
    return modes, tuple(active_transforms()), torch.autograd.forward_ad._current_level


def step(i):
    """Every family in every way, and one error of each kind."""
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(i))
    for function in FUNCTIONS.values():
        leaf = x.clone().requires_grad_()
        scalar(function)(leaf).backward()
        vmap(grad(scalar(function)))(x)
        jvp(function, (x,), (like(x, i),))
    for wrong in ERRORS:
        with pytest.raises((TypeError, ValueError, IndexError, RuntimeError)):
            wrong(x)
    Fails.error = (ValueError, KeyboardInterrupt)[i % 2]
    leaf = x.clone().requires_grad_()
    for call in (
        lambda: Fails.apply(leaf).sum().backward(),
        lambda: jvp(Fails.apply, (x,), (x,)),
        lambda: vmap(Fails.apply)(x),
        lambda: vmap(grad(lambda x: Fails.apply(x).sum()))(x),
        lambda: vjp(lambda x: jvp(Fails.apply, (x,), (x,))[1], x)[1](x),
    ):
        with pytest.raises((ValueError, KeyboardInterrupt)):
            call()


def measure(steps):
    """Live objects and tensors, and the peak of memory in MiB, after a tenth of the steps and after all."""
    before, found = state(), []
    for i in range(steps):
        step(i)
        assert state() == before
        if i in (steps // 10, steps - 1):
            gc.collect()
            objects = gc.get_objects()
            tensors = sum(isinstance(o, torch.Tensor) for o in objects)
            found.append((len(objects), tensors, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))
    return found


@pytest.mark.long
def test_nothing_is_kept():
    """Objects, tensors and memory."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (objects, tensors, memory), (objects_after, tensors_after, memory_after) = measure(60)
    assert tensors_after <= tensors
    assert objects_after - objects < 54  # less than one in a step
    assert memory_after - memory < 20


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for objects, tensors, memory in measure(int(sys.argv[1])):
        print(f"{objects} objects, {tensors} tensors, {memory:.0f} MiB")
