"""Many steps with every family, with errors in between: memory and live objects stay as they were, and so do torch's modes.

``python tests/dispatch/test_soak.py 10000`` runs as many and prints what was measured; the tests run fewer, and some of them in
the other dispatch, compiled, in threads, and in processes that were forked or spawned.
"""

import gc
import multiprocessing
import os
import resource
import subprocess
import sys
import threading
import warnings

import pytest
import torch
from torch.func import grad, jvp, vjp, vmap
from torch.testing import assert_close

import fullgrad
from fullgrad import quantizers, sampling, soft, spikes
from fullgrad._dispatch import active_transforms, is_forward_mode
from fullgrad.testing._subject import like, scalar

FUNCTIONS = {
    "rounding": fullgrad.round,
    "clamping": lambda x: fullgrad.clamp(x, -1.0, x.detach().abs() + 0.1),
    "gradients": lambda x: fullgrad.clip_grad(x, 0.5),
    "functions": fullgrad.straight_through(torch.round, torch.tanh),
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
    """Rules that raise, with a KeyboardInterrupt among the errors."""

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
    """The state that must be the same after every step."""
    modes = torch.is_grad_enabled(), is_forward_mode(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
    return modes, tuple(active_transforms()), torch.autograd.forward_ad._current_level


def step(i, forward_mode=True):
    """Call every family in every way, and cause one error of each kind; return the results of the families."""
    x, found = torch.randn(3, 5, generator=torch.Generator().manual_seed(i)), []
    for function in FUNCTIONS.values():
        leaf = x.clone().requires_grad_()
        scalar(function)(leaf).backward()
        found += [leaf.grad, vmap(grad(scalar(function)))(x)]
        if forward_mode:
            found += jvp(function, (x,), (like(x, i),))
    for wrong in ERRORS:
        with pytest.raises((TypeError, ValueError, IndexError, RuntimeError)):
            wrong(x)
    Fails.error = (ValueError, KeyboardInterrupt)[i % 2]
    leaf = x.clone().requires_grad_()
    calls = [
        lambda: Fails.apply(leaf).sum().backward(),
        lambda: vmap(Fails.apply)(x),
        lambda: vmap(grad(lambda x: Fails.apply(x).sum()))(x),
    ]
    if forward_mode:
        calls.append(lambda: jvp(Fails.apply, (x,), (x,)))
        calls.append(lambda: vjp(lambda x: jvp(Fails.apply, (x,), (x,))[1], x)[1](x))
    for call in calls:
        with pytest.raises((ValueError, KeyboardInterrupt)):
            call()
    return found


def alive():
    """The number of live objects, and of tensors among them."""
    gc.collect()
    objects = gc.get_objects()
    return len(objects), sum(issubclass(type(o), torch.Tensor) for o in objects)


def measure(steps):
    """Live objects and tensors, and the peak of memory in MiB, after a tenth of the steps and after all."""
    before, found = state(), []
    for i in range(steps):
        step(i)
        assert state() == before
        if i in (steps // 10, steps - 1):
            found.append((*alive(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))
    return found


@pytest.mark.long
def test_nothing_is_kept():
    """Objects, tensors and memory do not grow."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (objects, tensors, memory), (objects_after, tensors_after, memory_after) = measure(60)
    assert tensors_after <= tensors
    assert objects_after - objects < 54  # less than one in a step
    assert memory_after - memory < 20


@pytest.mark.long
def test_other_dispatch():
    """Nothing grows through torch's public path, either."""
    script = "import runpy, sys; sys.argv = ['soak', '20']; runpy.run_path(sys.orig_argv[-1], run_name='__main__')"
    environment = {**os.environ, "FULLGRAD_DISPATCH": "fallback", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", script, __file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    (objects, tensors, _), (objects_after, tensors_after, _) = [
        [int(word) for word in line.split() if word.isdigit()] for line in done.stdout.splitlines()
    ]
    assert tensors_after <= tensors
    assert objects_after - objects < 18


@pytest.mark.long
def test_compiled():
    """A hundred calls of compiled code, with errors in between, keep nothing."""

    gradients = vmap(grad(lambda x: sum(scalar(f)(x) for f in FUNCTIONS.values())))
    compiled = torch.compile(gradients, backend="aot_eager")
    before, found = state(), []
    for i in range(100):
        x = torch.randn(3, 5, generator=torch.Generator().manual_seed(i))
        assert_close(compiled(x), gradients(x))
        with pytest.raises((TypeError, IndexError)):
            ERRORS[i % 2](x)
        assert state() == before
        if i in (10, 99):
            found.append(alive())
    (objects, tensors), (objects_after, tensors_after) = found
    assert tensors_after <= tensors
    assert objects_after - objects < 89


def test_threads():
    """Eight threads at once give what one gives; one of them uses forward mode, which has one level per process."""
    expected = [step(i, forward_mode=i == 0) for i in range(8)]
    found, failures = {}, []

    def work(i):
        before = state()
        try:
            for _ in range(3):
                found[i] = step(i, forward_mode=i == 0)
            assert state()[1] == before[1]
        except BaseException as error:  # an interruption too
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for i, values in enumerate(expected):
        assert_close(found[i], values, equal_nan=True)


@pytest.mark.long
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes(method):
    """A child process that calls operators after its parent did has the same values."""
    context = multiprocessing.get_context(method)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of a fork where there are threads
        expected, queue = step(3), context.SimpleQueue()
        child = context.Process(target=_send, args=(queue,))
        child.start()
        found = queue.get()
        child.join()
    assert child.exitcode == 0
    for values, other in zip(found, expected, strict=True):
        assert_close(torch.tensor(values), other, equal_nan=True)  # on another number of threads


def _send(queue):
    queue.put([t.tolist() for t in step(3)])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for objects, tensors, memory in measure(int(sys.argv[1])):
        print(f"{objects} objects, {tensors} tensors, {memory:.0f} MiB")
