"""The parameters of ``forward`` may have any name: ``apply`` is written out for them."""

import inspect

import torch
from torch.func import hessian

from fullgrad import Function


class Awkward(Function):
    """x * y with parameters named after what the machinery uses itself."""

    @staticmethod
    def forward(active, base, ctx=2.0, kind=None, output=1, Tensor=3, value=1, args=0, operator=1):
        return active * base

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:2])
        ctx.save_for_forward(*inputs[:2])

    @staticmethod
    def vjp(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x, *[None] * 7

    @staticmethod
    def jvp(ctx, s, t, *_):
        x, y = ctx.saved_tensors
        return s * y + x * t

    @staticmethod
    def vmap(info, in_dims, *args):
        x, y = (a.movedim(d, 0) for a, d in zip(args[:2], in_dims[:2], strict=True))
        return Awkward.apply(x, y, *args[2:]), 0


def test_any_name_will_do():
    """Eager, under transforms and compiled; by keyword; with the defaults of forward."""
    x = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64, requires_grad=True)
    assert torch.equal(torch.autograd.grad(Awkward.apply(x, base=x, kind="k").sum(), x)[0], 2 * x)
    torch.testing.assert_close(hessian(lambda x: Awkward.apply(x, x).sum())(x.detach()), 2 * torch.eye(3, dtype=x.dtype))
    compiled = torch.compile(lambda x: Awkward.apply(x, x, operator=2), backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), x * x)
    assert str(inspect.signature(Awkward.apply)) == str(inspect.signature(Awkward.forward))
