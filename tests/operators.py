"""Shared parts of the tests: right operators, all subsets, the list of what autograd saves, flushed
subnormal numbers.
"""

import contextlib
import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

import fullgrad
from fullgrad import Function, nn, quantizers, sampling, soft, spikes

PUBLIC = {name for module in (fullgrad, nn, nn.soft, quantizers, sampling, soft, spikes) for name in module.__all__}


class Cube(Function):
    """x ** 3 with its true derivative: one tensor in, one out, the input saved."""

    @staticmethod
    def forward(x):
        return x * x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def vjp(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x**2

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return t * 3 * x**2

    @classmethod
    def vmap(cls, info, in_dims, x):
        return cls.apply(x), in_dims[0]


class ThroughRound(Function):
    """Straight-through round: nothing is saved, every derivative beyond the first is 0. Subclasses have another forward."""

    @staticmethod
    def forward(x):
        return torch.round(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vjp(ctx, g):
        return g

    @staticmethod
    def jvp(ctx, t):
        return t

    @classmethod
    def vmap(cls, info, in_dims, x):
        return cls.apply(x), in_dims[0]


@contextlib.contextmanager
def saved_tensors() -> Iterator[list[Tensor]]:
    """The tensors that autograd saves in the block, in order."""
    saved: list[Tensor] = []
    with saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        yield saved


def storage_bytes(tensors: list[Tensor], but: tuple[Tensor, ...] = ()) -> int:
    """The bytes of the storages of tensors, each counted once, without those of others."""
    held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(n for pointer, n in held.items() if pointer not in {t.untyped_storage().data_ptr() for t in but})


def subset_probabilities(theta: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """All subsets of k elements as rows of 0 and 1, and the probability of each."""
    n = len(theta)
    subsets = torch.tensor([[i in chosen for i in range(n)] for chosen in itertools.combinations(range(n), k)]).to(theta.dtype)
    return subsets, torch.softmax(subsets @ theta, 0)


class TorchCube(torch.autograd.Function):
    """`Cube` on torch's own base class."""

    forward, setup_context = staticmethod(Cube.forward), staticmethod(Cube.setup_context)
    backward, jvp = staticmethod(Cube.vjp), staticmethod(Cube.jvp)

    @classmethod
    def vmap(cls, info, in_dims, x):
        return cls.apply(x), in_dims[0]


@contextlib.contextmanager
def flushed_denormals() -> Iterator[None]:
    """A context in which subnormal numbers are 0; skips the test where the processor cannot do that."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers")
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextlib.contextmanager
def raises(error: type[Exception], match: str) -> Iterator[None]:
    """`pytest.raises`, with a message that begins with the public name of the function."""
    with pytest.raises(error, match=match) as raised:
        yield
    name = str(raised.value).partition(":")[0]
    assert name.rpartition(".")[2] in PUBLIC, str(raised.value)
