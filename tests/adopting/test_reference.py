"""A class or library operator with its mathematics, and torch's checkpoints inside transforms."""

import threading

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacrev, vmap
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint as kept_under_another_name

import fullgrad
from tests.functions.transforms import NAMES, X, derivative

CALLS = []


def reference(x):
    """x sin(x)."""
    return x * torch.sin(x)


class Fused(torch.autograd.Function):
    """A kernel that no transform can see through: its numbers are those of numpy, its backward cannot be differentiated."""

    @staticmethod
    def forward(ctx, x):
        CALLS.append("forward")
        ctx.save_for_backward(x)
        return torch.from_numpy(x.detach().numpy() * torch.sin(x).detach().numpy())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        CALLS.append("backward")
        (x,) = ctx.saved_tensors
        return g * (torch.sin(x) + x * torch.cos(x))


def counted(x):
    """The reference, counted."""
    CALLS.append("reference")
    return reference(x)


@pytest.mark.parametrize("name", NAMES)
def test_a_class_with_a_reference(name):
    """All derivatives, of a class that has the first one."""
    assert_close(derivative(name, fullgrad.adopt(Fused, reference=counted)), derivative(name, reference))


def test_its_first_derivative_is_its_own():
    """The reference is not called for it."""
    CALLS.clear()
    fullgrad.adopt(Fused, reference=counted)(X.clone().requires_grad_()).sum().backward()
    assert CALLS == ["forward", "forward", "backward"]


def test_a_library_operator_with_a_reference():
    """An operator of torch.ops has no derivative, and gets those of the reference."""
    f = fullgrad.adopt(OPERATOR, reference=reference)
    assert_close(vmap(hessian(lambda x: f(x).sum()))(X), vmap(hessian(lambda x: reference(x).sum()))(X))
    with pytest.raises(TypeError, match="`reference` must be callable"):
        fullgrad.adopt(Fused, reference=3)
    with pytest.raises(TypeError, match=r"x_sin_x is an operator without a derivative.*reference="):
        fullgrad.adopt(OPERATOR)


@torch.library.custom_op("fullgrad_tests::x_sin_x", mutates_args=())
def x_sin_x(x: torch.Tensor) -> torch.Tensor:
    """An operator without a derivative."""
    return x * torch.sin(x)


OPERATOR = torch.ops.fullgrad_tests.x_sin_x


# --- Checkpoints ----------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """A block as models have it: a flag for checkpoints, and torch's function by another name."""

    def __init__(self, reentrant=None):
        super().__init__()
        self.norm, self.inner, self.outer, self.reentrant = nn.LayerNorm(3), nn.Linear(3, 4), nn.Linear(4, 3), reentrant

    def feed_forward(self, x, scale=1.0):
        return self.outer(torch.tanh(self.inner(self.norm(x)))) * scale

    def forward(self, x):
        if self.reentrant is None:
            return x + self.feed_forward(x, 0.5)
        if self.reentrant:
            return x + kept_under_another_name(self.feed_forward, x, 0.5, use_reentrant=True)
        return x + kept_under_another_name(self.feed_forward, x, scale=0.5, use_reentrant=False, preserve_rng_state=True)


def model(reentrant):
    torch.manual_seed(0)
    return nn.Sequential(*[Block(reentrant) for _ in range(3)]).double()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_of_an_unchanged_model(reentrant):
    """Per-sample gradients and Hessians, where torch raises; outside of the context all is as before."""
    found = []
    for net in (model(reentrant), model(None)):
        own = {name: p.detach() for name, p in net.named_parameters()}

        def loss(p, x, net=net):
            return functional_call(net, p, (x,)).square().sum()

        with fullgrad.adopting(checkpoint=True):
            found.append([vmap(grad(loss), (None, 0))(own, X), vmap(jacrev(grad(loss, 1), 1), (None, 0))(own, X)])
    assert_close(*found)
    with pytest.raises(RuntimeError):
        vmap(grad(lambda x: model(reentrant)(x).sum()))(X)


def test_plain_code_and_other_threads_keep_torchs():
    """Only the thread of the context is affected, and only inside transforms."""
    original = torch.utils.checkpoint.checkpoint.__wrapped__.__code__
    seen = []

    def other():
        try:
            grad(lambda x: kept_under_another_name(torch.sin, x, use_reentrant=True).sum())(X)
        except RuntimeError as error:
            seen.append(error)

    with fullgrad.adopting(checkpoint=True):
        x = X.clone().requires_grad_()
        y = kept_under_another_name(torch.sin, x, use_reentrant=True)
        assert "CheckpointFunction" in type(y.grad_fn).__name__
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(seen) == 1
    assert torch.utils.checkpoint.checkpoint.__wrapped__.__code__ is original
    with fullgrad.adopting(), pytest.raises(RuntimeError):
        grad(lambda x: kept_under_another_name(torch.sin, x, use_reentrant=True).sum())(X)
